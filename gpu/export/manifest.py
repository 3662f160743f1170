"""Files of an exported model as structs: a plan for each profile, and weights in pieces; and plans
without weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpu.load_options import LoadOptions


class ExportedFile(msgspec.Struct, frozen=True):
    """One file of an export; `file` is relative to its folder."""

    file: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, folder: Path, path: Path) -> ExportedFile:
        """Return the description of a file below `folder`."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.relative_to(folder).as_posix(), path.stat().st_size, digest)


class ExportedWeights(msgspec.Struct, frozen=True):
    """The weights of an export: `bytes` in `pieces`, one after the other."""

    bytes: int
    pieces: tuple[ExportedFile, ...]


class ExportedModel(msgspec.Struct, frozen=True):
    """Files of one model: a plan for each profile, and weights that serve them all. `parameters`:
    number of weights, tied ones once."""

    dtype: str
    kv_dtype: str
    parameters: int
    plans: dict[str, ExportedFile]
    weights: ExportedWeights


class PlansOfShapes(msgspec.Struct, frozen=True):
    """A recorded plan file, the bytes of its weights that are in no checkpoint by their names, and
    the number of the model's weights."""

    plan: bytes
    constants: dict[str, bytes]
    parameters: int
    kv_dtype: str


RecordShapes = Callable[
    [dict[str, Any], dict[str, Any], Mapping[str, tuple[int, ...]], LoadOptions, str],
    PlansOfShapes,
]
"""Type of `gpu.export.shapes.record_shapes`: config, generation, shapes, options, profile."""
