"""List of a model's tensors, made from file headers and config alone: no weight is read.

Each entry has the tensor's role in the model, the dispatches that read it and, for a storage type,
its size on the device. Sizes follow from shapes, so they are known without loading.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec

from gpu.architectures.common.llama_tensors import ROUTER
from gpu.architectures.common.tensor_map import Kind, Layout, TensorMap, TensorMatch
from gpu.checkpoint.article_names import article_name
from gpu.checkpoint.auto_dtype import MatrixDtypes
from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.packing import BLOCK, FORMATS, row_words
from gpu.checkpoint.reader import NOT_PARAMETERS, Checkpoint
from gpu.checkpoint.tensor_names import has_biases, tensor_map_of
from gpu.config import ModelConfig, RopeConfig
from gpu.errors import ModelError

ALL = Fraction(1)


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor of a checkpoint.

    dtype, shape, n_bytes  as saved; `n_bytes` is 0 for a tied matrix that was not saved
    parameters    number of weights; 0 if they belong to another tensor or are computed
    share         share of all parameters
    kind, layer   part of the model; "unused": the engine does not read it
    article       its name in papers, as in `gpu.checkpoint.article_names`; "" without one
    tied_to       tensor whose numbers are used instead of its own
    read_by       labels of the dispatches that read it
    device_dtype, device_bytes  storage on the device; None without a storage type
    token_bytes   device bytes read per decode token, each byte counted once; of experts the share
                  that one token is routed to, assuming uniform use of a layer's experts
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    parameters: int
    share: float
    kind: Kind
    article: str = ""
    layer: int | None = None
    tied_to: str | None = None
    read_by: tuple[str, ...] = ()
    device_dtype: str | None = None
    device_bytes: int | None = None
    token_bytes: int | None = None


class RopeTable(msgspec.Struct, frozen=True):
    """Rotary frequencies, one per rotary pair of a head; empty for a model without rotary
    positions.

    inv_freq    radians per position
    wavelength  positions per full rotation, 2π / inv_freq
    unscaled    wavelength without the scaling
    low_freq_factor, high_freq_factor, original_context  None except for llama3 scaling
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
        rope, rotary_dim = config.rope, config.rope_dim
        inv_freq = rope.inv_freq(rotary_dim)
        unscaled = RopeConfig(rope.theta).inv_freq(rotary_dim)
        llama3 = rope.scaling == "llama3"
        return cls(
            theta=rope.theta,
            scaling=rope.scaling,
            factor=rope.factor,
            head_dim=config.head_dim,
            context=config.context,
            inv_freq=tuple(inv_freq.tolist()),
            wavelength=tuple((2 * math.pi / inv_freq).tolist()),
            unscaled=tuple((2 * math.pi / unscaled).tolist()),
            low_freq_factor=rope.low_freq_factor if llama3 else None,
            high_freq_factor=rope.high_freq_factor if llama3 else None,
            original_context=rope.original_context if llama3 else None,
        )


class Inventory(msgspec.Struct, frozen=True):
    """All tensors in the order in which a pass reads them, unused ones last, and their totals.

    `dtype`: storage type of the device figures; if it is None, so are they.
    """

    tensors: tuple[TensorEntry, ...]
    parameters: int
    n_bytes: int
    dtype: str | None
    device_bytes: int | None
    token_bytes: int | None
    rope: RopeTable

    @property
    def saved_types(self) -> dict[str, int]:
        """Bytes of the layers' matrices in the files, by the type they are saved in; routers, which
        are f32 whatever they are saved in, are left out."""
        found: Counter[str] = Counter()
        for tensor in self.tensors:
            is_router = any(op.endswith(f".{ROUTER.op}") for op in tensor.read_by)
            is_matrix = len(tensor.shape) > 1 and tensor.kind != "unused" and not is_router
            if tensor.layer is not None and is_matrix:
                found[tensor.dtype] += tensor.n_bytes
        return dict(found)

    @classmethod
    def from_folder(cls, folder: str | Path, dtype: str | None = None) -> Inventory:
        """Return the inventory of a model folder.

        `dtype` is one of `gpu.checkpoint.packing.FORMATS`. Raises ModelError for a folder that
        cannot be run.
        """
        return cls.of(*open_model(folder), dtype)

    @classmethod
    def of(cls, config: ModelConfig, checkpoint: Checkpoint, dtype: str | None = None) -> Inventory:
        """Return the inventory of an opened checkpoint; see `from_folder`."""
        if dtype is not None and dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        total = checkpoint.parameters(config.tie_embeddings)
        known, names = tensor_map_of(config, checkpoint), list(checkpoint.names())
        has_head = known.head in checkpoint
        if config.tie_embeddings and known.embedding in checkpoint and not has_head:
            names.append(known.head)
        roles = {name: _role(config, known, name) for name in names}
        names.sort(key=lambda name: roles[name].place)
        dtypes = _matrix_dtypes(roles, checkpoint, dtype) if dtype is not None else {}
        tensors = tuple(_entry(roles[name], checkpoint, name, dtypes, total) for name in names)
        return cls(
            tensors=tensors,
            parameters=total,
            n_bytes=sum(tensor.n_bytes for tensor in tensors),
            dtype=dtype,
            device_bytes=sum(t.device_bytes or 0 for t in tensors) if dtype else None,
            token_bytes=sum(t.token_bytes or 0 for t in tensors) if dtype else None,
            rope=RopeTable.of(config),
        )


def _matrix_dtypes(roles: dict[str, _Role], checkpoint: Checkpoint, dtype: str) -> dict[str, str]:
    """Return the storage types of tensors. Matrices that one dispatch reads are fused, so they have
    the same."""
    fused: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, role in roles.items():
        if role.is_stored and len(checkpoint.shape(name)) > 1:
            fused[role.read_by].append(name)
    dtypes = MatrixDtypes(checkpoint, dtype)
    found = {name: dtypes.of(names) for names in fused.values() for name in names}
    return {name: found.get(name, dtype) for name in roles}


def _entry(
    role: _Role, checkpoint: Checkpoint, name: str, dtypes: dict[str, str], total: int
) -> TensorEntry:
    """Return the entry of a tensor. `dtypes`: storage types by name; empty without one."""
    saved = name in checkpoint
    source = name if saved else role.tied_to or name  # a tied output matrix that was not saved
    shape = checkpoint.shape(source)
    counted = role.tied_to is None and not name.endswith(NOT_PARAMETERS)
    parameters = math.prod(shape) if counted else 0
    stored = _stored(role, shape, dtypes[name]) if dtypes and role.is_stored else None
    nothing = 0 if dtypes else None
    return TensorEntry(
        name=name,
        dtype=checkpoint.dtype(source),
        shape=shape,
        n_bytes=checkpoint.n_bytes(name) if saved else 0,
        parameters=parameters,
        share=parameters / total if total else 0.0,
        kind=role.kind,
        article=role.article,
        layer=role.layer,
        tied_to=role.tied_to,
        read_by=role.read_by,
        device_dtype=stored.dtype if stored else None,
        device_bytes=stored.n_bytes if stored else nothing,
        token_bytes=stored.token_bytes if stored else nothing,
    )


# ---- roles -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Role:
    """Use of a tensor in the model.

    place  sort key: tensors that a pass reads first sort first
    used   share of the tensors of this kind that one token reads
    """

    kind: Kind
    place: tuple[int, int, int, int, bool] = (4, 0, 0, 0, False)
    layer: int | None = None
    read_by: tuple[str, ...] = ()
    tied_to: str | None = None
    layout: Layout = "padded"
    used: Fraction = ALL
    article: str = ""

    @property
    def is_stored(self) -> bool:
        return bool(self.read_by) and self.tied_to is None


_UNUSED = _Role("unused")


def _role(config: ModelConfig, tensors: TensorMap, name: str) -> _Role:
    """Return how the architecture in `gpu.models` uses the tensor called `name`."""
    found = tensors.find(name)
    if found is None:
        return _UNUSED
    article = article_name(tensors, found)
    if config.tie_embeddings and name == tensors.head:
        place, source = (3, 0, 0, 0, False), tensors.embedding
        return _Role("head", place, tied_to=source, read_by=("head",), article=article)
    layer, role = found.layer, found.role
    if (found.is_bias and not has_biases(config, role)) or (layer or 0) >= config.n_layers:
        return _UNUSED
    experts = config.experts if role.routed else None
    if experts and found.expert >= experts.n_experts:
        return _UNUSED
    layout = role.bias_layout if found.is_bias else role.layout
    if layer is None:
        read_by = role.ops
        if config.tie_embeddings and name == tensors.embedding:
            read_by = (role.op, "head")
        place = _outside(tensors, found)
        return _Role(role.kind, place, None, read_by, layout=layout, article=article)
    place = 1, layer, list(tensors.roles(layer)).index(found.module), found.expert, found.is_bias
    read_by = tuple(f"layer{layer:02}.{op}" for op in role.ops)
    used = Fraction(experts.experts_per_token, experts.n_experts) if experts else ALL
    return _Role(role.kind, place, layer, read_by, None, layout, used, article)


def _outside(tensors: TensorMap, found: TensorMatch) -> tuple[int, int, int, int, bool]:
    if found.module in tensors.before:
        return 0, 0, list(tensors.before).index(found.module), 0, found.is_bias
    return 2, 0, list(tensors.after).index(found.module), 0, found.is_bias


# ---- storage on the device -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stored:
    dtype: str
    n_bytes: int
    token_bytes: int


def _stored(role: _Role, shape: tuple[int, ...], dtype: str) -> _Stored:
    """Return the storage on the device as `gpu.checkpoint.weights.WeightLoader` makes it: matrices
    packed row by row, vectors as float32."""
    if len(shape) <= 1:
        n_bytes = _vector_bytes(role.layout, math.prod(shape))
        return _Stored("f32", n_bytes, n_bytes)
    if role.layout == "table":
        row = 4 * _padded(shape[1])
        return _Stored("f32", shape[0] * row, row)
    if role.kind in ("embedding", "head"):
        dtype = FORMATS[dtype].vocabulary
    if role.layout == "exact":
        dtype = "f32"
    *several, k = reversed(shape) if role.layout == "transposed" else shape
    n = math.prod(several)
    row = 4 * row_words(dtype, k)
    if role.kind != "embedding":
        return _Stored(dtype, n * row, round(n * row * role.used))
    return _Stored(dtype, n * row, row + (n * row if "head" in role.read_by else 0))


def _vector_bytes(layout: Layout, n: int) -> int:
    if layout == "concatenated":
        return 4 * n
    if layout == "paired":
        return 4 * _padded(2 * n) // 2
    return 4 * _padded(n)


def _padded(n: int) -> int:
    return -(-n // BLOCK) * BLOCK
