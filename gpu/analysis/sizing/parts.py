"""Parameters and bytes of a model by part, under the names that papers give its matrices."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import msgspec

from gpu.analysis.sizing.model_shape import ModelShape
from gpu.architectures.common.tensor_map import TensorMap, TensorMatch
from gpu.checkpoint.article_names import GATE_UP, QKV, matrix_names
from gpu.checkpoint.config_shapes import qkv_rows
from gpu.checkpoint.inventory import TensorEntry
from gpu.checkpoint.tensor_names import tensor_map_of
from gpu.config import ModelConfig

EMBEDDING, POSITIONS, HEAD = "W_E", "W_pos", "W_unembed"
ROUTER, NORMS, BIASES, UNUSED = "W_router", "norms", "biases", "not read"
ORDER = (
    EMBEDDING, POSITIONS, *QKV, "W_O", ROUTER, *GATE_UP, "W_down", NORMS, BIASES, HEAD, UNUSED,
)  # fmt: skip
VECTORS_AND_TABLES = (EMBEDDING, POSITIONS, NORMS, BIASES, UNUSED)
"""Parts that are not multiplied as matrices."""


class Part(msgspec.Struct, frozen=True):
    """All tensors of one kind.

    parameters   number of weights; 0 for an output head that is the embedding
    active       weights that one token uses: of experts, only those it is routed to
    n_bytes      bytes on the device
    token_bytes  bytes that decoding one token reads
    """

    name: str
    parameters: int
    active: int
    n_bytes: int
    token_bytes: int


def parts_of(shape: ModelShape, dtype: str) -> tuple[Part, ...]:
    """Return the parts of a model stored as `dtype`, in the order of a step."""
    tensors = tensor_map_of(shape.config, shape.checkpoint)
    sums: dict[str, list[Fraction]] = {}
    for tensor in shape.inventory(dtype).tensors:
        for name, *figures in _pieces(shape.config, tensors, tensor):
            total = sums.setdefault(name, [Fraction(0)] * len(figures))
            sums[name] = [a + b for a, b in zip(total, figures, strict=True)]
    return tuple(Part(name, *map(round, sums[name])) for name in ORDER if name in sums)


def _pieces(
    config: ModelConfig, tensors: TensorMap, tensor: TensorEntry
) -> Iterator[tuple[str, Fraction, Fraction, Fraction, Fraction]]:
    """Yield the parts that a tensor holds, each with the figures of `Part`."""
    found, n_bytes = tensors.find(tensor.name), Fraction(tensor.device_bytes or 0)
    if tensor.tied_to is not None:
        return
    parameters, token_bytes = Fraction(tensor.parameters), Fraction(tensor.token_bytes or 0)
    if found is None or tensor.kind == "unused":
        yield UNUSED, parameters, Fraction(0), n_bytes, token_bytes
        return
    moe = config.experts if found.role.routed else None
    used = Fraction(moe.experts_per_token, moe.n_experts) if moe else Fraction(1)
    if "head" in tensor.read_by and found.role.op == "embed":  # it is the output head, too
        yield HEAD, Fraction(0), Fraction(0), Fraction(0), n_bytes
        token_bytes -= n_bytes
    for name, share in _shares(config, tensors, found):
        yield (
            name,
            parameters * share,
            parameters * used * share,
            n_bytes * share,
            token_bytes * share,
        )


def _shares(
    config: ModelConfig, tensors: TensorMap, found: TensorMatch
) -> list[tuple[str, Fraction]]:
    """Return the parts that a tensor holds and the share of each: a file may have several
    projections in one tensor."""
    if found.is_bias:
        return [(BIASES, Fraction(1))]
    if found.role.kind == "norm":
        return [(NORMS, Fraction(1))]
    names = matrix_names(tensors, found)
    sizes = qkv_rows(config) if names == QKV else (1,) * len(names)
    return [(name, Fraction(n, sum(sizes))) for name, n in zip(names, sizes, strict=True)]
