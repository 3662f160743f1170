"""The header of a GGUF file: its metadata, and the types, shapes and offsets of its tensors.

The format is llama.cpp's, versions 2 and 3 (docs/gguf.md of the ggml project), little-endian:

    "GGUF", u32 version, u64 n_tensors, u64 n_values
    n_values × (string key, u32 type, value)
    n_tensors × (string name, u32 n_dims, u64 dims[n_dims] (fastest first), u32 type, u64 offset)
    padding to `general.alignment`, then the tensors' bytes at their offsets from there

A string is a u64 length and UTF-8; an array is a u32 type, a u64 count and the values. Any of it
may be wrong or malicious, so every length is checked against the remaining bytes before anything is
read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.errors import ModelError
from gpu.files.json_object import shown
from gpu.gguf.types import TYPES, GgufType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16
"""Most values, and most tensors: real files have a few thousand."""
MAX_STRINGS = 1 << 21
"""Most strings of all arrays together: Gemma 3 has 780,000 tokens and merges."""
MAX_TEXT_BYTES = 32 << 20
"""Most bytes of all strings together: Gemma 3 has 9 MB, a chat template some KB."""
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16

STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
    BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip

Bytes = npt.NDArray[np.uint8]


class TruncatedHeader(ModelError):
    """The data ends inside the header."""


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensors' bytes, which begin at `start`."""

    values: Mapping[str, Any]
    infos: Mapping[str, TensorInfo]
    start: int
    alignment: int


def read_header(path: Path, data: Bytes) -> Header:
    """Parse the header of the file at `path` from its first bytes, `data`.

    Raises TruncatedHeader if `data` ends inside the header, and ModelError for a faulty one.
    """
    reader = _Reader(path, data)
    n_tensors, n_values = reader.preamble()
    values = dict(_unique(path, "key", (reader.metadata_kv() for _ in range(n_values))))
    infos = dict(_unique(path, "tensor", (reader.tensor_info() for _ in range(n_tensors))))
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    ok = type(alignment) is int and 0 < alignment <= MAX_ALIGNMENT and alignment % 8 == 0
    if not ok:
        raise ModelError(f"{path}: general.alignment is {shown(alignment)}; expected 8, 16, 32 …")
    return Header(values, infos, -(-reader.at // alignment) * alignment, alignment)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Type, shape and place of a tensor; `offset` is relative to the start of the tensors'
    bytes."""

    type: GgufType
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


class _Reader:
    """Sequential reader of a header that never passes the end of the data."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self._path = path
        self._data = data.data
        self._n_strings = 0
        self._n_text_bytes = 0
        self.at = 0

    def preamble(self) -> tuple[int, int]:
        """Return the number of tensors and of values."""
        magic, version = bytes(self._take(4, "the magic")), self._number("<u4")
        if magic != MAGIC:
            raise self._error(f"begins with {magic!r}; expected {MAGIC!r}: it is not a GGUF file")
        if version not in VERSIONS:
            raise self._error(
                f"is GGUF version {version}; supported: {', '.join(map(str, VERSIONS))}, "
                "little-endian"
            )
        counts = self._number("<u8"), self._number("<u8")
        if max(counts) > MAX_ENTRIES:
            raise self._error(
                f"has {counts[0]} tensors and {counts[1]} values; at most {MAX_ENTRIES} of each "
                "are supported"
            )
        return counts

    def metadata_kv(self) -> tuple[str, Any]:
        key = self._string("a key")
        return key, self._value(self._number("<u4"), key)

    def tensor_info(self) -> tuple[str, TensorInfo]:
        name = self._string("a tensor's name")
        n_dims = self._number("<u4")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self._error(f"tensor {shown(name)} has {n_dims} dimensions; expected 1 to 4")
        dims = [self._number("<u8") for _ in range(n_dims)]
        kind, offset = self._number("<u4"), self._number("<u8")
        type = TYPES.get(kind)
        if type is None:
            raise self._error(
                f"tensor {shown(name)} has type {kind}; supported: "
                + ", ".join(t.name for t in TYPES.values())
            )
        # Without zeros: with one, any other dimension would pass.
        if math.prod(filter(None, dims)) >= 1 << 48 or dims[0] % type.block_size:
            raise self._error(
                f"tensor {shown(name)} has dimensions {dims}; the first of a {type.name} tensor "
                f"must be a multiple of {type.block_size}, and their product below 2^48"
            )
        n_bytes = math.prod(dims) // type.block_size * type.type_size
        return name, TensorInfo(type, tuple(reversed(dims)), offset, n_bytes)

    def _value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self._string(f"the value of {shown(key)}")
        if kind == ARRAY:
            return self._array(key)
        return self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> Any:
        if kind not in NUMBERS:
            raise self._error(f"{shown(key)} has value type {kind}; expected 0 to 12")
        number = self._number(NUMBERS[kind])
        return bool(number) if kind == BOOL else number

    def _array(self, key: str) -> Any:
        kind, count = self._number("<u4"), self._number("<u8")
        if kind == STRING:
            return self._strings(count, key)
        if kind not in NUMBERS:
            raise self._error(
                f"{shown(key)} is an array of value type {kind}; expected strings or numbers"
            )
        item = np.dtype(NUMBERS[kind])
        data = self._take(count * item.itemsize, f"the array {shown(key)}")
        values = np.frombuffer(data, item)
        return values.astype(bool) if kind == BOOL else values

    def _strings(self, count: int, key: str) -> list[str]:
        if count > (len(self._data) - self.at) // 8:  # every string has its length
            raise TruncatedHeader(
                f"{self._path}: {shown(key)} has {count} strings, but the file ends before the "
                "last; it is truncated: download it again"
            )
        self._n_strings += count
        if self._n_strings > MAX_STRINGS:
            raise self._error(
                f"its arrays up to {shown(key)} have {self._n_strings} strings; at most "
                f"{MAX_STRINGS} are supported"
            )
        what = f"a string of {shown(key)}"
        return [self._string(what) for _ in range(count)]

    def _string(self, what: str) -> str:
        data = self._take(self._number("<u8"), what)
        self._n_text_bytes += len(data)
        if self._n_text_bytes > MAX_TEXT_BYTES:
            raise self._error(
                f"its strings up to {what} have {self._n_text_bytes:,} bytes; at most "
                f"{MAX_TEXT_BYTES:,} are supported"
            )
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{what} before byte {self.at} is not UTF-8 ({error})") from None

    def _number(self, format: str) -> Any:
        number = _STRUCT[format]
        return number.unpack(self._take(number.size, "a number"))[0]

    def _take(self, n: int, what: str) -> memoryview:
        at = self.at
        if n > len(self._data) - at:
            raise TruncatedHeader(
                f"{self._path}: {what} at byte {at} needs {n} bytes, but "
                f"only {len(self._data) - at} are left; it is truncated or damaged: download it "
                "again"
            )
        self.at = at + n
        return self._data[at : self.at]

    def _error(self, fault: str) -> ModelError:
        return ModelError(f"{self._path}: {fault}")


_STRUCT = {
    name: struct.Struct(format)
    for name, format in {
        "<u1": "<B", "<i1": "<b", "<u2": "<H", "<i2": "<h", "<u4": "<I", "<i4": "<i",
        "<f4": "<f", "<u8": "<Q", "<i8": "<q", "<f8": "<d",
    }.items()
}  # fmt: skip


def _unique(path: Path, what: str, entries: Any) -> Any:
    seen: set[str] = set()
    for name, value in entries:
        if name in seen:
            raise ModelError(f"{path}: {what} {shown(name)} is given twice")
        seen.add(name)
        yield name, value
