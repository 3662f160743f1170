"""Memory-mapped safetensors files, checked before use.

A safetensors file is 8 bytes with the length of the header (little-endian), the header as JSON,
then the tensors' bytes without gaps. Any of it may be wrong or malicious, so every number is
checked against the file's true size before anything is read. `gpu.checkpoint.writer` writes such
files with the safetensors library. Its reader is not used here, for three reasons: it copies each
tensor, but a matrix larger than the free memory must be streamed to the device from the mapped
file; its NumPy arrays have no bfloat16; and its errors do not name the faulty tensor. For GGUF see
`gpu.checkpoint.gguf_weights`.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject, parse_json, shown
from gpu.files.regular_file import open_regular

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
"""File names that an index may contain: without path separators, so that it cannot leave its
folder."""
MAX_HEADER_BYTES = 16 << 20
"""Largest header that is read. The safetensors project allows 100 MB, but parsing takes several
times as much memory. The largest real headers, of a model with 36,000 tensors in one file, have 5
MB."""
MAX_TENSORS = 1 << 16
"""Most tensors in one file."""
MAX_PARTS = 4 * MAX_TENSORS
"""Most objects and lists in a header; every tensor has three."""
MAX_INDEXED = 1 << 18
"""Most tensors named by an index: DeepSeek-V3 has 91,000."""

BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
}  # fmt: skip

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint: name, type, shape and its bytes in the mapped file at `path`.

    rows        file row of each of its rows; None: in order
    transposed  the file stores its columns as rows
    plus        added to each number of the file
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    data: Bytes
    rows: npt.NDArray[np.intp] | None = None
    transposed: bool = False
    plus: float = 0.0

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        return self.shape[::-1] if self.transposed else self.shape

    @property
    def where(self) -> str:
        return f"{self.path}: tensor {shown(self.name)}"


def open_shards(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of all files that the index in `folder` names. The files must be in the
    same folder."""
    index = JsonObject.read(folder / INDEX)
    weight_map = index.object("weight_map")
    if not weight_map.values:
        raise index.error("weight_map", "an object that names the file of each tensor")
    if len(weight_map.values) > MAX_INDEXED:
        raise ModelError(
            f"{index.where}: names {len(weight_map.values)} tensors; at most {MAX_INDEXED} are "
            "supported"
        )
    files: dict[str, dict[str, Tensor]] = {}
    tensors: dict[str, Tensor] = {}
    for name in weight_map.values:
        file = weight_map.string(name)
        if file not in files:
            if not SHARD.fullmatch(file):
                raise weight_map.error(name, "the name of a .safetensors file in the same folder")
            files[file] = open_safetensors(folder / file)
        if name not in files[file]:
            raise ModelError(
                f"{index.where}: expected tensor {shown(name)} in {file}, but that file does not "
                "have it; download both again"
            )
        tensors[name] = files[file][name]
    return tensors


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """Map one file and check that its header describes all of its bytes exactly once."""
    return open_with_metadata(path)[1]


def open_with_metadata(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the string metadata of a file, and its tensors as `open_safetensors` does."""
    data = _mapped(path)
    header = _header(path, data)
    metadata = _strings(header.pop("__metadata__", None))
    body = data[8 + int.from_bytes(data[:8].tobytes(), "little") :]
    spans = [_check_entry(path, name, entry, len(body)) for name, entry in header.items()]
    _check_cover(path, spans, len(body))
    return metadata, {
        name: Tensor(name, path, dtype, shape, body[a:b]) for name, dtype, shape, a, b in spans
    }


def _mapped(path: Path) -> Bytes:
    """Return the bytes of a file as a plain array: slicing a memmap takes four times as long."""
    with open_regular(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes < 8:
            raise ModelError(f"{path}: has {n_bytes} bytes, too few for a safetensors file")
        try:
            return np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))
        except (OSError, ValueError) as error:  # ValueError: it is empty by now
            raise ModelError(f"{path}: cannot be read ({error})") from None


def _header(path: Path, data: Bytes) -> dict[str, Any]:
    """Return the parsed header: entries by name, unchecked."""
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if not 2 <= header_bytes <= len(data) - 8:
        raise ModelError(
            f"{path}: the header says it has {header_bytes} bytes, but the file has {len(data)}; "
            "it is truncated or not safetensors"
        )
    if header_bytes > MAX_HEADER_BYTES:
        raise ModelError(
            f"{path}: the header says it has {header_bytes} bytes; at most {MAX_HEADER_BYTES} are "
            "supported"
        )
    text = data[8 : 8 + header_bytes].tobytes()
    n_tensors = text.count(b'"data_offsets"')  # before the text is parsed into a lot of memory
    if n_tensors > MAX_TENSORS:
        raise ModelError(
            f"{path}: the header has {n_tensors} tensors; at most {MAX_TENSORS} per file are "
            "supported"
        )
    n_parts = text.count(b"{") + text.count(b"[")  # those in strings too: some metadata is JSON
    if n_parts > MAX_PARTS:
        raise ModelError(
            f"{path}: the header has {n_parts} objects and lists; at most {MAX_PARTS} are supported"
        )
    header = parse_json(text, f"{path}: header")
    if not isinstance(header, dict):
        raise ModelError(f"{path}: the header must be a JSON object, but is {shown(header)}")
    return header


def _strings(metadata: Any) -> dict[str, str]:
    """Return the string entries of the metadata; anything malformed is ignored, models do not use
    it."""
    if not isinstance(metadata, dict):
        return {}
    return {key: value for key, value in metadata.items() if isinstance(value, str)}


Span = tuple[str, str, tuple[int, ...], int, int]
"""Name, dtype, shape, and begin and end of its bytes after the header."""


def _check_entry(path: Path, name: str, entry: Any, body_bytes: int) -> Span:
    if not isinstance(entry, dict):
        raise ModelError(
            f"{_place(path, name)}: its entry must be a JSON object, but is {shown(entry)}"
        )
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _entry_error(JsonObject(_place(path, name), entry))
    if not _are_sizes(shape) or not _are_span(offsets):
        raise _entry_error(JsonObject(_place(path, name), entry))
    begin, end = offsets
    if end > body_bytes:
        raise ModelError(
            f"{_place(path, name)}: ends at byte {end} after the header, but the file ends at "
            f"{body_bytes}; it is truncated: download it again"
        )
    n_bits = math.prod(shape) * BITS[dtype]
    if n_bits != 8 * (end - begin):
        raise ModelError(
            f"{_place(path, name)}: {dtype} {shown(tuple(shape))} needs {n_bits // 8} bytes, but "
            f"data_offsets span {end - begin}"
        )
    if math.prod(filter(None, shape)) >= 1 << 48:  # beside a zero; NumPy holds no such array
        raise ModelError(
            f"{_place(path, name)}: shape is {shown(shape)}; expected sizes with a product below "
            "2^48"
        )
    return name, dtype, tuple(shape), begin, end


def _place(path: Path, name: str) -> str:
    return f"{path}: tensor {shown(name)}"


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _are_span(value: Any) -> TypeGuard[list[int]]:
    return _are_sizes(value) and len(value) == 2 and value[0] <= value[1]


def _entry_error(fields: JsonObject) -> ModelError:
    """Return the error for an entry that does not describe a tensor."""
    fields.choice("dtype", tuple(BITS))
    if not _are_sizes(fields.get("shape")):
        return fields.error("shape", "a list of sizes")
    return fields.error("data_offsets", "[begin, end] with begin ≤ end")


def _check_cover(path: Path, spans: list[Span], body_bytes: int) -> None:
    """The tensors follow each other without overlap or gap and end where the file ends."""

    last, at = "", 0
    for name, _, _, begin, end in sorted(spans, key=lambda span: span[3:]):
        if begin != at:
            fault = "overlaps" if begin < at else "leaves a gap after"
            before = f"tensor {shown(last)}" if last else "the header"
            raise ModelError(
                f"{path}: tensor {shown(name)} {fault} {before}: "
                f"expected it to begin at byte {at}, but it begins at {begin}"
            )
        last, at = name, end
    if at != body_bytes:
        raise ModelError(
            f"{path}: {body_bytes - at} bytes follow the last tensor; expected none: the file is "
            "damaged"
        )
