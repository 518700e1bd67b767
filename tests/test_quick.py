"""`make quick` finds what differs from a branch, and the tests of it."""

import subprocess

import pytest

from tests.quick import Map, changed


def test_what_differs_is_what_the_branch_and_the_working_tree_have_changed(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(**files):
        for name, text in files.items():
            (tmp_path / name).write_text(text)

    git("init", "--initial-branch=main")
    write(same="1", committed="1", edited="1", removed="1", main_only="1", **{".gitignore": "ignored"})
    git("add", ".")
    git("commit", "-m", "first")
    git("switch", "-c", "branch")
    write(committed="2")
    git("commit", "-am", "of the branch")
    git("switch", "main")
    write(main_only="2")
    git("commit", "-am", "of main, later")
    git("switch", "branch")
    write(edited="2", new="1", ignored="1")
    (tmp_path / "removed").unlink()
    assert changed(tmp_path, "main") == ["committed", "edited", "new"]
    with pytest.raises(SystemExit, match=r"nothing to compare with: .*nowhere.*; name a branch or a commit"):
        changed(tmp_path, "nowhere")


@pytest.mark.parametrize(
    ("name", "near", "far"),
    [
        ("methods/ssd.py", "tests/methods/test_ssd.py", ""),
        ("benchmark/configs/method/ssd.yaml", "tests/methods/test_ssd.py", ""),
        ("methods/trees.py", "tests/methods/test_trees.py", "tests/methods/test_scaffold.py"),
        ("datamodules/ops.py", "", "tests/datamodules/test_views.py"),
        ("pyproject.toml", "", "tests/benchmark/audit/test_dependencies.py"),
        ("tests/test_docs.py", "tests/test_docs.py", ""),
    ],
)
def test_a_files_tests(name, near, far):
    found = Map()
    assert found.near(name) == ({near} if near else set())
    assert not far or far in found.far(name)


def test_a_module_that_no_test_imports_has_the_tests_of_what_imports_it():
    found = Map()

    def tested(module):
        return any(each.startswith("tests.") for each in found.imports.find_modules_that_directly_import(module))

    for module in sorted(found.imports.modules):
        importers = found.imports.find_modules_that_directly_import(module)
        if module.startswith("benchmark.") and not tested(module) and any(map(tested, importers)):
            assert found.far(f"{module.replace('.', '/')}.py")
            break
    else:
        pytest.skip("every module of benchmark is imported by a test")
