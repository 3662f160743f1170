"""What the files of one model are called that llama.cpp's gguf-split cut:
NAME-00001-of-00003.gguf."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MAX_PARTS = 999
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number`, from 0, of the `n_parts` of the model `name`."""

    name: str
    number: int
    n_parts: int


def part_of(file_name: str) -> Part | None:
    """What the name of a file says; None for one that is a model by itself."""
    found = _PART.fullmatch(file_name)
    if found is None:
        return None
    number, n_parts = int(found[2]), int(found[3])
    if not 1 <= number <= n_parts <= MAX_PARTS:
        return None
    return Part(found[1], number - 1, n_parts)


def part_path(path: Path, number: int) -> Path:
    """The part `number`, from 0, beside the part at `path`."""
    part = part_of(path.name)
    assert part is not None, f"{path} is no part"
    return path.with_name(f"{part.name}-{number + 1:05}-of-{part.n_parts:05}{path.suffix}")
