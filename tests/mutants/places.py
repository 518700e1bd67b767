"""Places of code that can be mutated, by names that survive a move of lines, and the sample of them that is tried."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

OUTCOMES = ("survived", "timeout", "killed")
SCOPES = frozenset({"file_input", "classdef", "decorated", "funcdef"})
BLOCKS = SCOPES | {"suite", "simple_stmt", "if_stmt", "while_stmt", "for_stmt", "with_stmt", "try_stmt"}
COMMENT = re.compile(r"  # .*")


@dataclass
class Mutant:
    """A fault at a place, which has a name that survives a move of its lines: file, function, operator, text.

    operator: with `#n`, the n-th change by this operator on this text in this function. before: the source's lines
    that it changes. after: what they become. occurrence: cosmic-ray's number of it, in the file. spans: lines whose
    tests see it, from the statement outward. earlier: its outcome in the result that this one is compared with. why:
    the reason, there, to let it survive. tests: that see it, in the order in which they are tried.
    """

    file: str
    function: str
    operator: str
    before: str
    line: int
    occurrence: int
    spans: list[frozenset[int]]
    after: str = ""
    text: str = ""
    earlier: str = ""
    why: str = ""
    tests: Sequence[str] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """Its name."""
        return self.file, self.function, self.operator, self.before

    def mutate(self, source: str) -> bool:
        """Fills in `after` and `text`, the mutated file; False where cosmic-ray cannot apply it."""
        operator = get_operator(f"core/{self.operator.partition('#')[0]}")()
        self.text = mutate_code(source, operator, self.occurrence) or source
        old, new = source.splitlines(), self.text.splitlines()
        start = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
        self.after = _short(new[start : start + 1 + max(0, len(new) - len(old))])
        if self.operator.startswith("RemoveDecorator"):
            self.after = ""
        with suppress(SyntaxError):
            compile(self.text, self.file, "exec")
            return self.text != source
        return False


def found(file: str, source: str, operators: Sequence[str], ignored: Sequence[str]) -> Iterator[Mutant]:
    """All mutants of a file, not yet mutated."""
    tree, skip, lines = get_ast(source), re.compile("|".join(f"({each})" for each in ignored)), source.splitlines()
    bodies: set[int] = set()  # all other lines run at import: no test is seen to run them
    for node in ast_nodes(tree):
        if node.type == "funcdef":
            bodies |= set(range(node.children[-1].start_pos[0] + 1, node.end_pos[0] + 1))
    for name in operators:
        operator, occurrence = get_operator(f"core/{name}")(), -1
        times: Counter[tuple[str, str]] = Counter()
        for node in ast_nodes(tree):
            for start, stop in operator.mutation_positions(node):
                occurrence += 1
                if _left_out(node, skip):
                    continue
                last = stop[0] - (stop[1] == 0)
                before = _short(lines[start[0] - 1 : last])
                function = _function(node)
                operation = f"{name}#{times[function, before]}"
                times[function, before] += 1
                statement = _statement(node, range(start[0], last + 1))
                scopes = [_lines(parent) for parent in _parents(node) if parent.type in SCOPES]
                spans = [frozenset(span & bodies) for span in (statement, *scopes)]
                yield Mutant(file, function, operation, before, start[0], occurrence, spans)


def _short(lines: Sequence[str]) -> str:
    """Code without comments and line breaks."""
    return " ".join(" ".join(COMMENT.sub("", line) for line in lines).split())


def _parents(node: Any) -> Iterator[Any]:
    while node is not None:
        yield node
        node = node.parent


def _left_out(node: Any, skip: re.Pattern[str]) -> bool:
    """Whether code is an annotation, the message of an assertion, or begins like what is ignored."""
    inside, child = False, None
    for parent in _parents(node):
        if child is not None and child is _annotation(parent):
            return True
        whole = parent.type not in {"file_input", "decorated", "decorators"}
        if whole and skip.match(parent.get_code(include_prefix=False)):
            return True
        inside, child = inside or parent.type == "funcdef", parent
    return not inside and getattr(node, "value", "") == "|"  # an alias of types


def _annotation(node: Any) -> Any:
    """The child of a node that is no code that counts."""
    if node.type == "assert_stmt":
        return node.children[3] if len(node.children) > 3 else None
    if node.type == "funcdef":
        return node.annotation
    return node.children[{"annassign": 1, "tfpdef": 2}[node.type]] if node.type in {"annassign", "tfpdef"} else None


def _function(node: Any) -> str:
    if node.type == "decorator":  # the one of what it decorates
        node = next(parent for parent in _parents(node) if parent.type == "decorated").children[-1]
    names = [parent.name.value for parent in _parents(node) if parent.type in {"funcdef", "classdef"}]
    return ".".join(reversed(names))


def _lines(node: Any) -> set[int]:
    return set(range(node.start_pos[0], node.end_pos[0] + 1))


def _statement(node: Any, lines: range) -> set[int]:
    """Lines of the simple statement, or of the head of the compound one, that has a node."""
    if node.type in BLOCKS:
        return set(lines)
    while node.parent is not None and node.parent.type not in BLOCKS:
        node = node.parent
    return set(lines) | _lines(node)


def drawn(sources: Mapping[str, str], settings: Any) -> list[Mutant]:
    """A sample of all mutants, over the files in proportion to theirs; it depends on seed and files only."""
    every = {file: [*found(file, text, settings.operators, settings.ignored)] for file, text in sources.items()}
    total, sample = sum(map(len, every.values())), []
    for file, mutants in every.items():
        random.Random(f"{settings.seed} {file}").shuffle(mutants)
        wanted = max(settings.least, round(settings.sample * len(mutants) / total))
        texts: set[str] = set()
        for mutant in mutants:
            if len(texts) < wanted and mutant.mutate(sources[file]) and mutant.text not in texts:
                texts.add(mutant.text)
                sample.append(mutant)
    return sorted(sample, key=lambda mutant: mutant.key)


def again(sources: Mapping[str, str], settings: Any, result: Mapping[str, Any]) -> tuple[list[Mutant], list[str]]:
    """The mutants of an earlier result, wherever their functions are now, and a line for each that is there no more."""
    every: dict[tuple[str, ...], list[Mutant]] = defaultdict(list)
    for file, text in sources.items():
        for mutant in found(file, text, settings.operators, settings.ignored):
            every[mutant.key[1:]].append(mutant)
    sample, gone = [], []
    rows = ((outcome, *row) for outcome in OUTCOMES for row in result[outcome])
    for outcome, file, function, operator, before, after, *notes in rows:
        places = sorted(every[function, operator, before], key=lambda mutant: mutant.file != file)  # its own file first
        for mutant in places:
            if mutant.mutate(sources[mutant.file]) and mutant.after == after:
                mutant.earlier, mutant.why = outcome, notes[1] if notes else ""
                sample.append(mutant)
                break
        else:
            gone.append(f"{file} {function}: {before}  ->  {after}")
    return sorted(sample, key=lambda mutant: mutant.key), gone
