"""What hatch asks when it builds a wheel: the committed records go into it as one archive, a third as large."""

import gzip
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RESULTS = Path("leaderboards", "results")


class Records(BuildHookInterface):
    """Archives the records. An editable install is the checkout itself, and has their files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the archive; `leaderboards.store.committed` reads it."""
        if version == "editable":
            return
        self.folder = TemporaryDirectory()
        file = Path(self.folder.name, f"{RESULTS.name}.tar.gz")
        with gzip.GzipFile(file, "wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
            archive.add(Path(self.root) / RESULTS, "", filter=_timeless)
        build_data["force_include"][str(file)] = str(RESULTS.parent / file.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what `initialize` made."""
        if version != "editable":
            self.folder.cleanup()


def _timeless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry without owner and time, so that one commit makes one archive."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
