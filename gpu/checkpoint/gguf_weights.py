"""Tensors of a GGUF file under the names, shapes and row orders of a Hugging Face checkpoint.

llama.cpp's converter renames tensors, permutes rows, and stacks all experts of a layer in one
tensor. No byte is moved here: each `Tensor` records how its rows are ordered in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpu.architectures import Architecture, gguf_architecture
from gpu.architectures.common.gguf_format import CheckpointTensor, GgufFormat
from gpu.architectures.common.gguf_readers import MAX_EXPERTS
from gpu.checkpoint.safetensors_files import Tensor
from gpu.errors import ModelError
from gpu.files.json_object import shown
from gpu.gguf.file import GgufFile, GgufTensor, open_gguf
from gpu.gguf.metadata import Metadata
from gpu.gguf.names import is_weight

RowOrder = npt.NDArray[np.intp]
Orders = Mapping[str, Callable[[int, str], RowOrder]]
"""Row orders by module: a function of (number of rows, place for errors) returns the file row of
each row."""


def open_gguf_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a GGUF file by their Hugging Face names.

    Raises ModelError for a tensor that the architecture does not have: leaving it out would
    silently give wrong text.
    """
    file = open_gguf(path)
    architecture, gguf_format = gguf_architecture(file)
    orders = _orders(architecture, gguf_format, file)
    tensors: dict[str, Tensor] = {}
    for gguf in file.tensors.values():
        if not is_weight(gguf.name):
            continue
        found = gguf_format.find(gguf.name, architecture.tensors.prefix)
        if found is None:
            raise ModelError(
                f"{gguf.path}: tensor {shown(gguf.name)} is not known for "
                f"{architecture.model_type} models; the file cannot be run without it"
            )
        for tensor in _tensors(architecture, orders, gguf, found):
            if tensor.name in tensors:
                raise ModelError(f"{gguf.path}: {shown(tensor.name)} is in two tensors")
            tensors[tensor.name] = tensor
    return tensors


def _tensors(
    architecture: Architecture, orders: Orders, gguf: GgufTensor, found: CheckpointTensor
) -> Iterator[Tensor]:
    """Yield one tensor, or one per expert."""
    kind, shape, where = gguf.type.name, gguf.shape, f"{gguf.path}: tensor {shown(gguf.name)}"
    if "*" in found.module:
        if len(shape) != 3 or not 1 <= shape[0] <= MAX_EXPERTS:
            raise ModelError(
                f"{where} has shape {shape}; expected (experts, rows, columns) with 1 to "
                f"{MAX_EXPERTS} experts"
            )
        for expert, data in enumerate(gguf.data.reshape(shape[0], -1)):
            yield Tensor(found.name_of_expert(expert), gguf.path, kind, shape[1:], data)
        return
    module, is_weight = found.module.rpartition(".")[2], found.suffix == "weight"
    transposed = is_weight and found.module.endswith(tuple(architecture.tensors.transposed()))
    if module == "shared_expert_gate" and len(shape) == 1:  # a matrix of one row
        shape = (1, *shape)
    yield Tensor(
        found.name,
        gguf.path,
        kind,
        shape[::-1] if transposed else shape,
        gguf.data,
        rows=orders[module](shape[0], where) if module in orders else None,
        transposed=transposed,
        plus=-1.0 if architecture.tensors.norm_plus_one and module.endswith("norm") else 0.0,
    )


def _orders(architecture: Architecture, gguf: GgufFormat, file: GgufFile) -> Orders:
    meta = Metadata(file)
    if architecture.tensors.qkv_by_head:
        n_heads = meta.n_heads
        return {"query_key_value": lambda n_rows, where: _head_order(n_rows, n_heads, where)}
    if not gguf.qk_permuted:
        return {}
    n_heads, n_kv_heads = meta.n_heads, meta.n_kv_heads
    return {
        "q_proj": lambda n_rows, where: _pair_order(n_rows, n_heads, where),
        "k_proj": lambda n_rows, where: _pair_order(n_rows, n_kv_heads, where),
    }


def _pair_order(n_rows: int, n_heads: int, where: str) -> RowOrder:
    """Return the (n_rows,) order that undoes llama.cpp's permutation of rotary pairs: the file has
    row j of a head's lower half beside row j of its upper half."""
    if n_rows % (2 * n_heads):
        raise ModelError(f"{where} has {n_rows} rows; expected a multiple of 2 × {n_heads} heads")
    return np.arange(n_rows).reshape(n_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _head_order(n_rows: int, n_heads: int, where: str) -> RowOrder:
    """Return the (n_rows,) order that interleaves heads again: the file has the queries of all
    heads, then all keys, then all values."""
    if n_rows % (3 * n_heads):
        raise ModelError(f"{where} has {n_rows} rows; expected a multiple of 3 × {n_heads} heads")
    return np.arange(n_rows).reshape(3, n_heads, -1).swapaxes(0, 1).reshape(-1)
