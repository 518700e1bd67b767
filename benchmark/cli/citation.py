"""The command that prints what to cite: the papers of methods, objectives, server optimisers and scenarios."""

from rich.text import Text

from benchmark.cli.session import Session
from benchmark.configuration.files import available, facts, papers
from benchmark.configuration.keys import nearest
from benchmark.configuration.suites import row_line
from benchmark.errors import ConfigError
from leaderboards.papers import bibliography

USAGE = "NAME [NAME ...]"
SERVER_OPTIMIZERS = {
    "methods.server.Momentum": "fedavgm",
    "methods.server.Adam": "fedopt",
    "methods.server.Yogi": "fedopt",
}
"""Import path -> the key of its paper."""


def cite(words: list[str], session: Session) -> None:
    """Print BibTeX of the papers of methods, objectives, server optimisers, scenarios or rows, and of the suite."""
    if not words:
        raise ConfigError(f"usage: python -m benchmark cite {USAGE}; got no name")
    entries = bibliography.read()
    cited = {word: [key for name in _names(word) for key in papers_of(name)] for word in words}
    lines = [f"% {word}: no paper" for word, keys in cited.items() if not keys and word != bibliography.SUITE]
    keys = dict.fromkeys([*(key for found in cited.values() for key in found), bibliography.SUITE])
    text = "\n".join([*lines, *(entries[key].text for key in keys)]).rstrip("\n")
    session.console.print(Text(text), soft_wrap=True)


def _names(word: str) -> list[str]:
    """The names that a word stands for: a row's method and objective, or the word itself."""
    known = [name for group in ("method", "objective", "scenario") for name in available(group)]
    known += [*SERVER_OPTIMIZERS, bibliography.SUITE]
    if word in known:
        return [word]
    method, *overrides = row_line("", word)
    if method not in known:
        hint = nearest(word, known)
        raise ConfigError(f"unknown name {word!r}{hint}: give a method, an objective, a scenario or a row, see `list`")
    return [method, *(each.removeprefix("objective=") for each in overrides if each.startswith("objective="))]


def papers_of(name: str) -> list[str]:
    """Keys of the papers of a name in the bibliography; of a scenario, such as `fedx/cifar10`, whose setting it is."""
    name = name.partition("/")[0]
    if name in SERVER_OPTIMIZERS:
        return [SERVER_OPTIMIZERS[name]]
    heads = [facts(group, name) for group in ("method", "objective") if name in available(group)]
    return list(dict.fromkeys(key for head in heads for key in papers(head)))
