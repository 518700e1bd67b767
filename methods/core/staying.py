"""Parts that stay with each client by the setting `method.stays`, and the encoders of single clients that result.

The body of a network is shared and its last part is each client's own, or the reverse: FedPer (Arivazhagan et al.
2019), LG-FedAvg (Liang et al. 2020).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from methods import trees
from methods.core.parts import Parts
from methods.core.validation import MethodError
from methods.trees import Tree


def check_stays(method: Parts, stays: Sequence[str]) -> tuple[str, ...]:
    """The parts that stay, once each.

    Raises MethodError: no such part travels, it has no weights, it has to travel (`must_travel`), or nothing is left.
    """
    chosen, name = tuple(dict.fromkeys(stays)), type(method).__name__
    sent = method.travelling if getattr(method, "phases", ()) else ()
    owners: list[Any] = [method, *method.terms]
    for part in chosen:
        given = f"method.stays={list(chosen)}"
        if part not in sent:
            listed = f"choose among {', '.join(sent)}" if sent else "leave it out"
            raise MethodError(f"{given}: {name} over {type(method.objective).__name__} sends no {part!r}: {listed}")
        if not method.tensors(part):
            raise MethodError(f"{given}: the {part} has no weights here that could stay: leave it out")
        for owner in owners:
            if part in owner.must_travel:
                reason = owner.must_travel[part]
                raise MethodError(f"{given}: {type(owner).__name__} has to send the {part}: {reason}; leave it out")
    if chosen and set(chosen) == {part for part in sent if method.tensors(part)}:
        raise MethodError(f"method.stays={list(chosen)}: nothing would travel: choose method local instead")
    return chosen


class ClientModels(Mapping[str, Tree]):
    """Lazy mapping: `client<id>` -> the weights Tree of that client's own model, read on access.

    Args:
        shared: the weights that all clients have.
        clients: id -> the parts that stay with that client.
    """

    def __init__(self, shared: Tree, clients: Mapping[int, Tree]) -> None:
        self.shared, self.clients = shared, clients
        self.ids = {f"client{client}": client for client in clients}

    def __getitem__(self, name: str) -> Tree:
        return trees.overlay(self.shared, self.clients[self.ids[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)
