"""File names of a model split by llama.cpp's gguf-split: NAME-00001-of-00003.gguf."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MAX_SPLITS = 999
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """Part `number`, counted from 0, of the `n_splits` parts of the model `name`."""

    name: str
    number: int
    n_splits: int


def parse_split_name(file_name: str) -> SplitPart | None:
    """Parse a file name; return None for a model in one file."""
    found = _PART.fullmatch(file_name)
    if found is None:
        return None
    number, n_splits = int(found[2]), int(found[3])
    if not 1 <= number <= n_splits <= MAX_SPLITS:
        return None
    return SplitPart(found[1], number - 1, n_splits)


def split_path(path: Path, number: int) -> Path:
    """Return the path of the part `number`, counted from 0, in the folder of `path`."""
    part = parse_split_name(path.name)
    assert part is not None, f"{path} is not a part of a split model"
    return path.with_name(f"{part.name}-{number + 1:05}-of-{part.n_splits:05}{path.suffix}")
