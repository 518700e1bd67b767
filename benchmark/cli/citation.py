"""The command that prints what to cite: the papers of methods, objectives, server optimisers and scenarios."""

from rich.text import Text

from benchmark.cli.session import Session
from benchmark.configuration.files import available
from benchmark.configuration.keys import nearest
from benchmark.configuration.suites import row_line
from benchmark.errors import ConfigError
from leaderboards.papers import bibliography

USAGE = "NAME [NAME ...]"


def cite(words: list[str], session: Session) -> None:
    """Print BibTeX of the papers of methods, objectives, server optimisers, scenarios or rows, and of the suite."""
    if not words:
        raise ConfigError(f"usage: python -m benchmark cite {USAGE}; got no name")
    papers = {word: [paper for name in _names(word) for paper in _papers(name)] for word in words}
    lines = [f"% {word}: no paper" for word, found in papers.items() if not found]
    entries = dict.fromkeys(paper.text for found in papers.values() for paper in found)
    suite = bibliography.read()[bibliography.SUITE].text
    text = "\n".join([*lines, *entries, suite]).rstrip("\n")
    session.console.print(Text(text), soft_wrap=True)


def _names(word: str) -> list[str]:
    """The names that a word stands for: a row's method and objective, or the word itself."""
    known = [name for group in ("method", "objective", "scenario") for name in available(group)]
    known += [name for entry in bibliography.read().values() for name in entry.names]
    if word in known:
        return [word]
    method, *overrides = row_line("", word)
    if method not in known:
        hint = nearest(word, known)
        raise ConfigError(f"unknown name {word!r}{hint}: give a method, an objective, a scenario or a row, see `list`")
    return [method, *(each.removeprefix("objective=") for each in overrides if each.startswith("objective="))]


def _papers(name: str) -> list[bibliography.Entry]:
    """The papers of a name; of a scenario, such as `fedx/cifar10`, that whose setting it is."""
    return bibliography.named(name.partition("/")[0])
