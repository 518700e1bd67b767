"""What pages say in words of our numbers: every sentence is made from the records, and stands on its page.

A test fails when records move a number in a sentence, or when a sentence no longer holds: correct the page. Sections
that are held leave no digit without its sentence in `tests/statements`, but for those of `PLAIN`.
"""

import re
from collections.abc import Callable, Iterator

import pytest

from tests.statements import controls, newer, results, studies, terms
from tests.statements.boards import ROOT

END = "\0"
"""No page has it: the section is the last one."""
RESULTS, ATTACKS = "docs/explanation/results.md", "docs/how-to/attacks.md"
HELD: dict[tuple[str, str, str], Callable[[], Iterator[str]]] = {
    (RESULTS, "## What the small scenarios show, and what not", "## Strong drift"): results.small_scenarios,
    ("docs/studies/flesd.md", "**Reading.**", "155 local steps, at two"): studies.flesd_study,
    ("docs/studies/fedsc.md", "**Reading.**", "Play it again"): studies.fedsc_study,
    ("docs/studies/epsilon.md", "**Reading.**", "Play it again"): studies.epsilon_study,
    ("docs/studies/uplink.md", "**Reading.**", "Play it again"): studies.uplink_study,
    ("docs/studies/adapt.md", "**Reading.**", "Play it again"): studies.adapt_study,
    ("docs/studies/natural.md", "**Reading.**", "<!-- twins"): studies.natural_study,
    ("docs/studies/orchestra.md", "**Reading.**", "Play it again"): studies.orchestra_study,
    ("docs/methods/orchestra.md", "| `method.epsilon`, at delta 0.001 |", "## Decisions"): terms.orchestra_noise,
    (ATTACKS, "a network that hardly depends on colour", "- Two images and one step"): results.inversion,
    (ATTACKS, "The figure `shares.png`", "- Under secure aggregation only"): results.shares,
    (RESULTS, "## Strong drift", "## A positive control"): results.strong_drift,
    (RESULTS, "## A positive control", "## Newer objectives"): controls.control,
    (RESULTS, "## Newer objectives and methods", END): newer.newer,
    ("docs/explanation/scale.md", "# Scale", "The loop, the draw"): terms.scale,
    ("docs/reference/performance.md", "## Half precision", "Scenarios\nstay in fp32"): terms.half_precision,
    ("docs/explanation/reading-the-board.md", "## Ranks", END): results.ranks,
    (RESULTS, "## kNN below the untrained encoder", "## What the small"): results.below_the_floor,
}
"""Page, first and last heading of the section -> its sentences with numbers."""
PLAIN = (
    *("cifar10-micro", "cifar10-mini", "50 million images", "5.6 points"),
    *("FedU2", "155 steps", "a rate of 0;", "25,000 image passes", "With 1 %", "Tables 4 and 7"),
    *("at 95 %", "by two one-sided tests at 5 %", "the rate of a false statement at 5 %"),
    *("`2-9`", "be up to 8 %", "may leave 0 out"),
    *("from 10 to 100,000 clients", "beyond 100,000 visited clients", "224 x 224", "20 Gbit/s"),
    *("200 epochs", "from alpha 100,000 to 0.001", "31 steps a visit"),
)
"""Names, settings, and what a paper says of its own numbers."""


@pytest.mark.parametrize("where", HELD, ids=" ".join)
def test_every_number_in_words_follows_from_the_records(where):
    page, first, last = where
    section = (ROOT / page).read_text().partition(first)[2].partition(last)[0]
    section = re.sub(r"<!-- rates: .*?<!-- end of rates -->", "", section, flags=re.DOTALL)  # simulated, not in words
    section = re.sub(r"<!-- memory -->.*?<!-- end -->", "", section, flags=re.DOTALL)  # rendered from its record
    text = " ".join(section.split())
    sentences = list(HELD[where]())
    missing = [sentence for sentence in sentences if sentence not in text]
    assert not missing
    for sentence in sorted((*sentences, *PLAIN), key=len, reverse=True):
        text = text.replace(sentence, "")
    text = re.sub(r"\]\([^)]*\)|`[^`]*`|\$[^$]*\$|(float|resnet)\d+| \d\. ", "", text)  # links, names, formulas, lists
    if page not in (ATTACKS, "docs/methods/orchestra.md"):  # settings and formulas stand beside the numbers
        assert not re.findall(r"\S*\d\S*", text)
