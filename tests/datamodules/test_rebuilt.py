"""Federations built from packages: which images they have, which are test images, and what a bad package does."""

import base64
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from benchmark.audit.dependencies import pinned
from benchmark.cli.data import write
from datamodules import packages, rebuilt
from datamodules.gathered import Drawn, are_test, gathered
from datamodules.glyphs import CHARACTERS, SAMPLE, glyphs
from datamodules.icons import SHARED, _family, label_of
from datamodules.packages import Package, is_intact
from tests.datamodules.own_data import RNG, load, refused

FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")
SANS = (FONTS / "DejaVuSans.ttf").read_bytes()
WOFF2 = base64.b64decode(  # H and 7 of DejaVu Sans
    "d09GMgABAAAAAAGkAAsAAAAAA4gAAAFZAAJZmQAAAAAAAAAAAAAAAAAAAAAAAAAAH4F2BlYAbApYYgE2AiQDDAsIAAQgBQYHIBvFAkAeCXaMy8aUX8Jj"
    "PMCv6//cmTu7+wD8pmhH2VkM5acGOhQhdYGVkynK+o0DfJLbaeFpxsknXAYb8CYfeHAbKh7PEKP7Aoq98cV4g0rlX0JykDif7CEQ5wOIheWXbwokQznJ"
    "VvFMQjlmmgDPxEwV2Ngh6cfvoxgEoKtixSAgxPJwTEbWMztPaF/j0seWJtUkJbk0LcQkiQgAMH7p6MWG6WtcrvZfbbiQXxPeIwBSpGhFMUZJBbSKuiIn"
    "ChJ9jfv/H5X/X/tPAJSCroAEfZsCxm1PQApySFCDDkAEBCFfuqvK9uJd5btKYkVWsqM4K4/FxUceNrXLx333Oz72uKn09MMXv1p8Tfbw2uVXl68BAcmM"
    "81saLh6aVzHoa6GjAO7uLf/g5Pf/KJ9R9AIFQCC/5l8b5f/++CsUFB9CGm9amjW4lIuuCkjTyXpYrlQAAAUR5KTA/71mAgAA"
)
SQUARE = '<path d="M4 4h16v16H4z"/>'


def archive(file: Path, content: dict[str, bytes]) -> Package:
    """An archive as npm makes them, and its line of a lock file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as tar:
        for name, data in {"package.json": b'{"license": "MIT"}', "LICENSE": b"By Anna\n", **content}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    digest = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
    return Package(f"@own/{file.name.removeprefix('own-').removesuffix('-1.0.0.tgz')}", "1.0.0", f"sha512-{digest}")


def lock(folder: Path, name: str, given: list[Package]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.lock").write_text("# a rule\n" + "".join(f"{' '.join(each)}\n" for each in given))


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder of archives from which an `npm` in the path fetches; the lock files are in `tmp_path/locks`."""
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.write_text(
        "#!/bin/sh\n"  # npm pack --options --pack-destination=FOLDER NAME@1.0.0 ...
        'from="$REGISTRY"; for word; do case $word in --pack-destination=*) to="${word#*=}";;\n'
        '--prefer-offline) if [ -d "$REGISTRY/cache" ]; then from="$REGISTRY/cache"; fi;; @own/*)\n'
        'name="${word#@own/}"; name="${name%@*}"; echo "$name" >> "$REGISTRY/calls"\n'
        'cp "$from/own-$name-1.0.0.tgz" "$to/" 2>/dev/null || { code=$(cat "$from/code" || echo E404)\n'
        'echo "{\\"error\\": {\\"code\\": \\"$code\\", \\"summary\\": \\"no such package\\"}}"\n'
        "exit 1; };; esac; done\n"
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("REGISTRY", str(tmp_path / "registry"))
    monkeypatch.setattr(packages, "LOCKS", tmp_path / "locks")
    return tmp_path / "registry"


@pytest.fixture
def faces(registry, tmp_path):
    """Typefaces, of which one has a second weight that lacks nearly all characters."""
    files = {
        "mono": "DejaVuSansMono", "roman": "cmr10", "sans": "DejaVuSans", "serif": "DejaVuSerif",
        "times": "STIXGeneral",
    }  # fmt: skip
    styles = {name: {"400": file} for name, file in files.items()}
    styles["serif"]["700"] = "DejaVuSansDisplay"
    given = [
        archive(
            registry / f"own-{name}-1.0.0.tgz",
            {f"files/{name}-latin-{w}-normal.woff2": (FONTS / f"{f}.ttf").read_bytes() for w, f in fonts.items()},
        )
        for name, fonts in styles.items()
    ]
    lock(tmp_path / "locks", "typefaces", given)
    (tmp_path / "locks" / "typefaces.json").write_text('{"lock": "", "sha256": "", "tools": {"Pillow": "0"}}')
    return given


def build(root: Path, name: str = "typefaces"):
    return rebuilt.build(name, root, lambda step: None, lambda share: None)


def test_a_federation_is_built_read_and_built_again_with_the_same_hash(faces, tmp_path):
    made, facts = build(tmp_path)
    write("typefaces", tmp_path, made, facts)
    source = load(tmp_path, "typefaces")
    assert source.sha256 == facts["sha256"] == build(tmp_path)[1]["sha256"]
    assert source.classes == tuple(CHARACTERS)
    assert {*source.train.clients, *source.test.clients} == {each.client for each in faces}
    assert (facts["clients"], facts["held out"], facts["images"]) == (5, 0, {"train": 250, "test": 60})
    assert "| @own/sans | 1.0.0 | MIT | By Anna |" in (tmp_path / "typefaces.md").read_text()
    assert (tmp_path / "registry" / "calls").read_text().split() == [each.client for each in faces]  # once


def test_what_is_left_of_a_stopped_or_damaged_download_is_used_or_fetched_again(faces, registry, tmp_path):
    folder = tmp_path / "packages" / "typefaces"
    folder.mkdir(parents=True)
    for package in faces:
        (folder / package.file).write_bytes(
            (registry / package.file).read_bytes()[: 1000 if package is faces[3] else None]
        )
    build(tmp_path)
    assert (registry / "calls").read_text().split() == ["serif"]
    assert all(is_intact(folder / package.file, package) for package in faces)
    assert len(list(folder.iterdir())) == 5


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (
            lambda file: file.write_bytes(file.read_bytes() + b"\0"),
            "@own/serif@1.0.0: what npm fetched has another hash",
        ),
        (Path.unlink, r"npm cannot fetch @own/mono@1.0.0, .* \(no such package\)"),
    ],
)
def test_a_package_that_is_not_the_locked_one_is_not_used(faces, registry, tmp_path, damage, line):
    damage(registry / faces[3].file)
    with refused(line):
        build(tmp_path)
    assert not (tmp_path / "packages" / "typefaces" / faces[3].file).exists()


@pytest.mark.parametrize(("code", "cached"), [("ETARGET", None), ("EINTEGRITY", None), ("", b"of another day")])
def test_where_npms_cache_is_older_or_wrong_the_registry_is_asked(faces, registry, tmp_path, code, cached):
    (registry / "cache").mkdir()
    (registry / "cache" / "code").write_text(code)
    for package in faces if cached else ():
        (registry / "cache" / package.file).write_bytes(cached)
    build(tmp_path)
    assert all(is_intact(tmp_path / "packages" / "typefaces" / package.file, package) for package in faces)


def test_a_full_disk_is_an_error_that_names_it(faces, registry, tmp_path):
    (registry / "code").write_text("ENOSPC")
    (registry / faces[3].file).unlink()
    with pytest.raises(OSError, match=r"No space left on device: '.*/packages/typefaces or the cache of npm'"):
        build(tmp_path)


def test_what_a_killed_process_has_left_is_removed(faces, tmp_path):
    left = tmp_path / "packages" / "typefaces" / ".fetched" / faces[0].file
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a part")
    build(tmp_path)
    assert not left.parent.exists()


def test_without_npm_what_was_fetched_is_enough(faces, tmp_path, monkeypatch):
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", "")
    with refused(r"missing or damaged: own-mono-1.0.0.tgz, .* \(5 in all\), and there is no npm"):
        build(tmp_path)
    monkeypatch.setenv("PATH", path)
    before = build(tmp_path)[1]
    monkeypatch.setenv("PATH", "")
    assert build(tmp_path)[1] == before


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("typefaces", {"files/x-latin-400-normal.woff2": b"no font"}, "bad, 400-normal, cannot be read as a font"),
        ("typefaces", {"files/x-greek-400-normal.woff2": SANS}, "@own/bad@1.0.0 has no file"),
        ("typefaces", {"files/x-latin-400-normal.woff2": WOFF2}, "no client has 20 different images"),
        ("icons", {"icons.json": b"{"}, "own-bad-1.0.0.tgz has no icons of Iconify"),
        ("icons", {}, "own-bad-1.0.0.tgz has no icons of Iconify"),
        ("icons", {"icons.json": b'{"icons": {"home": {"body": "<path"}}}'}, "bad, icon home cannot be drawn"),
    ],
)
def test_a_package_that_cannot_be_drawn_is_one_line(registry, tmp_path, monkeypatch, name, content, line):
    if "home" in str(content):
        pytest.importorskip("resvg_py")
    lock(tmp_path / "locks", name, [archive(registry / "own-bad-1.0.0.tgz", content)])
    monkeypatch.setattr("datamodules.icons.SHARED", 1)
    with refused(line):
        build(tmp_path, name)


def test_glyphs_are_centred_whole_and_of_one_size():
    images = glyphs(SANS, "")
    assert list(images) == list(CHARACTERS)
    for image in images.values():
        (top, bottom), (left, right) = (np.flatnonzero(image.any(axis))[[0, -1]] for axis in (1, 0))
        assert top > 0
        assert left > 0
        assert abs(top + bottom - 27) <= 1
        assert abs(left + right - 27) <= 1
    height = {character: np.count_nonzero(image.any(1)) for character, image in images.items()}
    assert height["H"] == 18
    assert height["x"] < height["X"]


def test_web_fonts_are_read_and_characters_that_a_font_lacks_are_left_out():
    images = glyphs(WOFF2, "")
    assert sorted(images) == ["7", "H"]
    assert np.abs(images["7"].astype(int) - glyphs(SANS, "")["7"]).max() <= 40  # other hints


def images_of(client: str, labels: str, variants: str = "a") -> list[Drawn]:
    return [
        Drawn(client, label, variant, RNG.integers(0, 256, (4, 4), dtype=np.uint8))
        for label in labels
        for variant in variants
    ]


def test_empty_images_second_ones_copies_and_small_clients_are_left_out():
    first, small = images_of("first", CHARACTERS[:30]), images_of("small", CHARACTERS[:19])
    first += [Drawn("first", "z", "a", np.full((4, 4), 63, np.uint8)), first[0]._replace(label="z", variant="b")]
    second = [*images_of("second", CHARACTERS[:20]), first[3]._replace(client="second")]
    copy = [each._replace(client="copy") for each in first[:30]] + images_of("copy", CHARACTERS[30:60])
    made = gathered([first, small, copy, second])
    assert made.left_out == {"empty": 1, "twice": 2, "of copied clients": 60, "of small clients": 19}
    names = np.concatenate([made.arrays["train_names"], made.arrays["test_names"]])
    assert sorted(names) == sorted("/".join(each[:3]) for each in [*first[:30], *second[:20]])


def test_a_tenth_of_the_clients_and_a_fifth_of_the_classes_of_others_are_tested_whatever_the_order():
    drawn = [each for k in range(30) for each in images_of(f"client{k}", CHARACTERS[: 20 + k], "ab")]
    clients, labels = ([each[k] for each in drawn] for k in (0, 1))
    test = are_test(clients, labels)
    by_client: dict[str, dict[str, set[bool]]] = {}
    for client, label, tested in zip(clients, labels, test.tolist(), strict=True):
        by_client.setdefault(client, {}).setdefault(label, set()).add(tested)
    assert all(len(found) == 1 for classes in by_client.values() for found in classes.values())  # both variants
    shares = [sum(found == {True} for found in classes.values()) / len(classes) for classes in by_client.values()]
    assert shares.count(1) == 3
    assert all(share == 1 or abs(share - 0.2) < 0.03 for share in shares)
    rows = RNG.permutation(len(drawn))
    assert np.array_equal(are_test([clients[k] for k in rows], [labels[k] for k in rows]), test[rows])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("home", "home"), ("house-outline", "home"), ("baseline-home", "home"), ("home-fill-sharp", "home"),
        ("home-add", "home-add"), ("bold", "bold"), ("line-chart", "line-chart"), ("twitter-line", None),
    ],
)  # fmt: skip
def test_names_of_icons_are_joined_without_their_style(name, label):
    assert label_of(name) == label


def test_of_several_sizes_the_largest_is_taken_and_no_turned_or_animated_icon(tmp_path):
    icons = {f"home-{size}-filled": {"body": f"<path d='M{size}'/>", "width": size} for size in (16, 24)}
    icons |= {"spin": {"body": "<path><animate/></path>"}}
    aliases = {"house": {"parent": "home-16-filled"}, "turned": {"parent": "home-16-filled", "rotate": 1}}
    content = json.dumps({"icons": icons, "aliases": aliases, "height": 20}).encode()
    archive(tmp_path / "own-some-1.0.0.tgz", {"icons.json": content})
    found = _family(tmp_path / "own-some-1.0.0.tgz")
    assert list(found) == ["home-filled", "house"]
    assert "viewBox=\"0 0 24 20\"><path d='M24'/>" in found["home-filled"]


def test_icons_that_enough_families_have_are_drawn(registry, tmp_path, monkeypatch):
    pytest.importorskip("resvg_py")
    monkeypatch.setattr("datamodules.icons.SHARED", 2)
    monkeypatch.setattr("datamodules.gathered.FEWEST", 1)
    given = []
    for side, family in enumerate(("one", "two"), 10):
        icons = {
            name: {"body": SQUARE.replace("16", str(side - 2 * k))} for k, name in enumerate(("home", "star", "key"))
        }
        icons |= {f"only-{family}": {"body": SQUARE}}
        content = json.dumps({"icons": icons, "width": 24, "height": 24}).encode()
        given.append(archive(registry / f"own-{family}-1.0.0.tgz", {"icons.json": content}))
    lock(tmp_path / "locks", "icons", given)
    made, facts = build(tmp_path, "icons")
    assert facts["classes"] == 3
    images = np.concatenate([made.arrays["train_images"], made.arrays["test_images"]])
    names = [*made.arrays["train_names"], *made.arrays["test_names"]]
    image = images[names.index("two/home/home")]  # 11 of 24 pixels become 14.7 of 32, from 5.3
    assert image.shape == (32, 32)
    assert (image[6:20, 6:20] == 255).all()
    assert image.sum() / 255 == pytest.approx((11 * 32 / 24) ** 2, rel=0.02)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    first, second = (each.ravel().astype(float) for each in (one, other))
    return float(first @ second / max(np.linalg.norm(first) * np.linalg.norm(second), 1))


def test_nearly_equal_images_are_those_of_a_slow_retelling():
    drawn = np.random.default_rng(3)
    base = drawn.integers(1, 256, (40, 5, 5))
    noise = drawn.integers(-14, 15, (40, 4, 5, 5))
    images = np.clip(base[:, None] + noise, 0, 255).astype(np.uint8).reshape(-1, 5, 5)
    images[:2] = 0
    clients = np.array(["a", "b", "a", "c"] * 40)  # nobody trains on c
    labels = np.array(["one", "one", "one", "one", "one", "two", "one", "one"] * 20)
    is_test = np.array([False, False, True, True] * 40)
    clients[3], labels[3], images[3] = "d", "two", images[5]  # one of its two is found: half
    clients[7], labels[7], images[7] = "d", "two", 255 - images[5]
    given = {"images": images, "labels": labels, "clients": clients}
    arrays = {f"train_{kind}": values[~is_test] for kind, values in given.items()}
    arrays |= {f"test_{kind}": values[is_test] for kind, values in given.items()}
    likest = np.array([
        max(
            cosine(images[i], images[j])
            for j in np.flatnonzero(~is_test)
            if labels[i] == labels[j] and clients[i] != clients[j]
        )
        for i in np.flatnonzero(is_test)
    ])  # fmt: skip
    found, tested = likest > rebuilt.ALIKE, clients[is_test]
    shares: list[float] = []
    counted = rebuilt.nearly_equal(arrays, shares.append)
    unseen = found[np.isin(tested, ["c", "d"])].sum()
    assert counted["images"] == {"test": found.sum(), "of clients nobody trains on": unseen}
    assert counted["clients"] == [name for name in "acd" if found[tested == name].mean() >= 0.5]
    assert "d" in counted["clients"]
    assert 0 < unseen < found.sum() < len(found)
    assert any(rebuilt.ALIKE**2 < each < rebuilt.ALIKE for each in likest)  # so the bound is of the cosine
    assert shares == [0.5, 1.0]


def test_the_sample_needs_no_file_and_holds_a_typeface_out(tmp_path):
    source = load(tmp_path, "typefaces-sample")
    held_out = set(source.test.clients) - set(source.train.clients)
    assert (set(source.test.clients), len(held_out)) == (set(SAMPLE), 1)
    assert source.classes == tuple(CHARACTERS)


@pytest.mark.parametrize("name", rebuilt.FEDERATIONS)
def test_the_listed_facts_are_of_the_lock_file_and_the_pinned_tool(name):
    facts = rebuilt.listed(name)
    file = packages.LOCKS / f"{name}.lock"
    assert facts["lock"] == hashlib.sha256(file.read_bytes()).hexdigest(), "build it again, see datamodules/rebuilt.py"
    known = pinned(Path(__file__).parents[2] / "constraints.txt")
    assert facts["tools"] == {tool: known[package] for tool, package in rebuilt.FEDERATIONS[name].tools.items()}
    page = Path(__file__).parents[2] / "docs" / "reference" / "federations.md"
    text = " ".join(page.read_text().split())
    assert f"of at least {SHARED} families" in text
    assert f"cosine of their pixels above {rebuilt.ALIKE})" in text
    locked = packages.locked(name)
    assert len({package.name for package in locked}) == len(locked) >= facts["clients"]
    assert all(package.integrity.startswith("sha512-") for package in locked)
