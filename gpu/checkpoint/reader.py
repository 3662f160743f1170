"""Weights of a model: `model.safetensors` of its folder, the shards named by its index, or a GGUF
file.

Nothing is loaded on opening. The files are memory-mapped and read tensor by tensor, or a few rows
at a time, so that a matrix larger than the free memory can be streamed to the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.dtype_convert import convert
from gpu.checkpoint.gguf_repack import REPACKED_FORMATS, repack_blocks
from gpu.checkpoint.gguf_weights import open_gguf_weights
from gpu.checkpoint.packing import U32
from gpu.checkpoint.safetensors_files import (
    BITS,
    INDEX,
    WEIGHTS,
    Bytes,
    Tensor,
    open_safetensors,
    open_shards,
)
from gpu.errors import ModelError
from gpu.files.json_object import shown
from gpu.files.regular_file import is_there
from gpu.gguf.file import is_gguf
from gpu.gguf.types import QUANT_TYPES, dequantize_rows

NUMPY_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""NumPy types; bfloat16 is read as its bits."""
READABLE = tuple(NUMPY_DTYPES)
NOT_PARAMETERS = (
    "rotary_emb.inv_freq",
    *(f".{module}.{mask}" for module in ("attn", "attention") for mask in ("bias", "masked_bias")),
)
"""Tables and masks in old checkpoints; they are computed, not learned."""

OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Ends of the names of norms in the first BERTs, which came from TensorFlow, and of today's."""

COMPARED = 1 << 22
"""Numbers of two tensors that are compared at once."""

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]

Progress = Callable[[float, str], None]
"""Called with the share done, from 0 to 1, and a description of the work."""


class WeightSource(Protocol):
    """Interface of a checkpoint for loading a model; implemented by `Checkpoint`."""

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
        """Map and check the weight files. ModelError names the file, the tensor and the fault."""
        folder = Path(folder)
        if is_gguf(folder):
            return cls(folder, open_gguf_weights(folder))
        if is_there(folder / WEIGHTS):
            return cls(folder, _with_new_names(open_safetensors(folder / WEIGHTS)))
        if is_there(folder / INDEX):
            return cls(folder, _with_new_names(open_shards(folder)))
        others = sorted(path.name for path in folder.glob("*.bin")) if folder.is_dir() else []
        hint = f"; {shown(others[0])} must be converted to safetensors first" if others else ""
        raise ModelError(f"{folder}: no weights: expected {WEIGHTS} or {INDEX}{hint}")

    @classmethod
    def of_shapes(cls, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Checkpoint:
        """Return a checkpoint with shapes but without data."""
        nothing = np.empty(0, np.uint8)
        return cls(
            folder,
            {name: Tensor(name, folder, "F32", shape, nothing) for name, shape in shapes.items()},
        )

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors by name, in the order of the file or of the index."""
        return self._tensors

    def names(self) -> tuple[str, ...]:
        """Return all names, in the order of the file or of the index."""
        return tuple(self._tensors)

    def paths(self) -> tuple[Path, ...]:
        """Return the files that hold the tensors, sorted."""
        return tuple(sorted({tensor.path for tensor in self._tensors.values()}))

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def dtype(self, name: str) -> str:
        """Return the type as the file names it: "F32", "BF16", "Q4_K" …"""
        return self._tensor(name).dtype

    def is_readable(self, name: str) -> bool:
        """Return whether `read_f32` can read the tensor's type."""
        return self._tensor(name).dtype in (*READABLE, *QUANT_TYPES)

    def n_bytes(self, name: str) -> int:
        """Return the bytes of the tensor in the file."""
        return len(self._tensor(name).data)

    def are_equal(self, a: str, b: str) -> bool:
        """Return whether two tensors have the same numbers in the same shape; False if the numbers
        are not known (`of_shapes`)."""
        first, second = self._tensor(a), self._tensor(b)
        if first.shape != second.shape or not (len(first.data) and len(second.data)):
            return False
        if first.dtype == second.dtype:
            return np.array_equal(first.data, second.data)
        n = max(1, COMPARED // max(1, math.prod(first.shape[1:])))
        rows = (slice(at, at + n) for at in range(0, first.shape[0], n))
        return all(np.array_equal(self.read_f32(a, part), self.read_f32(b, part)) for part in rows)

    def parameters(self, tie_embeddings: bool = False) -> int:
        """Return the number of weights; a tied output matrix that was saved too is not counted."""
        return sum(math.prod(tensor.shape) for tensor in self._learned(tie_embeddings))

    def parameter_bytes(self, tie_embeddings: bool = False) -> int:
        """Return the bytes of the counted weights in the files."""
        return sum(len(tensor.data) for tensor in self._learned(tie_embeddings))

    def _learned(self, tied: bool) -> Iterator[Tensor]:
        for name, tensor in self._tensors.items():
            if not name.endswith(NOT_PARAMETERS) and not (tied and name == "lm_head.weight"):
                yield tensor

    def read_f32(self, name: str, rows: slice | None = None, columns: slice | None = None) -> F32:
        """Return a float32 copy of a tensor, or of `rows` of its first dimension, or of `columns`
        of its second; exact for every dtype.

        Raises ModelError for an unknown name, an unreadable dtype, and values that are not finite,
        which no model can compute with.
        """
        return self._read(name, rows, columns, np.dtype(np.float32))

    def read_f16(self, name: str, rows: slice | None = None, columns: slice | None = None) -> F16:
        """Return what `read_f32` reads, rounded to nearest float16.

        Raises ModelError also for a value beyond float16: clipped weights would silently give wrong
        text.
        """
        return self._read(name, rows, columns, np.dtype(np.float16))

    def read_into(
        self, out: F32 | F16, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> None:
        """Read into `out` as `read_f32` or `read_f16`, by the dtype of `out`."""
        self._read(name, rows, columns, out.dtype, out)

    def is_packed(self, name: str, dtype: str) -> bool:
        """Return whether the tensor is a matrix whose blocks hold the integers of the storage type
        `dtype`."""
        tensor = self._tensor(name)
        is_matrix = len(tensor.shape) == 2 and not tensor.transposed
        return is_matrix and REPACKED_FORMATS.get(tensor.dtype) == dtype

    def read_packed(self, name: str, rows: slice) -> U32:
        """Return rows of a tensor that `is_packed`, in the layout of `gpu.checkpoint.packing`, with
        the integers of the file. Raises ModelError if numbers are not finite."""
        tensor = self._tensor(name)
        try:
            return repack_blocks(tensor.dtype, self._rows(tensor, rows))
        except OverflowError as error:
            raise ModelError(f"{tensor.where}: {error}; use dtype f32") from None

    def pieces(self, name: str, n: int) -> Iterator[F32]:
        """Yield all values of a tensor as float32, in the order of the file, at most `n` at a time.

        Values that are not finite are included. Raises ModelError as `read_f32` does for name and
        dtype.
        """
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
        """Read part of a tensor into `out`, or into a new array."""
        tensor = self._tensor(name)
        if tensor.transposed:
            transposed_out = None if out is None else out.T
            values, finite = _converted(
                tensor, self._rows(tensor, columns), rows, to, transposed_out
            )
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
        """Return the tensor's bytes in the file: (n_rows, ..., bytes of an element, or of a row for
        block types).

        They are copied only if the rows must be reordered.
        """
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


def weight_progress(
    progress: Progress, checkpoint: Checkpoint, tied: bool, doing: str = "loading"
) -> Callable[[int], None]:
    """Return a function that takes the number of weights just loaded and reports their share to
    `progress`. `tied`: the output matrix is the embedding."""
    n_weights, n_bytes = checkpoint.parameters(tied), checkpoint.parameter_bytes(tied)
    loaded = 0

    def on_weights(n: int) -> None:
        nonlocal loaded
        loaded += n
        share = min(1.0, loaded / n_weights)  # adapters are in no file of the model
        progress(share, f"{doing} weights, {share * n_bytes / 1e6:.0f} of {n_bytes / 1e6:.0f} MB")

    return on_weights


def _with_new_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file by the names that `transformers` has for them today."""
    found = {}
    for name, tensor in tensors.items():
        old = next((old for old in OLD_NAMES if name.endswith(old)), "")
        new = name.removesuffix(old) + OLD_NAMES.get(old, "")
        found[new] = replace(tensor, name=new) if old else tensor
    return found


def _unit(tensor: Tensor) -> int:
    """Return how many weights are unpacked together: a row for block types."""
    return tensor.stored_shape[-1] if tensor.dtype in QUANT_TYPES else 1


def _converted(
    tensor: Tensor,
    data: Bytes,
    columns: slice | None,
    to: np.dtype[Any],
    out: npt.NDArray[Any] | None = None,
) -> tuple[npt.NDArray[Any], bool]:
    """Convert bytes from `Checkpoint._rows` into `out` or a new array; also return whether all
    values are finite."""
    if tensor.dtype in QUANT_TYPES:
        stored: npt.NDArray[Any] = dequantize_rows(tensor.dtype, data)
    else:
        stored = np.asarray(data).view(NUMPY_DTYPES[tensor.dtype])[..., 0]
    if columns is not None:
        stored = stored[:, columns]
    if tensor.plus:
        stored = stored + np.float32(tensor.plus)
    if out is None:
        out = np.empty(stored.shape, to)
    return out, convert(np.atleast_1d(stored), np.atleast_1d(out))
