"""The documentation site as it is built: its search, its figures in the dark theme, its size in a browser."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

ROOT = Path(__file__).parent.parent
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 800}
FIRST = {
    "install": "start/install.html", "installation": "start/install.html",
    "out of memory": "how-to/troubleshooting.html", "OOM": "how-to/troubleshooting.html",
    "custom augmentation": "how-to/recipes.html", "scenario file": "how-to/scenario-files.html",
    "resume": "how-to/run.html",
}  # fmt: skip
"""What a reader searches for -> the page that comes first."""
pytestmark = pytest.mark.long  # the build alone takes half a minute


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


def pages(site: Path) -> list[Path]:
    """The pages that a reader sees; others lead on to one of them."""
    return [page for page in sorted(site.rglob("*.html")) if "<title>Moved<" not in page.read_text(encoding="utf-8")]


def test_a_search_finds_the_right_page_first(site, browser):
    page = browser.new_page(viewport=DESK)
    page.goto((site / "index.html").as_uri())
    found = {}
    for words in FIRST:
        page.reload()
        page.locator("input.md-search__input").fill(words)
        page.locator("input.md-search__input").press("End")  # the site listens to keys
        told = page.locator(".md-search-result__meta", has_text="matching").inner_text()
        if told.startswith("No "):
            continue
        address = urlparse(page.locator(".md-search-result__item > a").first.get_attribute("href")).path
        found[words] = Path(unquote(address)).relative_to(site).as_posix()
    page.close()
    assert found == FIRST


@pytest.mark.parametrize("system", ["light", "dark"])
def test_in_the_dark_theme_a_figure_follows_it_or_stands_on_a_light_card(site, browser, system):
    """Also where the reader chose the dark theme and the system has the light one."""
    page = browser.new_page(viewport=DESK, color_scheme=system)
    seen = {}
    for file in pages(site):
        figures = re.findall(r'<img [^>]*src="([^"]+\.svg)"', file.read_text(encoding="utf-8"))
        if not figures:
            continue
        page.goto(file.as_uri())
        if page.locator("body").get_attribute("data-md-color-scheme") != "slate":
            page.locator("label[title='Dark theme']").click()
        ground, scheme = (
            "image => getComputedStyle(image).backgroundColor",
            "image => getComputedStyle(image).colorScheme",
        )
        for figure in figures:
            image = page.locator(f'img[src="{figure}"]')
            follows = "prefers-color-scheme: dark" in (file.parent / unquote(figure)).read_text(encoding="utf-8")
            seen[figure] = follows  # else its ink is dark
            assert image.evaluate(scheme) == "dark"
            assert (image.evaluate(ground) == "rgba(0, 0, 0, 0)") == follows, (file.name, figure)
    page.close()
    assert {True, False} == {*seen.values()}
    assert seen["pictures/round.svg"]


def test_no_page_is_wider_than_a_phone_also_with_all_folds_open(site, browser):
    page = browser.new_page(viewport=PHONE)
    wide = {}
    for file in pages(site):
        page.goto(file.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
        wide[file.relative_to(site).as_posix()] = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert {name: width for name, width in wide.items() if width > PHONE["width"]} == {}


def test_the_board_is_shorter_than_ten_screens_and_its_tables_unfold(site, browser):
    page = browser.new_page(viewport=DESK)
    page.goto((site / "board.html").as_uri())
    assert page.evaluate("document.documentElement.scrollHeight") < 10 * DESK["height"]
    page.get_by_text(re.compile(r"The board: \d+ rows")).first.click()
    page.get_by_role("columnheader", name="linear (%)").first.wait_for()
    page.close()
