"""Writer of safetensors files from mapped memory, by the safetensors library.

The library is given addresses and streams mapped files to the new one, so that no tensor is copied
into this process's memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, TensorSpec, serialize_file

from gpu.checkpoint.safetensors_files import Bytes

DTYPES = {
    "F64": "float64", "I64": "int64", "U64": "uint64", "F32": "float32", "I32": "int32",
    "U32": "uint32", "F16": "float16", "BF16": "bfloat16", "I16": "int16", "U16": "uint16",
    "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
"""The library's type names, by the names in a file's header."""


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor to write. `data`: its bytes, as one or more contiguous arrays."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Sequence[Bytes]

    @property
    def n_bytes(self) -> int:
        return sum(part.nbytes for part in self.data)


def write_safetensors(path: Path, entries: Sequence[TensorToWrite]) -> None:
    """Write a file and flush it to disk. Raises OSError."""
    joined = [_joined(entry, path.parent) for entry in entries]  # the library reads addresses
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
        # "pt" means row-major, the layout that all readers expect.
        serialize_file(specs, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _joined(entry: TensorToWrite, folder: Path) -> Bytes:
    """Return a tensor's bytes as one array. Several arrays are joined in an unnamed file in
    `folder`, because together they may exceed the memory."""
    if len(entry.data) == 1 or entry.n_bytes == 0:
        return entry.data[0] if entry.data else np.empty(0, np.uint8)
    with tempfile.TemporaryFile(dir=folder) as file:
        whole = np.memmap(file, np.uint8, "w+", shape=(entry.n_bytes,))
    at = 0
    for part in entry.data:
        whole[at : at + part.nbytes] = part.reshape(-1)
        at += part.nbytes
    return whole


def _storage_shape(entry: TensorToWrite) -> Sequence[int]:
    """Return the shape in units of the library's type; one F4 unit holds two numbers."""
    if entry.dtype != "F4":
        return entry.shape
    return (*entry.shape[:-1], entry.shape[-1] // 2)
