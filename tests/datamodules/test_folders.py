import importlib
import warnings
from pathlib import Path

import numpy as np
import pytest

from datamodules import folders, sources
from datamodules.sources import HELD_OUT
from tests.datamodules.own_data import load, make, picture, refused, save


def counts(names: np.ndarray | None) -> dict[str, int]:
    return dict(zip(*np.unique(names, return_counts=True), strict=True))


class TestLayouts:
    def test_clients_and_classes(self, tmp_path):
        make(tmp_path / "mine", "train test", "anna bert", "cat dog")
        mine = load(tmp_path)
        assert mine.classes == ("cat", "dog")
        assert counts(mine.train.clients) == counts(mine.test.clients) == {"anna": 10, "bert": 10}
        assert mine.train.labels.tolist() == [0] * 10 + [1] * 10
        assert mine.train.paths[0] == "anna/cat/0.png"
        assert mine.notes == ()

    def test_test_images_may_have_no_clients_and_clients_no_labels(self, tmp_path):
        make(tmp_path / "mine", "train", "anna bert", "cat dog")
        make(tmp_path / "mine", "test", "cat dog")
        mine = load(tmp_path, client_folders=True)
        assert mine.test.clients is None
        assert mine.test.labels.tolist() == [0] * 5 + [1] * 5
        make(tmp_path / "plain", "train", "anna bert")
        before = load(tmp_path, "plain", client_folders=True)
        assert (before.labelled, before.notes) == (False, (HELD_OUT,))
        assert counts(before.train.clients) == {"anna": 4, "bert": 4}
        assert counts(before.test.clients) == {"anna": 1, "bert": 1}
        (tmp_path / "plain" / "train" / "bert").rename(tmp_path / "plain" / "train" / "carl")
        after = load(tmp_path, "plain", client_folders=True)
        assert before.sha256 == after.sha256  # of the same images; another client is another cache
        assert counts(after.train.clients) == {"anna": 4, "carl": 4}

    def test_without_train_and_test_a_fifth_is_held_out(self, tmp_path):
        make(tmp_path / "mine", images=10)
        mine = load(tmp_path)
        assert (len(mine.train.labels), len(mine.test.labels), mine.labelled) == (8, 2, False)
        assert mine.train.clients is None
        assert not set(mine.train.paths.tolist()) & set(mine.test.paths.tolist())
        make(tmp_path / "other", "cat dog", images=10)
        other = load(tmp_path, "other")
        assert other.classes == ("cat", "dog")
        assert np.bincount(other.test.labels).tolist() == [2, 2]
        assert other.notes == mine.notes == (HELD_OUT,)

    def test_folders_need_not_be_classes(self, tmp_path):
        make(tmp_path / "mine", "train test", "monday tuesday")
        mine = load(tmp_path, labels=False)
        assert (mine.labelled, len(mine.train.labels)) == (False, 10)
        assert mine.sha256 != load(tmp_path).sha256

    def test_labelled_images_beside_them_are_for_the_protocols(self, tmp_path):
        make(tmp_path / "mine", "train", "anna bert")
        make(tmp_path / "whole", "anna bert")
        make(tmp_path / "classes", "cat dog")
        alone, labelled = load(tmp_path, "whole", client_folders=True), load(tmp_path, "classes")
        for name in ("mine", "whole", "classes"):
            make(tmp_path / name, "probe", "train test", "cat dog")
        mine = load(tmp_path, client_folders=True)
        assert (mine.labelled, mine.probe.classes) == (False, ("cat", "dog"))
        assert len(mine.train.labels) + len(mine.test.labels) == 10
        whole = load(tmp_path, "whole", client_folders=True)
        assert counts(whole.train.clients) == {"anna": 5, "bert": 5}  # none is held out, as none would be scored
        assert whole.test.images.shape == (0, *whole.train.images.shape[1:])
        assert (len(whole.test.labels), whole.notes, whole.probe.labelled) == (0, (), True)
        asked = load(tmp_path, "whole", client_folders=True, hold_out=True)
        assert counts(asked.train.clients) == {"anna": 4, "bert": 4}
        assert (asked.notes, asked.sha256) == ((HELD_OUT,), alone.sha256)
        beside = load(tmp_path, "classes")  # images with labels keep their held-out fifth
        assert (len(beside.test.labels), beside.sha256) == (2, labelled.sha256)

    def test_classes_that_test_lacks_are_named_and_names_and_links_that_cannot_be_are_refused(self, tmp_path):
        make(tmp_path / "mine", "train", "a b c d e f g h")
        make(tmp_path / "mine", "test", "a b")
        assert load(tmp_path).notes == ("test has no image of 6 of 8 classes: c, d, e, f, g, h",)
        long = tmp_path / "mine" / "train" / ("x" * 201)
        long.mkdir()
        with refused("more than 200"):
            load(tmp_path)
        long.rmdir()
        (tmp_path / "mine" / "train" / "a" / "up").symlink_to(tmp_path / "mine" / "train")
        with refused("a link to a folder that it lies in"):
            load(tmp_path)

    def test_a_folder_without_images_says_what_it_holds(self, tmp_path):
        (tmp_path / "mine" / "raw").mkdir(parents=True)
        for file in ("a.txt", "raw/b.txt"):
            (tmp_path / "mine" / file).touch()
        with refused(r"no image in .*mine: it holds raw/, 2 \.txt; looked for .*mine/<class>/<image>, or train/"):
            load(tmp_path)

    @pytest.mark.parametrize(
        ("folders", "line"),
        [
            ((("test", "cat"),), "has test/ and no folder train/"),
            ((("train", "cat"), ("train", "anna", "dog")), "lie at several depths"),
            ((("train", "a", "b", "c"),), "lies too deep"),
            ((("train", "cat dog"),), "if the folders in train/ are clients, set partition.name=folders"),
            ((("train", "cat dog"), ("test", "cat cow")), r"class 'cow' is in test and not in train \(1 such\)"),
            ((("train", "cat dog"), ("train", "cow/")), r"no image in .*mine/train/cow: fill it"),
            ((("train/",), ("test", "cat")), r"no image in .*mine/train: it holds nothing; the layout"),
        ],
    )
    def test_other_layouts_are_one_line(self, tmp_path, folders, line):
        for levels in folders:  # one that ends in / is empty
            if levels[-1].endswith("/"):
                tmp_path.joinpath("mine", *levels).mkdir(parents=True)
            else:
                make(tmp_path / "mine", *levels)
        with refused(line):
            load(tmp_path)


class TestTable:
    def write(self, tmp_path: Path, text: str | bytes) -> None:
        (tmp_path / "mine.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        make(tmp_path, images=6)

    def test_paths_labels_clients_and_splits(self, tmp_path):
        rows = [f"{k}.png,{'cat' if k % 2 else 'dog'},c{k % 3},{'test' if k > 3 else 'train'}" for k in range(6)]
        text = "\n".join(["path,label,client,split", *rows])
        self.write(tmp_path, text)
        mine = load(tmp_path)
        assert (mine.classes, mine.test.labels.tolist()) == (("cat", "dog"), [0, 1])
        assert mine.train.clients.tolist() == ["c1", "c0", "c0", "c2"]
        (tmp_path / "mine.csv").write_text(text.replace("0.png,dog", "0.png,cat"))
        assert load(tmp_path).sha256 != mine.sha256
        (tmp_path / "mine.csv").write_text("path\n" + "\n".join(f"{k}.png" for k in range(6)))
        assert not load(tmp_path).labelled

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("file,label\n0.png,a", "no column 'path': the columns are path, and any of label, client, split"),
            ("path;label\n0.png;a", "no column 'path': .*; separate columns by commas, not by semicolons"),
            ("path,lable\n0.png,a", "a column 'lable'"),
            ("path,label\n../0.png,a", "line 2: '../0.png' leads out of the folder"),
            ("path,label\n/etc/passwd,a", "leads out of the folder"),
            ("path,label\n0.png,a\n./0.png,a", "line 3: 0.png is listed twice"),
            ("path,label\n9.png,a", "there is no image .*9.png"),
            ("path,label\n0.png,a\n1.png,", "1.png of train has no label, others have"),
            ("path,label\n0.png,a,b", "more values than columns"),
            ("path,label\n0.png,a\x1b[2J", "characters that cannot be printed"),
            ("path,split\n0.png,fold2", "split='fold2': give train or test"),
            ("path,split\n0.png,val", "lists no training image"),
            ("path\n", "lists no training image"),
            ("", "no column 'path'"),
            (f"path,client\n0.png,{'x' * 201}", "a name of more than 200 characters"),
            ('path\n"0.png', "is no CSV file in UTF-8"),
            (b"\xff\xfe\x00\x01", "is no CSV file in UTF-8"),
        ],
    )
    def test_hostile_tables_are_one_line(self, tmp_path, text, line):
        self.write(tmp_path, text)
        with refused(line):
            load(tmp_path)


def test_a_limit_is_drawn_by_class_from_train_and_test(tmp_path):
    make(tmp_path / "mine", "train test", "cat dog", images=20)
    mine = load(tmp_path)
    for limit in (0.5, 20):
        part = sources.limited(mine, limit)
        assert np.bincount(part.train.labels).tolist() == np.bincount(part.test.labels).tolist() == [10, 10]
        assert part.sha256 == mine.sha256
        assert np.array_equal(part.train.images, mine.train.images[part.rows])
        assert part.train.paths.tolist() == mine.train.paths[part.rows].tolist()
    (line,) = part.notes
    assert line.startswith("only 20 of 40 training and 20 of 40 test images (data.limit=20); natural clients")
    for limit in (0, -1, 41, 2.5):
        with refused("give a share in"):
            sources.limited(mine, limit)


def test_images_of_several_sizes_ask_for_one(tmp_path):
    make(tmp_path / "bare", "cat dog")  # a message names the file: no train/ is there
    save(tmp_path / "bare" / "dog" / "9.png", picture((6, 8)))
    with refused(rf"differ in size: .*{tmp_path}/bare/dog/9\.png is 8 x 6"):
        load(tmp_path, "bare")
    make(tmp_path / "mine", "train test", "cat dog")
    save(tmp_path / "mine" / "test" / "dog" / "9.png", picture((6, 8)))
    with refused(r"test/dog/9\.png is 8 x 6; set data\.image_size=N"):
        load(tmp_path)
    with refused(r"set data\.resize"):
        load(tmp_path, image_size=4)
    for given_, channels in (({}, 3), ({"channels": 1}, 1)):
        assert load(tmp_path, image_size=4, resize="pad", **given_).train.images.shape[1:] == (channels, 4, 4)


def test_a_truncated_image_is_one_line(tmp_path):
    """Pillow also warns of it."""
    make(tmp_path / "mine", "train test", "cat dog")
    whole = tmp_path / "whole.tif"
    save(whole)
    (tmp_path / "mine" / "train" / "cat" / "9.tif").write_bytes(whole.read_bytes()[:12])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        importlib.reload(folders)  # it says which warnings are not shown
        with refused(r"9\.tif"):
            load(tmp_path)
    assert not caught
