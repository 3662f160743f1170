"""Safetensors files, written tensor by tensor: no more than a piece of one is in memory.

The format is that of its project, as `gpu.checkpoint.files` reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.checkpoint.files import BITS, Bytes

PIECE_BYTES = 8 << 20
"""Handed to the file at a time; what is mapped and was written can be let go."""
ALIGNMENT = 8
"""Of the first tensor; the header is filled up with spaces."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to write: `data` are its bytes, in as many parts as they come in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Sequence[Bytes]

    @property
    def n_bytes(self) -> int:
        return sum(len(part) for part in self.data)


def write_safetensors(
    path: Path, entries: Sequence[Entry], on_bytes: Callable[[int], None] = lambda n: None
) -> None:
    """Write a file and wait until the disk has it. `on_bytes` is told of every piece. Wide numbers
    come first, so that each tensor lies at a multiple of its number's size. Raises OSError."""
    entries = sorted(entries, key=lambda entry: (-BITS[entry.dtype], entry.name))
    with path.open("wb") as file:
        file.write(_header(entries))
        for part in (part for entry in entries for part in entry.data):
            for at in range(0, len(part), PIECE_BYTES):
                on_bytes(file.write(part[at : at + PIECE_BYTES].data))
        file.flush()
        os.fsync(file.fileno())


def _header(entries: Sequence[Entry]) -> bytes:
    """Its length in 8 bytes, and itself. "pt" names the layout that PyTorch, and everybody else,
    reads: row by row."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in entries:
        offsets = [at, at + entry.n_bytes]
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": offsets}
        at += entry.n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
