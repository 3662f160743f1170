"""Weights of a model: `model.safetensors` of its folder, the shards that its index names, or a GGUF
file.

Nothing is loaded on opening. The files are mapped into memory and read tensor by tensor, or a few
rows at a time, so that a matrix larger than the free memory can still be streamed to the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.blocks import AS, packed_blocks
from gpu.checkpoint.files import (
    BITS,
    INDEX,
    WEIGHTS,
    Bytes,
    Tensor,
    open_safetensors,
    open_shards,
)
from gpu.checkpoint.gguf_weights import open_gguf_weights
from gpu.checkpoint.numbers import convert
from gpu.checkpoint.packing import U32
from gpu.errors import ModelError
from gpu.gguf.file import is_gguf
from gpu.gguf.types import BLOCKS, unpacked
from gpu.json_object import shown
from gpu.regular_file import is_there

STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""How NumPy sees them; of bfloat16 it sees the bits."""
READABLE = tuple(STORED)
NOT_PARAMETERS = (
    "rotary_emb.inv_freq",
    *(f".{module}.{mask}" for module in ("attn", "attention") for mask in ("bias", "masked_bias")),
)
"""Old checkpoints carry these tables and masks; they are computed, not learned."""

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]

Progress = Callable[[float, str], None]
"""Told the share that is done, from 0 to 1, and what is being done."""


class WeightSource(Protocol):
    """What loading a model asks of a checkpoint; see `Checkpoint`, which is one."""

    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read_f32(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> F32: ...

    def read_f16(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> F16: ...

    def read_into(
        self, out: F32 | F16, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> None: ...


class Checkpoint:
    """The tensors of a model by name."""

    def __init__(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        self.folder = folder
        self._tensors = tensors

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Map and check the weight files; `ModelError` names the file, the tensor and the fault."""
        folder = Path(folder)
        if is_gguf(folder):
            return cls(folder, open_gguf_weights(folder))
        if is_there(folder / WEIGHTS):
            return cls(folder, open_safetensors(folder / WEIGHTS))
        if is_there(folder / INDEX):
            return cls(folder, open_shards(folder))
        others = sorted(path.name for path in folder.glob("*.bin")) if folder.is_dir() else []
        hint = f"; {shown(others[0])} must be converted to safetensors first" if others else ""
        raise ModelError(f"{folder}: no weights: expected {WEIGHTS} or {INDEX}{hint}")

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Where each lies, in the order of the file or of the index."""
        return self._tensors

    def names(self) -> tuple[str, ...]:
        """All names, in the order of the file or of the index."""
        return tuple(self._tensors)

    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors, by name."""
        return tuple(sorted({tensor.path for tensor in self._tensors.values()}))

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def dtype(self, name: str) -> str:
        """As its file names it: "F32", "BF16", "Q4_K" …"""
        return self._tensor(name).dtype

    def is_readable(self, name: str) -> bool:
        """Does it hold numbers that `read_f32` can give?"""
        return self._tensor(name).dtype in (*READABLE, *BLOCKS)

    def n_bytes(self, name: str) -> int:
        """In the file."""
        return len(self._tensor(name).data)

    def parameters(self, tie_embeddings: bool = False) -> int:
        """How many weights there are; a tied output matrix that was saved too is not counted."""
        return sum(math.prod(tensor.shape) for tensor in self._learned(tie_embeddings))

    def parameter_bytes(self, tie_embeddings: bool = False) -> int:
        """What they take in the files."""
        return sum(len(tensor.data) for tensor in self._learned(tie_embeddings))

    def _learned(self, tied: bool) -> Iterator[Tensor]:
        for name, tensor in self._tensors.items():
            if not name.endswith(NOT_PARAMETERS) and not (tied and name == "lm_head.weight"):
                yield tensor

    def read_f32(self, name: str, rows: slice | None = None, columns: slice | None = None) -> F32:
        """float32 copy of a tensor, or of `rows` of its first dimension, or of `columns` of its
        second; exact for every dtype.

        Raises `ModelError` for a name that is not there, a dtype that is not readable, and values
        that are not finite, which no model can compute with.
        """
        return self._read(name, rows, columns, np.dtype(np.float32))

    def read_f16(self, name: str, rows: slice | None = None, columns: slice | None = None) -> F16:
        """As `read_f32`, rounded to nearest float16. `ModelError` when a value is too large for it:
        clipped weights would give text that is quietly wrong."""
        return self._read(name, rows, columns, np.dtype(np.float16))

    def read_into(
        self, out: F32 | F16, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> None:
        """As `read_f32` or `read_f16`, whichever `out` holds, into `out`."""
        self._read(name, rows, columns, out.dtype, out)

    def is_packed(self, name: str, dtype: str) -> bool:
        """Does it lie in its file as the storage type `dtype` has it, but for the order?"""
        tensor = self._tensor(name)
        return AS.get(tensor.dtype) == dtype and not tensor.transposed

    def read_packed(self, name: str, rows: slice) -> U32:
        """Rows of a tensor that `is_packed`, as `gpu.checkpoint.packing` lays them: exactly the
        numbers of the file. Raises `ModelError` when they are not finite."""
        tensor = self._tensor(name)
        try:
            return packed_blocks(tensor.dtype, self._rows(tensor, rows))
        except OverflowError as error:
            raise ModelError(f"{tensor.where}: {error}; use dtype f32") from None

    def pieces(self, name: str, n: int) -> Iterator[F32]:
        """All values of a tensor as float32, in the order of the file, at most `n` at a time; also
        those that are not finite. Raises `ModelError` as `read_f32` does for name and dtype."""
        tensor = self._tensor(name)
        data = self._rows(tensor, None)
        units = data.reshape(-1, data.shape[-1])
        step = max(1, n // _unit(tensor))
        for start in range(0, len(units), step):
            piece = units[start : start + step]
            yield _converted(tensor, piece, None, np.dtype(np.float32))[0].reshape(-1)

    def _tensor(self, name: str) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"{self.folder}: tensor {shown(name)} is missing from the weights")
        return tensor

    def _read(
        self,
        name: str,
        rows: slice | None,
        columns: slice | None,
        to: np.dtype[Any],
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Some of a tensor in `out`, or as an array of its own."""
        tensor = self._tensor(name)
        if tensor.transposed:
            turned = None if out is None else out.T
            values, finite = _converted(tensor, self._rows(tensor, columns), rows, to, turned)
            values = values.T
        else:
            values, finite = _converted(tensor, self._rows(tensor, rows), columns, to, out)
        if finite:
            return values
        if to == np.float32:
            raise ModelError(f"{tensor.where} holds NaN or infinity: the file is damaged")
        largest = float(np.abs(self.read_f32(name, rows, columns)).max())
        raise ModelError(
            f"{tensor.where} holds {largest:g}, but float16 ends at 65504; "
            "load this model with dtype f32"
        )

    def _rows(self, tensor: Tensor, rows: slice | None) -> Bytes:
        """Bytes of a tensor as they lie in the file, (n_rows, ..., bytes of one element, or of one
        row where those come in blocks), not copied unless they must be put in order."""
        if not self.is_readable(tensor.name):
            raise ModelError(
                f"{tensor.where} has dtype {tensor.dtype}; expected one of {', '.join(READABLE)}"
            )
        shape = tensor.stored_shape
        if tensor.dtype in BITS:
            data = tensor.data.reshape(*shape, BITS[tensor.dtype] // 8)
        else:
            n_rows = math.prod(shape[:-1])
            data = tensor.data.reshape(*shape[:-1], len(tensor.data) // max(1, n_rows))
        if tensor.rows is not None:
            return data[tensor.rows if rows is None else tensor.rows[rows]]
        return data[rows] if rows is not None and shape else data


def loading(
    progress: Progress, checkpoint: Checkpoint, tied: bool, doing: str = "loading"
) -> Callable[[int], None]:
    """A function that is told how many weights are in place now, and tells `progress` the share of
    all of them, and how many bytes of the files that is. `tied`: the output matrix is the
    embedding."""
    n_weights, n_bytes = checkpoint.parameters(tied), checkpoint.parameter_bytes(tied)
    loaded = 0

    def on_weights(n: int) -> None:
        nonlocal loaded
        loaded += n
        share = min(1.0, loaded / n_weights)  # adapters are in no file of the model
        progress(share, f"{doing} weights, {share * n_bytes / 1e6:.0f} of {n_bytes / 1e6:.0f} MB")

    return on_weights


def _unit(tensor: Tensor) -> int:
    """How many weights are unpacked together: a row where they come in blocks."""
    return tensor.stored_shape[-1] if tensor.dtype in BLOCKS else 1


def _converted(
    tensor: Tensor,
    data: Bytes,
    columns: slice | None,
    to: np.dtype[Any],
    out: npt.NDArray[Any] | None = None,
) -> tuple[npt.NDArray[Any], bool]:
    """`data` as `Checkpoint._rows` gives it, in `out` or an array of its own, and whether it is
    finite."""
    if tensor.dtype in BLOCKS:
        stored: npt.NDArray[Any] = unpacked(tensor.dtype, data)
    else:
        stored = np.asarray(data).view(STORED[tensor.dtype])[..., 0]
    if columns is not None:
        stored = stored[:, columns]
    if tensor.plus:
        stored = stored + np.float32(tensor.plus)
    if out is None:
        out = np.empty(stored.shape, to)
    return out, convert(np.atleast_1d(stored), np.atleast_1d(out))
