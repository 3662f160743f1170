"""Sizing of a model: what it needs, and how fast devices can run it at most.

A bound is not a prediction. A step that moves B bytes and does F operations takes at least
max(B / bytes per second, F / operations per second) (Williams, Waterman and Patterson 2009); what a
real engine reaches is a share of that.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import msgspec

from gpu.analysis.footprint import Footprint
from gpu.analysis.sizing.bounds import DeviceBounds, bounds_on
from gpu.analysis.sizing.devices import DeviceSpec
from gpu.analysis.sizing.model_shape import ModelShape
from gpu.analysis.sizing.parts import Part, parts_of
from gpu.analysis.sizing.step_costs import StepCost, StepCosts
from gpu.checkpoint.packing import FORMATS
from gpu.errors import InvalidRequest
from gpu.kv.blocks import token_bytes_by_format
from gpu.load_options import LoadOptions

UNLIMITED = 1 << 62
DEFAULT_CONTEXT = 4096
DEFAULT_RATE = 20.0
MAX_USERS = 1 << 16


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts that a model is to write, and the storage types.

    users     number of texts written at once
    context   tokens of each text; None: `DEFAULT_CONTEXT`, or the model's own if that is less
    kv_dtype  None: as the engine chooses for `dtype`
    rate      tokens per second wanted for each user
    """

    dtype: str = "f16"
    kv_dtype: str | None = None
    users: int = 1
    context: int | None = None
    rate: float = DEFAULT_RATE


class StoredSize(msgspec.Struct, frozen=True):
    """Bytes of all weights in one storage type, and of those that decoding one token reads."""

    dtype: str
    n_bytes: int
    token_bytes: int


class KvSize(msgspec.Struct, frozen=True):
    """KV cache of a model.

    kind         MHA: every query head has a key head of its own; GQA: several share one; MQA: all
    token_bytes  of a token in all layers, by KV format
    if_mha, if_mqa  of a token, if the model had as many key heads as query heads, or one
    text_bytes   of a text of the workload's context, as the engine allocates it
    unwindowed_bytes  of such a text if no layer had a sliding window
    window, n_windowed  the narrowest sliding window, and the layers that have one
    """

    dtype: str
    kind: str
    n_heads: int
    n_kv_heads: int
    token_bytes: dict[str, int]
    if_mha: int
    if_mqa: int
    text_bytes: int
    unwindowed_bytes: int
    window: int | None
    n_windowed: int


class Need(msgspec.Struct, frozen=True):
    """Device memory for the workload, in bytes; `total` includes the overhead of
    `gpu.analysis.footprint`."""

    weights: int
    kv_cache: int
    counts: int
    total: int


class CostOfStep(msgspec.Struct, frozen=True):
    """Cost of a step, with its totals; see `StepCost`."""

    flops: int
    weight_bytes: int
    kv_bytes: int
    n_bytes: int
    intensity: float

    @classmethod
    def of(cls, cost: StepCost) -> CostOfStep:
        return cls(cost.flops, cost.weight_bytes, cost.kv_bytes, cost.n_bytes, cost.intensity)


class Sizing(msgspec.Struct, frozen=True):
    """Size of a model, the memory that a workload needs, and its bounds on devices.

    active_parameters  weights that one token uses
    decode   a step that writes a token of every user; prefill: one that reads a user's whole text
    bytes_per_s, flops_per_s  needed for `rate` tokens per second of every user
    """

    model: str
    model_type: str
    parameters: int
    active_parameters: int
    n_layers: int
    context: int
    users: int
    rate: float
    dtype: str
    parts: tuple[Part, ...]
    stored: tuple[StoredSize, ...]
    kv: KvSize
    need: Need
    decode: CostOfStep
    prefill: CostOfStep
    bytes_per_s: float
    flops_per_s: float
    devices: tuple[DeviceBounds, ...]


def size_model(shape: ModelShape, work: Workload, devices: tuple[DeviceSpec, ...]) -> Sizing:
    """Size a model. Raises InvalidRequest for storage types or a context that the model does not
    support, and for numbers out of range."""
    work = _checked(shape, work)
    context = work.context or 0
    parts = parts_of(shape, work.dtype)
    costs = StepCosts(shape, parts, work.dtype, work.kv_dtype or "")

    @functools.cache
    def footprint_of(users: int, n_stages: int) -> Footprint:
        return footprint(shape, replace(work, users=users), n_stages)

    need = footprint_of(work.users, 1)
    decode = costs.decode(work.users, context)
    return Sizing(
        model=shape.name,
        model_type=shape.config.model_type,
        parameters=shape.parameters,
        active_parameters=sum(part.active for part in parts),
        n_layers=shape.config.n_layers,
        context=context,
        users=work.users,
        rate=work.rate,
        dtype=work.dtype,
        parts=parts,
        stored=tuple(_stored(shape, dtype) for dtype in FORMATS),
        kv=_kv_size(shape, work),
        need=Need(need.weights, need.kv_cache, need.counts, need.total),
        decode=CostOfStep.of(decode),
        prefill=CostOfStep.of(costs.prefill(context)),
        bytes_per_s=work.rate * decode.n_bytes,
        flops_per_s=work.rate * decode.flops,
        devices=tuple(
            bounds_on(device, costs, footprint_of, users=work.users, context=context)
            for device in devices
        ),
    )


def footprint(shape: ModelShape, work: Workload, n_stages: int = 1) -> Footprint:
    """Return the device memory that the engine would take for the workload."""
    options = LoadOptions(
        dtype=work.dtype,
        kv_dtype=work.kv_dtype,
        slots=work.users,
        context=work.context,
        kv_memory_bytes=UNLIMITED,
        hybrid_kv_cache=True,
        pipeline_parallel_size=n_stages,
    )
    return shape.footprint(options)


def _checked(shape: ModelShape, work: Workload) -> Workload:
    """Return the workload with defaults filled in."""
    if not 1 <= work.users <= MAX_USERS:
        raise InvalidRequest(f"users is {work.users}, expected 1 to {MAX_USERS:,}", "users")
    most = shape.config.context
    if work.context is not None and not 1 <= work.context <= most:
        raise InvalidRequest(
            f"context is {work.context}, expected 1 to {most:,}, which the model supports",
            "context",
        )
    if not 0 < work.rate <= 1e6:
        raise InvalidRequest(
            f"rate is {work.rate:g}, expected more than 0 and at most 1,000,000", "rate"
        )
    if work.dtype not in FORMATS:
        raise InvalidRequest(
            f"dtype {work.dtype!r} is not supported; supported: {', '.join(FORMATS)}", "dtype"
        )
    kv_dtype = work.kv_dtype or FORMATS[work.dtype].kv
    able = token_bytes_by_format(shape.config)
    if kv_dtype not in able:
        raise InvalidRequest(
            f"keys and values of {shape.name} cannot be stored as {kv_dtype!r}; possible: "
            f"{', '.join(able)}",
            "kv_dtype",
        )
    return replace(work, kv_dtype=kv_dtype, context=work.context or min(DEFAULT_CONTEXT, most))


def _stored(shape: ModelShape, dtype: str) -> StoredSize:
    inventory = shape.inventory(dtype)
    return StoredSize(dtype, inventory.device_bytes or 0, inventory.token_bytes or 0)


def _kv_size(shape: ModelShape, work: Workload) -> KvSize:
    config, dtype = shape.config, work.kv_dtype or ""
    heads, kv_heads = config.n_heads, config.n_kv_heads
    windows = [window for window in config.sliding_windows if window is not None]
    plain = replace(config, sliding_windows=())
    one = replace(work, users=1)
    return KvSize(
        dtype=dtype,
        kind="MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA",
        n_heads=heads,
        n_kv_heads=kv_heads,
        token_bytes=token_bytes_by_format(config),
        if_mha=token_bytes_by_format(replace(config, n_kv_heads=heads))[dtype],
        if_mqa=token_bytes_by_format(replace(config, n_kv_heads=1))[dtype],
        text_bytes=footprint(shape, one).kv_cache,
        unwindowed_bytes=footprint(ModelShape(shape.name, plain, shape.checkpoint), one).kv_cache,
        window=min(windows, default=None),
        n_windowed=len(windows),
    )
