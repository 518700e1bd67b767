"""What W&B's files of a run hold: each start of the run has written a segment, and a killed one may end anywhere."""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

START, BLOCK = 7, 32768
"""Bytes before the first block, and of a block; no part of an entry crosses its end."""
HEADER = struct.Struct("<IHB")
"""Of a part: checksum, length, and its place in the entry: WHOLE, LAST, or before others."""
WHOLE, LAST = 1, 4


def entries(content: bytes) -> Iterator[bytes]:
    """The entries of a segment, a log in LevelDB's format, up to one that was not written to its end."""
    offset, entry = START, b""
    while offset + HEADER.size <= len(content):
        if (left := BLOCK - offset % BLOCK) < HEADER.size:
            offset += left
            continue
        _, length, place = HEADER.unpack_from(content, offset)
        offset += HEADER.size + length
        if offset > len(content):
            return
        entry += content[offset - length : offset]
        if place in (WHOLE, LAST):
            yield entry
            entry = b""


def logged_rows(folder: Path, run: str, steps: Sequence[str]) -> Iterator[tuple[int, int | None]]:
    """(W&B's step, round) of each row in the segments of a run; None: a row of no round.

    folder: of the run. run: its id on W&B. steps: the metrics that are the round, now or earlier.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    record: Any = wandb_internal_pb2.Record  # type: ignore[attr-defined]

    for file in sorted(folder.glob(f"wandb/*run-*-{run}/run-{run}.wandb")):
        if not file.resolve().is_relative_to(folder.resolve()):  # a link out of it, in a folder of somebody else's
            continue
        for entry in entries(file.read_bytes()):
            try:
                history = record.FromString(entry).history
            except DecodeError:  # the power cut that ended the segment has left other bytes
                break
            if history.item:
                values = {item.key or "/".join(item.nested_key): item.value_json for item in history.item}
                rounds = [int(json.loads(values[step])) for step in steps if step in values]
                yield history.step.num, rounds[0] if rounds else None
