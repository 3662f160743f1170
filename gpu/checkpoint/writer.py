"""Writing of safetensors files, by the library of that name, from mapped memory.

The library is handed addresses: it streams what lies in a mapped file to the new one, so that no
tensor is copied into this process's memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, TensorSpec, serialize_file

from gpu.checkpoint.files import Bytes

DTYPES = {
    "F64": "float64", "I64": "int64", "U64": "uint64", "F32": "float32", "I32": "int32",
    "U32": "uint32", "F16": "float16", "BF16": "bfloat16", "I16": "int16", "U16": "uint16",
    "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
"""Names of the library for the names in a file's header."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to write: `data` are its bytes, in one contiguous part or several."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Sequence[Bytes]

    @property
    def n_bytes(self) -> int:
        return sum(part.nbytes for part in self.data)


def write_safetensors(path: Path, entries: Sequence[Entry]) -> None:
    """Write a file and wait until the disk has it. Raises OSError."""
    joined = [_joined(entry, path.parent) for entry in entries]  # alive until all is written
    specs = {
        entry.name: TensorSpec(
            dtype=DTYPES[entry.dtype],
            shape=_storage_shape(entry),
            data_ptr=data.ctypes.data,
            data_len=data.nbytes,
        )
        for entry, data in zip(entries, joined, strict=True)
    }
    try:
        # "pt" names the layout that PyTorch, and everybody else, reads: row by row.
        serialize_file(specs, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _joined(entry: Entry, folder: Path) -> Bytes:
    """The bytes of a tensor in one piece: several parts go through an unnamed file in `folder`,
    because together they may be larger than the memory."""
    if len(entry.data) == 1 or entry.n_bytes == 0:
        return entry.data[0] if entry.data else np.empty(0, np.uint8)
    with tempfile.TemporaryFile(dir=folder) as file:
        whole = np.memmap(file, np.uint8, "w+", shape=(entry.n_bytes,))
    at = 0
    for part in entry.data:
        whole[at : at + part.nbytes] = part.reshape(-1)
        at += part.nbytes
    return whole


def _storage_shape(entry: Entry) -> Sequence[int]:
    """Shape in units of the library's type, which holds two numbers of 4 bits."""
    if entry.dtype != "F4":
        return entry.shape
    return (*entry.shape[:-1], entry.shape[-1] // 2)
