"""The tests of what differs from the main branch: `make quick`, for the loop of writing, beside `make test`.

A file's tests are those named after it (`methods/ssd.py`: `test_ssd.py`). Where there are none, they are those that
import it, or else those that import a module that imports it, and so on; of a file that is not Python, those whose text
has its name.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("benchmark", "datamodules", "eval", "leaderboards", "methods", "tests")


def changed(root: Path, base: str) -> list[str]:
    """Files that differ from where the branch left `base`, with what is not committed, without those removed.

    Raises:
        SystemExit: git knows no such branch or commit.
    """
    found: list[str] = []
    for words in (["diff", "--merge-base", base, "--name-only"], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", *words, "-z"], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.partition("\n")[0]
            raise SystemExit(f"nothing to compare with: {said}; name a branch or a commit (BASE=HEAD~1)")
        found += done.stdout.split("\0")
    return sorted(name for name in set(found) if name and (root / name).is_file())


class Map:
    """Which test files see a file of the checkout."""

    def __init__(self, root: Path = ROOT) -> None:
        self.imports = grimp.build_graph(*PACKAGES, cache_dir=None)
        self.tests = {str(file.relative_to(root)): file.read_text() for file in (root / "tests").rglob("test_*.py")}

    def near(self, name: str) -> set[str]:
        """The test files named after a file: of its own folder, or else of its package; a test file itself."""
        path = Path(name)
        named = {test for test in self.tests if Path(test).name == f"test_{path.stem}.py"}
        if path.suffix == ".py":
            named = {test for test in named if test.startswith(f"tests/{path.parts[0]}/")}
        here = {test for test in named if Path(test).parent == "tests" / path.parent}
        return {name} if name in self.tests else here or named

    def far(self, name: str) -> set[str]:
        """The test files that import a file, or else the nearest ones that import what imports it; or that name it."""
        path = Path(name)
        if path.suffix != ".py" or path.parts[0] not in PACKAGES:
            return {test for test, text in self.tests.items() if path.name in text}
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        ring = met = {module} & self.imports.modules
        while ring:
            ring = {each for one in ring for each in self.imports.find_modules_that_directly_import(one)} - met
            met = met | ring
            if tests := {f"{each.replace('.', '/')}.py" for each in ring} & self.tests.keys():
                return tests
        return set()


def say(line: str) -> None:
    """Prints a line before what pytest prints."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(words: Sequence[str]) -> int:
    """Runs the tests of what differs from a branch, the first word; pytest gets the others. Its exit code."""
    base, *others = words
    files, every = changed(ROOT, base), Map()
    tests: set[str] = set()
    for name in files:
        near, far = every.near(name), every.far(name)
        tests |= near or far
        beyond = f" ({len(far - near)} more see it: make test)" if near and far - near else ""
        say(f"{name}: {' '.join(sorted(near or far)) or 'no test of its own: make test'}{beyond}")
    if not tests:
        say(f"nothing that has tests of its own differs from {base}")
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", *others, *sorted(tests)], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
