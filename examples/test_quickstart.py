"""The notebook is committed without outputs, and runs from its first cell to its last."""

import ast
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
FILE = ROOT / "examples" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(FILE, as_version=4)


def test_it_is_committed_without_outputs_with_short_prose_and_an_objective_of_ten_lines(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert all(len(text.split()) < 60 for text in prose)
    (source,) = [cell.source for cell in code if cell.source.startswith("class ")]
    assert isinstance(ast.parse(source).body[0], ast.ClassDef)
    assert len(source.splitlines()) <= 10
    links = [part.partition(")")[0] for text in prose for part in text.split("](")[1:]]
    assert links
    assert all("#" not in link and (FILE.parent / link).is_file() for link in links)


def test_it_runs_from_its_first_cell_to_its_last(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # the cache of decoded images
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress not found")  # tqdm's, of transformers
    look = nbformat.v4.new_code_cell('records["fedavg, Decoupled"]["deviations"]', id="look")
    notebook = nbformat.v4.new_notebook(cells=[*notebook.cells, look], metadata=notebook.metadata)
    NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = {cell.id: cell.get("outputs", []) for cell in notebook.cells}
    for drawn in ("curves", "features"):
        assert any("image/png" in output.get("data", {}) for output in cells[drawn])
    assert cells["runs"] == []  # quiet
    (table,) = cells["own"]
    assert "fedavg-decoupled" in table["data"]["text/plain"]
    assert "__main__.Decoupled" in table["data"]["text/plain"]
    assert "__main__.Decoupled is code from outside the packages: sha256" in str(cells["look"])
    assert not [output for outputs in cells.values() for output in outputs if output.get("name") == "stderr"]
