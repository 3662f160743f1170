"""The tensors of a GGUF file as a checkpoint of Hugging Face would have them: llama.cpp's converter
renamed them, put rows in another order, and put all experts of a layer into one tensor. No byte is
moved here: each tensor knows how its own lie in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.files import Tensor
from gpu.errors import ModelError
from gpu.gguf.architectures import MAX_EXPERTS, Architecture, architecture
from gpu.gguf.file import GgufFile, GgufTensor, open_gguf
from gpu.gguf.metadata import Metadata
from gpu.gguf.names import Found, is_needed
from gpu.json_object import shown

Order = npt.NDArray[np.intp]
Orders = Mapping[str, Callable[[int, str], Order]]
"""By module: of a number of rows, and where they are, which row of the file each of them is."""


def open_gguf_weights(path: Path) -> dict[str, Tensor]:
    """By their names in a checkpoint. Raises ModelError for a tensor that the architecture has not:
    leaving it out would give text that is quietly wrong."""
    file = open_gguf(path)
    arch = architecture(file)
    orders = _orders(arch, file)
    tensors: dict[str, Tensor] = {}
    for gguf in file.tensors.values():
        if not is_needed(gguf.name):
            continue
        found = arch.names.find(gguf.name)
        if found is None:
            raise ModelError(
                f"{gguf.path}: tensor {shown(gguf.name)} is not known of {arch.model_type} models; "
                "the file cannot be run without it"
            )
        for tensor in _tensors(arch, orders, gguf, found):
            if tensor.name in tensors:
                raise ModelError(f"{gguf.path}: {shown(tensor.name)} is in two tensors")
            tensors[tensor.name] = tensor
    return tensors


def _tensors(
    arch: Architecture, orders: Orders, gguf: GgufTensor, found: Found
) -> Iterator[Tensor]:
    """One, or one of each expert."""
    kind, shape, where = gguf.type.name, gguf.shape, f"{gguf.path}: tensor {shown(gguf.name)}"
    if "*" in found.module:
        if len(shape) != 3 or not 1 <= shape[0] <= MAX_EXPERTS:
            raise ModelError(
                f"{where} has shape {shape}; expected (experts, rows, columns), of 1 to "
                f"{MAX_EXPERTS} experts"
            )
        for expert, data in enumerate(gguf.data.reshape(shape[0], -1)):
            yield Tensor(found.of_expert(expert), gguf.path, kind, shape[1:], data)
        return
    module, is_weight = found.module.rpartition(".")[2], found.suffix == "weight"
    transposed = is_weight and found.module.endswith(arch.transposed)
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
        plus=-1.0 if arch.whole_gains and module.endswith("norm") else 0.0,
    )


def _orders(arch: Architecture, file: GgufFile) -> Orders:
    meta = Metadata(file)
    if arch.heads_apart:
        n_heads = meta.n_heads
        return {"query_key_value": lambda n_rows, where: _head_order(n_rows, n_heads, where)}
    if not arch.pairs_beside:
        return {}
    n_heads, n_kv_heads = meta.n_heads, meta.n_kv_heads
    return {
        "q_proj": lambda n_rows, where: _pair_order(n_rows, n_heads, where),
        "k_proj": lambda n_rows, where: _pair_order(n_rows, n_kv_heads, where),
    }


def _pair_order(n_rows: int, n_heads: int, where: str) -> Order:
    """(n_rows,): the file has row j of a head's lower half beside row j of its upper half."""
    if n_rows % (2 * n_heads):
        raise ModelError(f"{where} has {n_rows} rows; expected a multiple of 2 × {n_heads} heads")
    return np.arange(n_rows).reshape(n_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _head_order(n_rows: int, n_heads: int, where: str) -> Order:
    """(n_rows,): the file has the queries of all heads, then all keys, then all values."""
    if n_rows % (3 * n_heads):
        raise ModelError(f"{where} has {n_rows} rows; expected a multiple of 3 × {n_heads} heads")
    return np.arange(n_rows).reshape(3, n_heads, -1).swapaxes(0, 1).reshape(-1)
