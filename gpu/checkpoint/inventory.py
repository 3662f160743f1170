"""What a model is made of, from the headers of its files and its config alone: no weight is read.

Every tensor of the checkpoint with its part in the model, the dispatch that reads it, and, for a
storage type, how it lies on the device: the sizes follow from the shapes, so they are known before
(and without) loading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec

from gpu.checkpoint.packing import BLOCK, FORMATS, row_words
from gpu.checkpoint.parts import Found, Kind, Lies, Names, has_biases, names_of
from gpu.checkpoint.reader import NOT_PARAMETERS, Checkpoint
from gpu.config import ModelConfig, RopeConfig
from gpu.errors import ModelError

ALL = Fraction(1)


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor.

    dtype, shape, n_bytes  as saved; `n_bytes` is 0 for a tied matrix that was not saved
    parameters    its weights; 0 where they are another tensor's, or computed
    share         of all parameters
    kind, layer   what it belongs to; "unused": the engine does not read it
    tied_to       the tensor whose numbers are used instead of its own
    read_by       labels of the dispatches that read it
    device_dtype, device_bytes  how it lies on the device; None without a storage type
    token_bytes   what one decode token reads of that, each byte counted once; of experts the share
                  that a token is given to, as if all of a layer were used alike
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    parameters: int
    share: float
    kind: Kind
    layer: int | None = None
    tied_to: str | None = None
    read_by: tuple[str, ...] = ()
    device_dtype: str | None = None
    device_bytes: int | None = None
    token_bytes: int | None = None


class RopeTable(msgspec.Struct, frozen=True):
    """Rotary frequencies of a head, a number for each pair of its dimensions that is turned; none
    where the model has no rotary positions.

    inv_freq    radians by which one position turns the pair
    wavelength  positions of a whole turn, 2π / inv_freq
    unscaled    the wavelength without the scaling
    low_freq_factor, high_freq_factor, original_context  None but for the llama3 scaling
    """

    theta: float
    scaling: str
    factor: float
    head_dim: int
    context: int
    inv_freq: tuple[float, ...]
    wavelength: tuple[float, ...]
    unscaled: tuple[float, ...]
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_context: int | None = None

    @classmethod
    def of(cls, config: ModelConfig) -> RopeTable:
        rope, turned = config.rope, config.turned_dim
        inv_freq = rope.inv_freq(turned)
        plain = RopeConfig(rope.theta).inv_freq(turned)
        llama3 = rope.scaling == "llama3"
        return cls(
            theta=rope.theta,
            scaling=rope.scaling,
            factor=rope.factor,
            head_dim=config.head_dim,
            context=config.context,
            inv_freq=tuple(inv_freq.tolist()),
            wavelength=tuple((2 * math.pi / inv_freq).tolist()),
            unscaled=tuple((2 * math.pi / plain).tolist()),
            low_freq_factor=rope.low_freq_factor if llama3 else None,
            high_freq_factor=rope.high_freq_factor if llama3 else None,
            original_context=rope.original_context if llama3 else None,
        )


class Inventory(msgspec.Struct, frozen=True):
    """All tensors in the order in which a step reads them, unused ones last, and their sums.
    `dtype`: the storage type that the figures of the device are for; without one these are None."""

    tensors: tuple[TensorEntry, ...]
    parameters: int
    n_bytes: int
    dtype: str | None
    device_bytes: int | None
    token_bytes: int | None
    rope: RopeTable

    @classmethod
    def from_folder(cls, folder: str | Path, dtype: str | None = None) -> Inventory:
        """Of a model folder; `dtype` is one of `gpu.checkpoint.packing.FORMATS`. Raises ModelError
        for a folder that cannot be run."""
        return cls.of(ModelConfig.from_folder(folder), Checkpoint.open(folder), dtype)

    @classmethod
    def of(cls, config: ModelConfig, checkpoint: Checkpoint, dtype: str | None = None) -> Inventory:
        """As `from_folder`, of what has been opened already."""
        if dtype is not None and dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        total = checkpoint.parameters(config.tie_embeddings)
        known, names = names_of(config, checkpoint), list(checkpoint.names())
        has_head = known.head in checkpoint
        if config.tie_embeddings and known.embedding in checkpoint and not has_head:
            names.append(known.head)
        roles = {name: _role(config, known, name) for name in names}
        names.sort(key=lambda name: roles[name].place)
        tensors = tuple(_entry(roles[name], checkpoint, name, dtype, total) for name in names)
        return cls(
            tensors=tensors,
            parameters=total,
            n_bytes=sum(tensor.n_bytes for tensor in tensors),
            dtype=dtype,
            device_bytes=sum(t.device_bytes or 0 for t in tensors) if dtype else None,
            token_bytes=sum(t.token_bytes or 0 for t in tensors) if dtype else None,
            rope=RopeTable.of(config),
        )


def _entry(
    role: _Role, checkpoint: Checkpoint, name: str, dtype: str | None, total: int
) -> TensorEntry:
    saved = name in checkpoint
    source = name if saved else role.tied_to or name  # a tied output matrix that was not saved
    shape = checkpoint.shape(source)
    counted = role.tied_to is None and not name.endswith(NOT_PARAMETERS)
    parameters = math.prod(shape) if counted else 0
    stored = _stored(role, shape, dtype) if dtype is not None and role.is_stored else None
    nothing = None if dtype is None else 0
    return TensorEntry(
        name=name,
        dtype=checkpoint.dtype(source),
        shape=shape,
        n_bytes=checkpoint.n_bytes(name) if saved else 0,
        parameters=parameters,
        share=parameters / total if total else 0.0,
        kind=role.kind,
        layer=role.layer,
        tied_to=role.tied_to,
        read_by=role.read_by,
        device_dtype=stored.dtype if stored else None,
        device_bytes=stored.n_bytes if stored else nothing,
        token_bytes=stored.token_bytes if stored else nothing,
    )


# ---- what a tensor is to the model -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Role:
    """`place`: what comes first in a step sorts first. `used`: the share of the tensors of this
    kind that one token reads."""

    kind: Kind
    place: tuple[int, int, int, int, bool] = (4, 0, 0, 0, False)
    layer: int | None = None
    read_by: tuple[str, ...] = ()
    tied_to: str | None = None
    lies: Lies = "padded"
    used: Fraction = ALL

    @property
    def is_stored(self) -> bool:
        return bool(self.read_by) and self.tied_to is None


_UNUSED = _Role("unused")


def _role(config: ModelConfig, names: Names, name: str) -> _Role:
    """What the architecture in `gpu.models` does with a tensor of this name."""
    if config.tie_embeddings and name == names.head:
        return _Role("head", (3, 0, 0, 0, False), tied_to=names.embedding, read_by=("head",))
    found = names.find(name)
    if found is None:
        return _UNUSED
    layer, part = found.layer, found.part
    if (found.is_bias and not has_biases(config, part)) or (layer or 0) >= config.n_layers:
        return _UNUSED
    experts = config.experts if part.routed else None
    if experts and found.expert >= experts.n:
        return _UNUSED
    lies = part.bias_lies if found.is_bias else part.lies
    if layer is None:
        read_by = part.ops
        if config.tie_embeddings and name == names.embedding:
            read_by = (part.op, "head")
        return _Role(part.kind, _outside(names, found), None, read_by, lies=lies)
    place = 1, layer, list(names.parts_of(layer)).index(found.module), found.expert, found.is_bias
    read_by = tuple(f"layer{layer:02}.{op}" for op in part.ops)
    used = Fraction(experts.per_token, experts.n) if experts else ALL
    return _Role(part.kind, place, layer, read_by, lies=lies, used=used)


def _outside(names: Names, found: Found) -> tuple[int, int, int, int, bool]:
    if found.module in names.first:
        return 0, 0, list(names.first).index(found.module), 0, found.is_bias
    return 2, 0, list(names.last).index(found.module), 0, found.is_bias


# ---- how a tensor lies on the device ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stored:
    dtype: str
    n_bytes: int
    token_bytes: int


def _stored(role: _Role, shape: tuple[int, ...], dtype: str) -> _Stored:
    """As `gpu.checkpoint.weights.WeightLoader` does: matrices packed row by row, vectors as
    float32."""
    if len(shape) <= 1:
        n_bytes = _vector_bytes(role.lies, math.prod(shape))
        return _Stored("f32", n_bytes, n_bytes)
    if role.lies == "table":
        row = 4 * _padded(shape[1])
        return _Stored("f32", shape[0] * row, row)
    if role.kind in ("embedding", "head"):
        dtype = FORMATS[dtype].vocabulary
    if role.lies == "exact":
        dtype = "f32"
    *several, k = reversed(shape) if role.lies == "transposed" else shape
    n = math.prod(several)
    row = 4 * row_words(dtype, k)
    if role.kind != "embedding":
        return _Stored(dtype, n * row, round(n * row * role.used))
    return _Stored(dtype, n * row, row + (n * row if "head" in role.read_by else 0))


def _vector_bytes(lies: Lies, n: int) -> int:
    if lies == "joined":
        return 4 * n
    if lies == "paired":
        return 4 * _padded(2 * n) // 2
    return 4 * _padded(n)


def _padded(n: int) -> int:
    return -(-n // BLOCK) * BLOCK
