"""The page of published natural sets: its commands make a first round of a tiny set in the layout of its owner."""

import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from benchmark.cli.runs import configs_of
from benchmark.experiment.experiment import Experiment
from benchmark.tracking.progress import Display
from tests.datamodules.own_data import save

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "natural-clients.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)[,:\n].*?\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
SHORT = (
    "federation.rounds=1", "training.steps=1", "training.batch_size=4", "logger=csv", "accelerator=cpu", "threads=1",
)  # fmt: skip


def images(root: Path, *patterns: str) -> list[str]:
    """Six images of each pattern, whose `*` is their number."""
    paths = [pattern.replace("*", str(k)) for pattern in patterns for k in range(6)]
    for path in paths:
        save(root / path)
    return paths


def table(file: Path, *rows: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(rows) + "\n")


def femnist(data: Path) -> None:
    users = [f"f{k:04}_01" for k in range(4)]
    of_user = {"x": [[k / 9] * 784 for k in range(8)], "y": [k % 2 for k in range(8)]}
    content = json.dumps({"users": users, "num_samples": [8] * 4, "user_data": dict.fromkeys(users, of_user)})
    for split in ("train", "test"):
        table(data / f"leaf/data/femnist/data/{split}/all_data_0_niid_0_keep_0_{split}_9.json", content)


def parquet(data: Path) -> None:
    rows = range(40)
    content = {"image": [Image.fromarray(np.full((28, 28), 6 * k, dtype=np.uint8)) for k in rows]}
    content |= {"writer_id": [f"f{k % 4:04}" for k in rows], "hsf_id": list(rows), "character": [k % 2 for k in rows]}
    names = {"image": datasets.Image(), "writer_id": datasets.Value("string"), "hsf_id": datasets.Value("int64")}
    features = datasets.Features({**names, "character": datasets.ClassLabel(names=["a", "b"])})
    (data / "femnist/data").mkdir(parents=True)
    made = datasets.Dataset.from_dict(content, features=features)
    made.to_parquet(str(data / "femnist/data/train-00000-of-00001.parquet"))


def pacs(data: Path) -> None:
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        images(data / "PACS/kfold" / domain, "dog/pic_*.png", "house/pic_*.png")


def domainnet(data: Path) -> None:
    for domain in ("clipart", "quickdraw", "real"):
        for split in ("train", "test"):
            paths = images(
                data / "domainnet", *(f"{domain}/{name}/{domain}_{split}_*.jpg" for name in ("bird", "zebra"))
            )
            table(data / f"domainnet/{domain}_{split}.txt", *(f"{path} {'zebra' in path:d}" for path in paths))


def camelyon(data: Path) -> None:
    rows = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for k in range(48):
        patient, node, center, split = f"{k % 4:03}", k % 2, k % 3, k // 36
        name = f"patient_{patient}_node_{node}"
        save(data / f"camelyon17_v1.0/patches/{name}/patch_{name}_x_{3328 + k}_y_{21792}.png")
        rows.append(f"{k},{patient},{node},{3328 + k},21792,{k // 3 % 2},{k % 5},{center},{split}")
    table(data / "camelyon17_v1.0/metadata.csv", *rows)


def inaturalist(data: Path) -> None:
    root, train, test = data / "inaturalist", ["user_id,image_id,class\r"], ["image_id,class\r"]
    for k in range(100):
        save(root / f"train_val_images/Aves/Accipiter badius {k % 2}/{k:04x}.jpg")
        (test if k < 20 else train).append(f"{'' if k < 20 else f'{k % 4},'}{k:04x},{k % 2}\r")
    table(root / "inaturalist-user-120k/federated_train_user_120k.csv", *train)
    table(root / "inaturalist-user-120k/test.csv", *test)


def omniglot(data: Path) -> None:
    for folder, alphabet in (("images_background", "Greek"), ("images_evaluation", "Latin")):
        for k in range(80):
            save(data / f"omniglot/{folder}/{alphabet}/character0{k // 20}/{k // 20:04}_{k % 20 + 1:02}.png")


SETS = {
    "FEMNIST": (femnist, 4, 1, (3, 1)),
    "A Hugging Face data set with a column of clients": (parquet, 4, 1, (3, 1)),
    "PACS": (pacs, 4, 1, (3, 1)),
    "DomainNet": (domainnet, 3, 1, (2, 1)),
    "Camelyon17-WILDS": (camelyon, 3, 1, (2, 1)),
    "iNaturalist-User-120k": (inaturalist, 4, 0, (None, None)),
    "Omniglot": (omniglot, 20, 2, (13, 2)),  # a fifth of so few images has none of five drawers
}
"""Section of the page -> what writes its set, its clients and how many of them are held out; of both, those tested."""


def test_every_section_has_a_set():
    assert SECTIONS.keys() == SETS.keys()


@pytest.mark.parametrize("name", SETS)
def test_the_commands_of_a_set_make_its_first_round(name, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmark.tracking.plots.of_run", lambda *_: {})  # which are most of the time
    write, clients, out, tested = SETS[name]
    write(tmp_path)
    *listing, run = re.findall(r"^```\n(.*?)^```$", SECTIONS[name], re.DOTALL | re.MULTILINE)
    for command in listing:
        subprocess.run(["bash", "-ec", command.replace("/data", str(tmp_path), 1)], check=True)
    words = shlex.split(run.replace("\\\n", " ").replace("/data", str(tmp_path), 1))[4:]
    own = [
        *SHORT, "data.image_size=16", "partition.clients=null", f"output={tmp_path / 'runs'}",
        f"data.cache={tmp_path / 'cache'}",
    ]  # fmt: skip
    keys = {word.partition("=")[0] for word in own}
    ((config,), _) = configs_of([*own, *(word for word in words if word.partition("=")[0] not in keys)])
    record = Experiment(config, Display(Console(file=io.StringIO()))).execute()
    assert len(record["federation"]["names"]) == clients - out
    scores = record["scores"].get("by-client/v1", {})
    assert (scores.get("clients"), scores.get("clients_unseen")) == tested
