import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules import natural
from datamodules.errors import DataError, PartitionError
from tests.datamodules.own_data import refused

PATHS = np.array([f"{label}/{k}.png" for label in "ab" for k in range(4)])


def by_file(tmp_path: Path, text: str, name: str = "clients.csv", **given) -> natural.NamedPartition:
    (tmp_path / name).write_text(text)
    return natural.by_file(tmp_path / name, PATHS, len(PATHS), **given)


def as_dict(made: natural.NamedPartition) -> dict[str, list[int]]:
    return {name: part.tolist() for name, part in zip(made.names, made.parts, strict=True)}


CSV = "path,client\n" + "\n".join(f"{path},{'zoe' if k % 3 else 'ann'}" for k, path in enumerate(PATHS))
EXPECTED = {"ann": [0, 3, 6], "zoe": [1, 2, 4, 5, 7]}


class TestFile:
    def test_paths_indices_and_json_are_one_partition(self, tmp_path):
        clients = ["zoe" if k % 3 else "ann" for k in range(8)]
        assert as_dict(by_file(tmp_path, CSV)) == EXPECTED
        assert as_dict(by_file(tmp_path, CSV.replace("\na/", "\ntrain/a/"))) == EXPECTED
        rows = "\n".join(f"{client},{k}" for k, client in reversed(list(enumerate(clients))))
        assert as_dict(by_file(tmp_path, "client,index\n" + rows)) == EXPECTED
        assert as_dict(by_file(tmp_path, json.dumps(EXPECTED), "split.json")) == EXPECTED
        named = {name: [str(PATHS[k]) for k in rows] for name, rows in EXPECTED.items()}
        assert as_dict(by_file(tmp_path, json.dumps(named), "split.json")) == EXPECTED

    def test_images_without_a_client_are_left_out_on_request_only(self, tmp_path):
        text = CSV.rpartition("\n")[0]
        with refused(r"1 of 8 training images have no client, the first is b/3\.png", PartitionError):
            by_file(tmp_path, text)
        assert as_dict(by_file(tmp_path, text, partial=True)) == {"ann": [0, 3, 6], "zoe": [1, 2, 4, 5]}

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (CSV + "\na/0.png,ann", r"line 10: image a/0\.png is listed twice"),
            (CSV + "\ntrain/a/0.png,zoe", r"listed twice: give it one client"),
            (CSV + "\n../a/0.png,ann", "leads out of the folder"),
            (CSV + "\n/etc/passwd,ann", "leads out of the folder"),
            (CSV + "\na/9.png,ann", r"there is no training image a/9\.png: give paths as a/0\.png"),
            (CSV + "\na/9.png,", "client is empty"),
            (CSV.replace("client", "site", 1), "no column 'client'"),
            ("index,client\n8,ann", "index 8: there are training images 0 to 7"),
            (f"index,client\n{'9' * 5000},ann", "index 99999999999999999999: there are training images 0 to 7"),
            (CSV.replace("path,client", "path,client,client", 1), "two columns 'client'"),
            ("path,client\n", "8 of 8 training images have no client"),
            (CSV.replace("ann", "a\x1bn"), "cannot be printed"),
            ("[", "is no JSON file"),
            ("[1, 2]", "give {client: "),
            ('{"ann": 3}', "give {client: "),
            ('{"ann": [0, 1], "ann": [2]}', "'ann' is there twice"),
            ('{"ann": []}', "client ann has no image"),
            ('{"ann": [true]}', "is no path or index"),
            ('{"ann": [1.5]}', "is no path or index"),
            ('{"": [1]}', "no name of a client"),
            ('{"ann": [1, 1]}', "image 1 is listed twice"),
            ('{"ann": [-1]}', "index -1: there are training images 0 to 7"),
            ("[" * 100_000, "is no JSON file"),
        ],
    )
    def test_hostile_tables_and_json_are_one_line(self, tmp_path, text, line):
        name, kind = ("split.json", PartitionError) if text[0] in "[{" else ("clients.csv", DataError)
        with refused(line, kind):
            by_file(tmp_path, text, name)

    def test_a_file_that_is_not_there_and_data_without_files(self, tmp_path):
        with refused("there is no such file", PartitionError):
            natural.by_file(tmp_path / "none.csv", PATHS, 8)
        (tmp_path / "clients.csv").write_text(CSV)
        with refused("the data have no files: give indices, 0 to 7", PartitionError):
            natural.by_file(tmp_path / "clients.csv", None, 8)

    def test_paths_of_held_out_images_are_passed_over_and_indices_are_refused(self, tmp_path):
        """Positions would not be the file's."""
        text, held_out = CSV + "\nb/9.png,zoe", np.array(["b/9.png"])
        with refused(r"no training image b/9\.png", PartitionError):
            by_file(tmp_path, text)
        for same in (text, text.replace("b/9", "train/b/9"), text.replace("b/9", "./b/9")):
            assert as_dict(by_file(tmp_path, same, held_out=held_out)) == EXPECTED
        with refused("0 is an index, and a fifth of the images was held out", PartitionError):
            by_file(tmp_path, "index,client\n0,ann", held_out=held_out)


class TestFolders:
    def test_clients_are_in_the_order_of_their_names(self):
        clients = np.array(["zoe", "ann", "zoe", "bob"])
        assert as_dict(natural.by_folder(clients, "mine")) == {"ann": [1], "bob": [3], "zoe": [0, 2]}
        with refused("data set mine names no clients", PartitionError):
            natural.by_folder(None, "mine")

    def test_some_of_them_may_be_drawn(self):
        whole = natural.by_folder(np.array(list("abcdefgh")), "mine")
        first, again, other = (natural.drawn(whole, 3, seed=seed) for seed in (1, 1, 2))
        assert len(first.parts) == 3
        assert as_dict(first).items() < as_dict(whole).items()
        assert as_dict(again) == as_dict(first) != as_dict(other)
        assert natural.drawn(whole, None, seed=1) is whole
        with refused(r"partition\.clients=9: there are 8 clients: give", PartitionError):
            natural.drawn(whole, 9, seed=1)


LABELS = np.array([0, 1, 0, 1, 2, 2])


class TestFunction:
    def test_it_is_offered_what_it_takes_and_cannot_change_the_labels_of_the_run(self):
        def split(labels, seed, wanted, num_clients=4, paths=()):
            assert (seed, wanted, num_clients, paths) == (3, "x", 4, ())
            rows = [np.flatnonzero(labels == label)[::-1] for label in range(3)]
            labels[:] = 0
            return rows

        offered, labels = {"seed": 3, "num_clients": None, "paths": None, "clients": None}, LABELS.copy()
        made = natural.by_function(split, {"wanted": "x"}, labels, offered)
        assert [part.tolist() for part in made.parts] == [[0, 2], [1, 3], [4, 5]]
        assert made.names == ()
        assert labels.tolist() == LABELS.tolist()

    def test_it_may_name_its_clients_and_be_a_partial_function_or_a_generator(self):
        made = natural.by_function(lambda labels: {"zoe": [5, 1], "ann": [0]}, {}, LABELS, {})
        assert as_dict(made) == {"ann": [0], "zoe": [1, 5]}
        function = partial(lambda labels, size: (range(k, k + size) for k in (0, 3)), size=3)
        made = natural.by_function(function, {}, LABELS, {})
        assert [part.tolist() for part in made.parts] == [[0, 1, 2], [3, 4, 5]]

    @pytest.mark.parametrize(
        ("made", "line"),
        [
            ([[0, 1], [1]], "image 1 has two clients, 0 and 1"),
            ([[0, 0]], "image 0 has two clients"),
            ([[9]], "indices out of 0 to 5"),
            ([[-1]], "indices out of 0 to 5"),
            ([[]], "client 0 has no image: leave it out"),
            ([[0.5]], "give a list of indices"),
            ([], "made no client"),
        ],
    )
    def test_what_it_returns_is_checked(self, made, line):
        with refused(line, PartitionError):
            natural.by_function(lambda labels: made, {}, LABELS, {})

    def test_what_it_needs_and_there_is_not_is_named_and_its_errors_are_one_line(self):
        with refused(r"needs num_clients: set partition\.clients=N", PartitionError):
            natural.by_function(lambda labels, num_clients: [], {}, LABELS, {"num_clients": None})
        with refused(r"TypeError: .*unexpected keyword argument 'alpha'", PartitionError):
            natural.by_function(lambda labels: [], {"alpha": 1}, LABELS, {})


class TestHeldOut:
    NAMES = tuple(f"c{k}" for k in range(20))

    @settings(derandomize=True)
    @given(st.integers(2, 20), st.floats(0.01, 0.95), st.integers(0, 99))
    def test_a_share_of_at_least_one_is_drawn_by_the_seed_and_somebody_is_left(self, count, share, seed):
        names = self.NAMES[:count]
        if round(share * count) == count:
            with refused("leaves none of", PartitionError):
                natural.held_out(names, share, seed=seed)
            return
        chosen = natural.held_out(names, share, seed=seed)
        assert len(chosen) == max(1, round(share * count))
        assert chosen == [name for name in names if name in chosen] == natural.held_out(names, share, seed=seed)

    def test_seeds_differ_and_names_are_taken_in_the_order_of_the_clients(self):
        assert len({tuple(natural.held_out(self.NAMES, 0.1, seed=seed)) for seed in range(9)}) > 5
        assert natural.held_out(["10", "9", "a"], ["a", 10], seed=0) == ["10", "a"]

    @pytest.mark.parametrize(
        ("given_", "line"),
        [(0, "give the share of the clients"), ([], "name the clients that nobody"),
         (1.0, "in (0, 1), or a list"), (float("nan"), "held_out=nan"),
         (["c1", "C3"], "no client 'C3' (did you mean 'c3'?)"),
         (["zoe"], "'zoe': the clients are c0, c1, c2, c3, c4, ..."),
         (NAMES, "leaves none of 20 clients")],
    )  # fmt: skip
    def test_what_cannot_be_meant(self, given_, line):
        with refused(re.escape(line), PartitionError):
            natural.held_out(self.NAMES, given_, seed=0)


class TestMinSize:
    @settings(derandomize=True)
    @given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(1, 6))
    def test_smaller_clients_are_left_out_and_counted(self, sizes, min_size):
        ends = np.cumsum(sizes)
        parts = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        whole = natural.NamedPartition(parts, tuple(f"c{k:02}" for k in range(len(sizes))))
        kept = [k for k, size in enumerate(sizes) if size >= min_size]
        if not kept:
            with refused(f"the largest client has {max(sizes)} images: lower it", PartitionError):
                natural.large_enough(whole, min_size)
            return
        made = natural.large_enough(whole, min_size)
        assert as_dict(made) == {f"c{k:02}": parts[k].tolist() for k in kept}
        images = sum(size for size in sizes if size < min_size)
        line = f"{len(sizes) - len(kept)} of {len(sizes)} clients, with {images} of {sum(sizes)} images, are left out"
        assert [note.partition(":")[0] for note in made.notes] == ([line] if len(kept) < len(sizes) else [])

    def test_public_images_do_not_count_and_a_function_may_leave_clients_empty(self):
        whole = natural.NamedPartition([np.arange(3), np.arange(3, 8)], ("a", "b"))
        assert natural.large_enough(whole, 2, public=np.array([0, 1])).names == ("b",)
        assert natural.large_enough(whole, 2, public=np.array([3, 4])).names == ("a", "b")
        given_ = (lambda labels: {"a": [0, 1], "b": [], "c": []}, {}, np.zeros(3, dtype=int), {})
        with refused(r"2 of 3 clients \(the first: b, c\) have no image", PartitionError):
            natural.by_function(*given_)
        made = natural.large_enough(natural.by_function(*given_, allow_empty=True), 1)
        assert made.notes[0].startswith("2 of 3 clients, with 0 of 2 images, are left out")
