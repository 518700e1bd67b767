"""Runs the tutorials, which are notebooks, and saves them with their outputs: `make tutorials`."""

import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

from generate.links import ROOT
from generate.notebooks import FOLDER

SPEED = re.compile(r" +[\d,]+ images/s| +\(\d+ s training, \d+ s evaluation\)|^ +(?:training|evaluation) +s .*\n", re.M)
"""What another machine would print otherwise: the speeds of a run, and the two rows of seconds of `compare`."""


def executed(file: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with its outputs, without speeds; an error of a cell is raised.

    Args:
        file: the notebook. folder: where it runs and writes; it is also the home folder.
    """
    notebook = nbformat.read(file, as_version=4)
    metadata = notebook.metadata.copy()
    environment = {
        **os.environ,
        "HOME": str(folder),  # the cache of decoded images
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # `!python` is this one
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm's, of transformers
        "TTY_COMPATIBLE": "0",  # lines, not bars and colours
    }
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=280, resources=resources, record_timing=False).execute(env=environment)
    notebook.metadata = metadata
    for cell in notebook.cells:
        printed = [output for output in cell.get("outputs", []) if output.output_type == "stream"]
        if printed:
            text = "".join(output.text for output in printed).replace("\r\n", "\n")
            lines = [line.rstrip() for line in SPEED.sub("", text).strip("\n").splitlines()]
            printed[0].text = "\n".join(lines) + "\n"
            cell.outputs = [printed[0], *(output for output in cell.outputs if output.output_type != "stream")]
    return notebook


def main(names: list[str]) -> None:
    """Runs and saves the tutorials of these names, or all."""
    for file in sorted(FOLDER.glob("*.ipynb")):
        if not names or file.stem in names:
            with TemporaryDirectory() as folder:
                nbformat.write(executed(file, Path(folder)), file)


if __name__ == "__main__":
    main(sys.argv[1:])
