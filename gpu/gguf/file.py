"""An opened and checked GGUF file: its metadata, and its tensors' bytes.

Any of its content may be wrong or malicious (see `gpu.gguf.header`): files with overlapping or
truncated tensors are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu.errors import ModelError
from gpu.files.json_object import shown
from gpu.files.regular_file import open_regular
from gpu.gguf.header import Bytes, Header, read_header
from gpu.gguf.split import parse_split_name, split_path
from gpu.gguf.types import GgufType

SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor: `shape` with the slowest dimension first, `data` its bytes in the mapped file at
    `path`."""

    path: Path
    name: str
    type: GgufType
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata values and tensors of a model.

    `values`: numbers, booleans, strings, and lists of strings or arrays of numbers. A model in
    several files (llama.cpp's gguf-split) has the values of the first, and the tensors of all.
    """

    path: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def is_gguf(path: str | Path) -> bool:
    """Return whether `path` names a GGUF file."""
    return Path(path).suffix.lower() == SUFFIX and not Path(path).is_dir()


def open_gguf(path: str | Path) -> GgufFile:
    """Map and check a file, and the other files of a split model. ModelError names the file and the
    fault."""
    path = Path(path)
    part = parse_split_name(path.name)
    first = _open(_stat(path if part is None else split_path(path, 0)))
    n_files = first.values.get("split.count", 1)
    if type(n_files) is int and n_files in (0, 1):
        return first
    if part is None or type(n_files) is not int or n_files != part.n_splits:
        raise ModelError(
            f"{first.path}: is one of {shown(n_files)} files of a model; expected file names such "
            "as NAME-00001-of-00002.gguf: rename them"
        )
    return _open_parts(tuple(_stat(split_path(path, i)) for i in range(part.n_splits)))


def _joined(parts: list[GgufFile]) -> dict[str, GgufTensor]:
    """Return the tensors of all parts. Raises ModelError for a tensor in two parts."""
    tensors: dict[str, GgufTensor] = {}
    for i, part in enumerate(parts):
        split = part.values.get("split.no"), part.values.get("split.count")
        if not all(type(n) is int for n in split) or split != (i, len(parts)):
            raise ModelError(
                f"{part.path}: split.no is {shown(split[0])} of {shown(split[1])}; "
                f"expected {i} of {len(parts)}: the files belong to different models"
            )
        if both := tensors.keys() & part.tensors.keys():
            raise ModelError(
                f"{part.path}: tensor {shown(min(both))} is also in another file of the model; "
                "download the files again"
            )
        tensors |= part.tensors
    n_tensors = parts[0].values.get("split.tensors.count", len(tensors))
    if n_tensors != len(tensors):
        raise ModelError(
            f"{parts[0].path}: expected {shown(n_tensors)} tensors in all files together, but "
            f"they have {len(tensors)}; download the files again"
        )
    return tensors


Stat = tuple[Path, int, int]
"""Path, size and modification time, which identify a file's content."""


def _stat(path: Path) -> Stat:
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    return path, stat.st_size, stat.st_mtime_ns


@functools.lru_cache(maxsize=4)
def _open(stat: Stat) -> GgufFile:
    """Open a file. The result is cached because config, tokenizer and weights are read one after
    the other."""
    return _read(stat)


@functools.lru_cache(maxsize=4)
def _open_parts(stats: tuple[Stat, ...]) -> GgufFile:
    """Open all files of a split model, however many there are."""
    parts = [_open(stats[0]), *map(_read, stats[1:])]
    return GgufFile(parts[0].path, parts[0].values, _joined(parts))


def _read(stat: Stat) -> GgufFile:
    path, n_bytes, _ = stat
    with open_regular(path, may_link=True) as file:  # a person named this very file
        if n_bytes < 24:
            raise ModelError(f"{path}: has {n_bytes} bytes, too few for a GGUF file")
        try:
            # A plain array: slicing a memmap takes four times as long.
            data: Bytes = np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))
        except (OSError, ValueError) as error:  # ValueError: it is empty by now
            raise ModelError(f"{path}: cannot be read ({error})") from None
    header = read_header(path, data)
    return GgufFile(path, header.values, _placed(path, header, data))


def _placed(path: Path, header: Header, data: Bytes) -> dict[str, GgufTensor]:
    """Return the tensors' bytes, checked to be inside the file, aligned, and without overlap."""
    start, alignment = header.start, header.alignment
    last, end = "", 0
    for name, info in sorted(header.infos.items(), key=lambda item: item[1].offset):
        if info.offset % alignment or info.offset < end:
            before = f"tensor {shown(last)}" if last else "the header"
            raise ModelError(
                f"{path}: tensor {shown(name)} begins at byte {info.offset} of the data; expected "
                f"a multiple of {alignment}, from {end} on, where {before} ends"
            )
        last, end = name, info.offset + info.n_bytes
        if start + end > len(data):
            raise ModelError(
                f"{path}: tensor {shown(name)} ends at byte {start + end}, but the file ends at "
                f"{len(data)}; it is truncated: download it again"
            )
    return {
        name: GgufTensor(
            path, name, i.type, i.shape, data[start + i.offset : start + i.offset + i.n_bytes]
        )
        for name, i in header.infos.items()
    }
