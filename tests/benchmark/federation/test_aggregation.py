"""Aggregation against NumPy in float64 and numbers computed by hand."""

import pickle

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from benchmark.execution.observations import gather_batches
from benchmark.federation.aggregation import Aggregation
from methods import trees
from methods.base import Cat, Client, Each, Mean, MethodError, Phase, Sum, Visit
from tests.run_helpers import same

SIZES, BATCHES = [7, 30, 1, 12], [2, 5, 1, 3]


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1)


def visit(client, examples, batches=1):
    return Visit(0, 1, Phase("fit"), Client(client, examples), {}, {}, torch.Generator(), counted=batches)


def reduced(fabric, how, replies, server=None):
    """The combined value of `replies`: (client, examples, batches, Tree of the entry "x")."""
    totals = Aggregation({"x": how})
    for *given, tree in replies:
        totals.add(visit(*given), {"x": tree}, server or {})
    return totals.merged(fabric, [totals.staged(fabric)])["x"]


def four_replies(seed=0):
    rng = torch.Generator().manual_seed(seed)
    trees_ = [{"a": {"w": torch.randn(3, 2, generator=rng)}, "b": torch.randn((), generator=rng)} for _ in SIZES]
    return list(zip(range(4), SIZES, BATCHES, trees_, strict=True))


def weighted_mean(replies, weights, path, divisor=None):
    values = [dict(trees.leaves(tree))[path].double().numpy() for *_, tree in replies]
    total = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return (total / (divisor or sum(weights))).astype(np.float32)


@pytest.mark.parametrize(
    ("how", "weights", "divisor"),
    [
        (Mean("examples"), SIZES, None),
        (Mean("batches"), BATCHES, None),
        (Mean("clients"), [1, 1, 1, 1], None),
        (Mean(lambda server, message: server["scale"] * message["x"]["b"].abs()), None, None),
        (Mean("examples", over="clients"), SIZES, 4),
        (Mean(lambda server, message: message["x"]["b"].abs(), over="clients"), None, 4),
        (Sum(), [1, 1, 1, 1], 1),
    ],
)
def test_means_and_sums(fabric, how, weights, divisor):
    replies = four_replies()
    given = weights or [abs(float(tree["b"])) for *_, tree in replies]
    mean = reduced(fabric, how, replies, {"scale": torch.tensor(1.0)})
    for path, leaf in trees.leaves(mean):
        np.testing.assert_allclose(leaf.numpy(), weighted_mean(replies, given, path, divisor), rtol=1e-7)


@pytest.mark.parametrize(("over", "divisor"), [("weights", None), ("clients", 4)])
def test_mean_by_a_tree_of_weights(fabric, over, divisor):
    """A weight for each layer, as in L-DAWA: |sum of w| for leaf "w", b^2 for leaf "b"."""

    def weigh(server, message):
        return {"a": {"w": message["x"]["a"]["w"].sum().abs()}, "b": message["x"]["b"] ** 2}

    replies = four_replies(1)
    weights = [dict(trees.leaves(weigh({}, {"x": tree}))) for *_, tree in replies]
    for path, leaf in trees.leaves(reduced(fabric, Mean(weigh, over=over), replies)):
        expected = weighted_mean(replies, [float(weight[path]) for weight in weights], path, divisor)
        np.testing.assert_allclose(leaf.numpy(), expected, rtol=1e-7)


@pytest.mark.parametrize("how", [Mean(), Sum()])
def test_replies_that_are_one_tensor_are_combined_to_one(fabric, how):
    packed = trees.flat([(("a",), torch.ones(2)), (("b",), torch.ones(3))])
    assert trees.span(reduced(fabric, how, [(k, 5, 1, packed.tree(packed.flat)) for k in range(2)])) is not None


def test_cat_and_each_go_by_client_id_whoever_came_first(fabric):
    rows = {4: [[4.0, 4.5]], 0: [[0.0, 0.5], [1.0, 1.5]], 2: [[2.0, 2.5]]}
    replies = {k: {"R": torch.tensor(value)} for k, value in rows.items()}
    joined, kept = (reduced(fabric, how, [(k, 1, 1, tree) for k, tree in replies.items()]) for how in (Cat(), Each()))
    assert joined["R"].tolist() == [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5], [4.0, 4.5]]
    assert list(kept) == [0, 2, 4]
    assert same(kept, replies)


def test_replies_name_their_clients_lack_what_nobody_sent_and_average_what_some_send_over_those(fabric):
    totals = Aggregation(dict.fromkeys("xy", Mean("clients", over="clients")) | {"c": Cat(), "e": Each(), "s": Sum()})
    totals.add(visit(5, 1), {"x": {"w": torch.tensor([1.0])}, "y": {"w": torch.tensor([4.0])}}, {})
    totals.add(visit(2, 1), {"x": {"w": torch.tensor([3.0])}}, {})
    merged = totals.merged(fabric, [totals.staged(fabric)])
    assert merged.clients == (2, 5)
    assert {entry: tree["w"].item() for entry, tree in merged.items()} == {"x": 2.0, "y": 4.0}


def test_an_undeclared_entry_is_refused_by_name():
    totals = Aggregation({"weights": Mean()})
    line = "client 6 replied with labels, which phase 'fit' does not declare.*weights"
    with pytest.raises(MethodError, match=line):
        totals.add(visit(6, 1), {"weights": {"w": torch.ones(1)}, "labels": {"y": torch.ones(1)}}, {})
    assert totals.clients == []


@pytest.mark.parametrize("how", [Mean(), Sum()])
def test_another_architecture_is_refused(how):
    for other in ({"w": torch.ones(3)}, {"w": torch.ones(2, 1)}, {"v": torch.ones(2)}, {}):
        totals = Aggregation({"x": how})
        totals.add(visit(0, 1), {"x": {"w": torch.ones(2)}}, {})
        with pytest.raises(MethodError, match="client 1 replied with 'x' of another shape"):
            totals.add(visit(1, 1), {"x": other}, {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", [Mean(), Mean(lambda server, message: message["x"]), Sum(), Cat(), Each()])
def test_a_live_reply_may_change_once_it_is_added_and_is_taken_in_its_dtype_without_gradient(fabric, how, dtype):
    live = torch.nn.Parameter(torch.ones(1, 2, dtype=dtype))
    totals = Aggregation({"x": how})
    totals.add(visit(0, 1), {"x": {"w": live}}, {})
    live.data.fill_(9)
    ((_, leaf),) = trees.leaves(totals.merged(fabric, [totals.staged(fabric)])["x"])
    assert (leaf.tolist(), leaf.dtype, leaf.requires_grad) == ([[1.0, 1.0]], dtype, False)


@pytest.mark.parametrize("how", [Mean("examples"), Mean("clients"), Mean(lambda server, message: 0.3), Sum()])
def test_one_client_is_the_identity_bit_for_bit(fabric, how):
    tree = {"w": torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 1e-3}
    assert torch.equal(reduced(fabric, how, [(0, 37, 3, tree)])["w"], tree["w"])


@pytest.mark.parametrize("how", [Mean("examples"), Mean(lambda server, message: message["x"]["w"][0].exp()), Sum()])
def test_the_order_of_clients_shows_in_no_bit(fabric, how):
    rng = torch.Generator().manual_seed(0)
    replies = [(k, 10 + k, 1, {"w": torch.randn(2000, generator=rng)}) for k in range(100)]
    shuffled = [replies[k] for k in torch.randperm(100, generator=rng)]
    in_float32 = [sum(tree["w"] for *_, tree in order) for order in (replies, shuffled)]
    assert not torch.equal(*in_float32)  # a plain float32 sum depends on the order
    assert torch.equal(*(reduced(fabric, how, order)["w"] for order in (replies, shuffled)))


@pytest.mark.parametrize(
    ("how", "values", "gathered"),
    [
        (Sum(), ([1.0, 2.0], [3.0, 5.0], [0.5, 0.0]), [4.5, 7.0]),
        *((Cat(last), ([1, 2, 3], [4], [5]), [1, 2, 3, 4, 5][-(last or 9) :]) for last in (None, 2, 4, 9)),
        (Cat(last=2), ([1, 2, 3],), [2, 3]),
    ],
)
def test_batches_add_up_or_are_lined_up_and_the_last_rows_kept(how, values, gathered):
    observed = {}
    for live in map(torch.tensor, values):
        observed = gather_batches(observed, {"x": {"w": live}}, {"x": how})
        live.zero_()
    assert observed["x"]["w"].tolist() == gathered


def test_what_is_observed_and_what_is_gathered_must_agree():
    for observed in ({}, {"y": {}}, {"x": {"w": torch.ones(1)}, "y": {"w": torch.ones(1)}}):
        with pytest.raises(MethodError, match=r"the phase gathers \['x'\]"):
            gather_batches({}, observed, {"x": Sum()})


def test_a_reply_is_sent_to_other_ranks_once_and_not_with_every_leaf():
    class TwoRanks:
        world_size, device = 2, torch.device("cpu")

    totals = Aggregation({"x": Each()})
    reply = {"x": {str(k): torch.ones(1000) for k in range(20)}}
    totals.add(visit(0, 1), reply, {})
    assert len(pickle.dumps(totals.staged(TwoRanks()))) < 1.5 * trees.nbytes(reply["x"])
