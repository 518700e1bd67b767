import pytest
import torch

from benchmark.errors import CheckpointError
from benchmark.federation.client_state import ClientState, LocalParts
from tests.run_helpers import same

TREE = {
    "memory": {"c": {"w": torch.tensor([1.0, 2.0])}},
    "stays": {"head": {"w": torch.zeros(2, 3, dtype=torch.bfloat16)}},
}


def leaf(value):
    return {"memory": {"w": torch.tensor(value)}}


def files(memory):
    return sorted(file.name for file in memory.folder.iterdir())


@pytest.fixture
def memory(tmp_path):
    return ClientState(tmp_path / "memory")


def keep(memory, round, **values):
    written = {int(name[1:]): memory.write(int(name[1:]), round, "fit", leaf(value)) for name, value in values.items()}
    memory.stage(written)


def test_a_written_file_counts_only_once_it_is_staged_and_the_old_one_stays_until_the_commit(memory):
    memory.commit()
    assert (dict(memory), memory.get(3), memory.folder.exists()) == ({}, None, False)  # nobody remembers anything yet
    keep(memory, 0, k1=1.0, k2=1.0)
    memory.commit()
    index, name = dict(memory.index), memory.write(1, 1, "fit", leaf(2.0))
    assert memory[1]["memory"]["w"] == 1.0
    memory.stage({1: name})
    assert memory[1]["memory"]["w"] == 2.0
    assert len(files(memory)) == 3  # after a crash here every file of the old index exists
    memory.restore(index)
    assert memory[1]["memory"]["w"] == 1.0
    keep(memory, 1, k1=2.0)
    memory.stage({1: memory.write(1, 1, "later", leaf(3.0))})  # of a later phase of the round
    memory.commit()
    assert files(memory) == sorted(memory.index.values())
    assert (memory[1]["memory"]["w"], memory[2]["memory"]["w"]) == (3.0, 1.0)
    memory.stage({1: memory.write(1, 2, "fit", {})})
    memory.commit()
    assert list(memory) == [2]  # who keeps nothing is forgotten
    assert files(memory) == [memory.index[2]]


def test_restoring_clears_what_a_broken_round_left(memory):
    keep(memory, 0, k1=1.0)
    memory.commit()
    index = dict(memory.index)
    for client in (1, 2):
        memory.write(client, 1, "fit", leaf(9.0))
    (memory.folder / "client3-round1-fit.pt").write_bytes(b"half a file")
    again = ClientState(memory.folder)
    again.restore(index)
    assert list(again) == [1]
    assert files(again) == [index[1]]
    assert index == again.index
    keep(again, 1, k2=1.0)
    assert 2 not in index  # a checkpoint's index is copied, not shared


def test_clients_come_in_order_of_id_and_only_the_asked_for_is_read(memory):
    keep(memory, 0, k10=1.0, k9=2.0)
    keep(memory, 1, k1=3.0)
    for client in (1, 10):
        (memory.folder / memory.index[client]).write_bytes(b"not to be opened")
    assert (len(memory), list(memory), 1 in memory, 2 in memory) == (3, [1, 9, 10], True, False)
    assert memory[9]["memory"]["w"] == 2.0


def test_a_tree_comes_back_bit_for_bit_and_its_parts_that_stay_alone(memory):
    memory.stage({4: memory.write(4, 0, "fit", TREE), 2: memory.write(2, 0, "fit", leaf(1.0))})
    kept = LocalParts(memory)
    assert (list(kept), len(kept)) == ([2, 4], 2)
    assert same(memory[4], TREE)
    assert memory[4]["stays"]["head"]["w"].dtype == torch.bfloat16
    assert same(kept[4], TREE["stays"])
    assert kept[2] == {}


@pytest.mark.parametrize("content", ["emptied", "nan", "flip", "cut", "nothing", "text", "gone"])
def test_a_state_that_is_not_as_it_was_written_is_refused_in_one_line(memory, content):
    keep(memory, 0, k1=1.0)
    file = memory.folder / memory.index[1]
    written = file.read_bytes()
    if content in ("emptied", "nan"):
        torch.save({} if content == "emptied" else leaf(float("nan")), file)
    elif content == "gone":
        file.unlink()
    else:
        half = len(written) // 2
        flipped = written[:half] + bytes([written[half] ^ 1]) + written[half + 1 :]
        file.write_bytes({"flip": flipped, "cut": written[:-1], "nothing": b"", "text": b"{}"}[content])
    with pytest.raises(CheckpointError, match=r"client1-.*which client 1 keeps") as error:
        memory[1]
    assert "\n" not in str(error.value)
    assert f"delete {memory.folder.parent}" in str(error.value)


class Harm:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_a_state_of_an_earlier_version_has_no_hash_in_its_name_and_nothing_is_unpickled(memory):
    memory.folder.mkdir()
    file = memory.folder / "client1-round0-fit.pt"
    torch.save(TREE, file)
    memory.restore({1: file.name})
    assert same(memory[1], TREE)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError):
        memory[1]
    torch.save({"memory": Harm()}, file)
    with pytest.raises(CheckpointError, match="Weights only load failed"):
        memory[1]
