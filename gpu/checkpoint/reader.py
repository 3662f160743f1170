"""Weights of a model folder: `model.safetensors`, or the shards that its index names.

Nothing is loaded on opening. The files are mapped into memory and read tensor by tensor, or a few
rows at a time, so that a matrix larger than the free memory can still be streamed to the device.

The format is that of the safetensors project: 8 bytes with the length of the header
(little-endian), the header as JSON, then the tensors' bytes without gaps. A file may lie about all
of it, so every number is checked against the file's true size before anything is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpu.errors import ModelError
from gpu.json_object import JsonObject, parse_json, shown

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
"""No path separators: an index must not reach out of its folder."""
MAX_HEADER_BYTES = 100_000_000
"""The safetensors project's own limit."""

BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
}  # fmt: skip
READABLE = ("F32", "F16", "BF16")
NOT_PARAMETERS = "rotary_emb.inv_freq"
"""Old checkpoints carry this table; it is computed, not learned."""

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]

Progress = Callable[[float, str], None]
"""Told the share that is done, from 0 to 1, and what is being done."""


class WeightSource(Protocol):
    """What loading a model asks of a checkpoint; see `Checkpoint`, which is one."""

    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read_f32(self, name: str, rows: slice | None = None) -> F32: ...

    def read_f16(self, name: str, rows: slice | None = None) -> F16: ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies: its bytes in the mapped file at `path`."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    data: Bytes

    @property
    def where(self) -> str:
        return f"{self.path}: tensor {shown(self.name)}"


class Checkpoint:
    """The tensors of a model folder by name."""

    def __init__(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        self.folder = folder
        self._tensors = tensors

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Map and check the weight files; `ModelError` names the file, the tensor and the fault."""
        folder = Path(folder)
        if (folder / WEIGHTS).exists():
            return cls(folder, _open_file(folder / WEIGHTS))
        if (folder / INDEX).exists():
            return cls(folder, _open_shards(folder))
        others = sorted(path.name for path in folder.glob("*.bin")) if folder.is_dir() else []
        hint = f"; {shown(others[0])} must be converted to safetensors first" if others else ""
        raise ModelError(f"{folder}: no weights: expected {WEIGHTS} or {INDEX}{hint}")

    def names(self) -> tuple[str, ...]:
        """All names, in the order of the file or of the index."""
        return tuple(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def dtype(self, name: str) -> str:
        """As safetensors names it: "F32", "BF16", …"""
        return self._tensor(name).dtype

    def n_bytes(self, name: str) -> int:
        """In the file."""
        return len(self._tensor(name).data)

    def parameters(self, tie_embeddings: bool = False) -> int:
        """How many weights there are; a tied output matrix that was saved too is not counted."""
        return sum(
            math.prod(tensor.shape)
            for name, tensor in self._tensors.items()
            if not name.endswith(NOT_PARAMETERS)
            and not (tie_embeddings and name == "lm_head.weight")
        )

    def read_f32(self, name: str, rows: slice | None = None) -> F32:
        """float32 copy of a tensor, or of `rows` of its first dimension; exact for every dtype.

        Raises `ModelError` for a name that is not there, a dtype that is not one of `READABLE`,
        and values that are not finite, which no model can compute with.
        """
        tensor, data = self._rows(name, rows)
        values = _to_f32(tensor, data)
        if not np.isfinite(values).all():
            raise ModelError(f"{tensor.where} holds NaN or infinity: the file is damaged")
        return values

    def read_f16(self, name: str, rows: slice | None = None) -> F16:
        """As `read_f32`, rounded to nearest float16. `ModelError` when a value is too large for it:
        clipped weights would give text that is quietly wrong."""
        tensor, data = self._rows(name, rows)
        with np.errstate(over="ignore"):
            values = _to_f32(tensor, data).astype(np.float16)
        if not np.isfinite(values).all():
            largest = float(np.abs(self.read_f32(name, rows)).max())
            raise ModelError(
                f"{tensor.where} holds {largest:g}, but float16 ends at 65504; "
                "load this model with dtype f32"
            )
        return values

    def pieces(self, name: str, n: int) -> Iterator[F32]:
        """All values of a tensor as float32, in the order of the file, at most `n` at a time; also
        those that are not finite. Raises `ModelError` as `read_f32` does for name and dtype."""
        tensor, data = self._rows(name, None)
        values = data.reshape(-1, data.shape[-1])
        for start in range(0, len(values), n):
            yield _to_f32(tensor, values[start : start + n])

    def _tensor(self, name: str) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"{self.folder}: tensor {shown(name)} is missing from the weights")
        return tensor

    def _rows(self, name: str, rows: slice | None) -> tuple[Tensor, Bytes]:
        """The tensor and its bytes as (n_rows, ..., bytes of one element), not copied."""
        tensor = self._tensor(name)
        if tensor.dtype not in READABLE:
            raise ModelError(
                f"{tensor.where} has dtype {tensor.dtype}; expected one of {', '.join(READABLE)}"
            )
        data = tensor.data.reshape(*tensor.shape, BITS[tensor.dtype] // 8)
        return tensor, data[rows] if rows is not None and tensor.shape else data


def loading(progress: Progress, n_bytes: int) -> Callable[[int], None]:
    """A function that is told of every piece of `n_bytes` as it was read, and tells `progress`."""
    read = 0

    def on_bytes(n: int) -> None:
        nonlocal read
        read += n
        message = f"loading weights, {read / 1e6:.0f} of {n_bytes / 1e6:.0f} MB"
        progress(min(1.0, read / n_bytes), message)

    return on_bytes


def _to_f32(tensor: Tensor, data: Bytes) -> F32:
    """`data` (..., bytes of one element) as a float32 array (...) of its own."""
    data = np.ascontiguousarray(data)
    shape = data.shape[:-1]
    if tensor.dtype == "BF16":  # the upper half of a float32
        wide = data.view("<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(shape)
    return data.view("<f4" if tensor.dtype == "F32" else "<f2").astype(np.float32).reshape(shape)


# ---- opening and checking --------------------------------------------------------------------


def _open_shards(folder: Path) -> dict[str, Tensor]:
    """Tensors of the files that the index names. The files lie beside the index, nowhere else."""
    index = JsonObject.read(folder / INDEX)
    weight_map = index.object("weight_map")
    if not weight_map.values:
        raise index.error("weight_map", "an object that names the file of each tensor")
    files: dict[str, dict[str, Tensor]] = {}
    tensors: dict[str, Tensor] = {}
    for name in weight_map.values:
        file = weight_map.string(name)
        if file not in files:
            if not SHARD.fullmatch(file):
                raise weight_map.error(name, "the name of a .safetensors file in the same folder")
            files[file] = _open_file(folder / file)
        if name not in files[file]:
            raise ModelError(
                f"{index.where}: says that tensor {shown(name)} is in {file}: it is not"
            )
        tensors[name] = files[file][name]
    return tensors


def _open_file(path: Path) -> dict[str, Tensor]:
    """Map one file and check that its header describes all of its bytes, once each."""
    try:
        n_bytes = path.stat().st_size
        if n_bytes < 8:
            raise ModelError(f"{path}: has {n_bytes} bytes, too few for a safetensors file")
        data: Bytes = np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; download all the files of the model") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, n_bytes - 8):
        raise ModelError(
            f"{path}: the header says it has {header_bytes} bytes, but the file has {n_bytes} "
            f"and {MAX_HEADER_BYTES} is the most allowed; it is truncated or not safetensors"
        )
    header = parse_json(data[8 : 8 + header_bytes].tobytes(), f"{path}: header")
    if not isinstance(header, dict):
        raise ModelError(f"{path}: the header must be a JSON object, but is {shown(header)}")
    header.pop("__metadata__", None)
    body = data[8 + header_bytes :]
    spans = [_check_entry(path, name, entry, len(body)) for name, entry in header.items()]
    _check_cover(path, spans, len(body))
    return {name: Tensor(name, path, dtype, shape, body[a:b]) for name, dtype, shape, a, b in spans}


Span = tuple[str, str, tuple[int, ...], int, int]
"""Name, dtype, shape, and where its bytes begin and end after the header."""


def _check_entry(path: Path, name: str, entry: Any, body_bytes: int) -> Span:
    where = f"{path}: tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise ModelError(f"{where}: its entry must be a JSON object, but is {shown(entry)}")
    fields = JsonObject(where, entry)
    dtype = fields.choice("dtype", tuple(BITS))
    shape = _sizes(fields, "shape", "a list of sizes")
    offsets = _sizes(fields, "data_offsets", "[begin, end] with begin ≤ end")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fields.error("data_offsets", "[begin, end] with begin ≤ end")
    begin, end = offsets
    if end > body_bytes:
        raise ModelError(
            f"{where}: ends at byte {end} after the header, but the file ends at {body_bytes}; "
            "it is truncated: download it again"
        )
    if math.prod(shape) * BITS[dtype] != 8 * (end - begin):
        raise ModelError(
            f"{where}: {dtype} {shown(shape)} needs {math.prod(shape) * BITS[dtype] // 8} bytes, "
            f"but data_offsets span {end - begin}"
        )
    return name, dtype, shape, begin, end


def _sizes(fields: JsonObject, key: str, expected: str) -> tuple[int, ...]:
    value = fields.get(key)
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise fields.error(key, expected)
    return tuple(value)


def _check_cover(path: Path, spans: list[Span], body_bytes: int) -> None:
    """The tensors follow each other without overlap or gap and end where the file ends."""

    last, at = "the header", 0
    for name, _, _, begin, end in sorted(spans, key=lambda span: span[3:]):
        if begin != at:
            fault = "overlaps" if begin < at else "leaves a gap after"
            raise ModelError(
                f"{path}: tensor {shown(name)} {fault} {last}: "
                f"expected it to begin at byte {at}, but it begins at {begin}"
            )
        last, at = f"tensor {shown(name)}", end
    if at != body_bytes:
        raise ModelError(
            f"{path}: {body_bytes - at} bytes follow the last tensor; expected none: the file is "
            "damaged"
        )
