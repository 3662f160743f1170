"""Check whether a model fits in memory before it is downloaded or loaded, and suggest settings with
which it would fit. Sizes come from `gpu.analysis.footprint`, the number of KV blocks from
`gpu.kv.blocks`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from app.config import Dtype, Settings
from app.load_options import load_options
from app.models.free_memory import FreeMemory, free_memory
from gpu import (
    AUTO_DTYPE,
    DeviceError,
    DtypeChoice,
    Footprint,
    Inventory,
    ModelError,
    Shapes,
    choose_dtype,
)

UNCHECKED_BYTES = 256 << 20
"""Models up to this size are accepted without looking at the free memory."""
DTYPES = ("f32", "f16", "q8", "q4")
LEAST_BITS = {"f32": 32, "f16": 16, "q8": 8, "q4": 4}
"""Bits of a weight, without scales."""
CONTEXTS = (32768, 16384, 8192, 4096, 2048, 1024, 512)
SMALL_KV_DTYPES = ("q8", "q8q4", "rotated4")
"""Only the first is suggested: it costs almost no quality."""

FootprintOf = Callable[[str, int | None, str | None], Footprint]
"""footprint_of(dtype, context, kv_dtype) -> Footprint."""


def expect_fit(
    name: str,
    path: Path,
    settings: Settings,
    shapes: Shapes | None = None,
    *,
    spare_bytes: int = 0,
    loras: Mapping[str, Path] | None = None,
    free: FreeMemory | None = None,
) -> Footprint:
    """Return the memory that the model at `path` needs with these settings, whose dtype is not
    `auto`.

    shapes       shapes of weights that are not downloaded yet
    spare_bytes  memory that will be freed before the model is loaded
    loras        folders of adapters
    free         free memory; measured if None

    Raises DeviceError if it does not fit, with the numbers and with settings that would fit, and
    ModelError for a model that cannot be run.
    """
    footprint_of = functools.cache(functools.partial(_footprint, path, settings, shapes, loras))
    requested = footprint_of(settings.dtype, settings.context, settings.kv_dtype)
    if requested.total + requested.host <= UNCHECKED_BYTES:
        return requested
    free = (free or free_memory(settings)).plus(spare_bytes)
    if free.holds(requested):
        return requested
    raise DeviceError(
        f"{name} at {settings.dtype} needs {_describe_need(requested)}; "
        f"{_describe_free(free, requested)}. {_advice(footprint_of, settings, requested, free)}"
    )


def expect_weights_fit(
    name: str,
    n_weights: int,
    settings: Settings,
    *,
    spare_bytes: int = 0,
    free: FreeMemory | None = None,
) -> None:
    """Raise DeviceError if not even the weights of a model fit, of which nothing but their number
    is known before its download. `auto` may mean the smallest storage type."""
    dtype = DTYPES[-1] if settings.dtype == AUTO_DTYPE else settings.dtype
    n_bytes = n_weights * LEAST_BITS[dtype] // 8 // settings.pipeline_parallel_size
    need = Footprint(dense=n_bytes, kv_cache=0, context=0, kv_dtype="")
    if need.total <= UNCHECKED_BYTES:
        return
    free = (free or free_memory(settings)).plus(spare_bytes)
    if not free.holds(need):
        raise DeviceError(
            f"{name} at {dtype} needs more than {_gb(need.total)}; {_describe_free(free, need)}. "
            "Choose a smaller model or a lower precision"
        )


def dtype_of_files(path: Path) -> DtypeChoice:
    """Return the storage type that `--dtype auto` means for the model at `path` if memory does not
    matter. Raises ModelError for a model that cannot be run."""
    return choose_dtype(Inventory.from_folder(path).saved_types)


def fitting_dtype(
    name: str,
    path: Path,
    settings: Settings,
    shapes: Callable[[], Shapes] | None = None,
    *,
    spare_bytes: int | None = 0,
    loras: Mapping[str, Path] | None = None,
    free: FreeMemory | None = None,
) -> DtypeChoice:
    """Return the storage type of the weights of the model at `path`: that of `settings`, or for
    `auto` that which is nearest to its files, or less if only less fits.

    shapes       returns the shapes of weights that are not downloaded yet; they are not quantised
    spare_bytes  memory that will be freed before the model is loaded; None: it need not fit

    The other arguments and the errors are those of `expect_fit`.
    """
    if spare_bytes is None:
        if settings.dtype != AUTO_DTYPE:
            return DtypeChoice(settings.dtype)
        return choose_dtype({}) if shapes is not None else dtype_of_files(path)
    known = shapes and shapes()
    measure = functools.cache(lambda: (free or free_memory(settings)).plus(spare_bytes))

    @functools.cache
    def lacking(dtype: str) -> str:
        need = _footprint(path, settings, known, loras, dtype, settings.context, settings.kv_dtype)
        if need.total + need.host <= UNCHECKED_BYTES or measure().holds(need):
            return ""
        return f"{dtype} needs {_describe_total(need)}, and {_describe_free(measure(), need)}"

    choice = DtypeChoice(settings.dtype)
    if settings.dtype == AUTO_DTYPE:
        saved = {} if known is not None else Inventory.from_folder(path).saved_types
        choice = choose_dtype(saved, lacking)
    if lacking(choice.dtype):
        asked = replace(settings, dtype=cast(Dtype, choice.dtype))
        expect_fit(name, path, asked, known, spare_bytes=spare_bytes, loras=loras, free=free)
    return choice


def _footprint(
    path: Path,
    settings: Settings,
    shapes: Shapes | None,
    loras: Mapping[str, Path] | None,
    dtype: str,
    context: int | None,
    kv_dtype: str | None,
) -> Footprint:
    options = load_options(settings, loras)
    return Footprint.of(
        path,
        replace(options, dtype=dtype, context=context, kv_dtype=kv_dtype),
        shapes=shapes,
    )


def _describe_need(need: Footprint) -> str:
    parts = [f"{_gb(need.weights)} of weights"]
    if need.waiting:
        parts[0] += f" with {need.resident_experts} of {need.n_experts} experts"
    if need.adapters:
        parts.append(f"{_gb(need.adapters)} of adapters")
    parts += [
        f"{_gb(need.kv_cache)} of KV cache in {need.kv_dtype} for {need.context:,} tokens",
        "10% for activations and buffers",
    ]
    if need.waiting:
        parts.append(f"and {_gb(need.waiting)} of host memory for all experts")
    if need.kv_offload:
        parts.append(f"and {_gb(need.kv_offload)} of host memory for evicted KV blocks")
    each = f" for each of {need.n_stages} stages" if need.n_stages > 1 else ""
    return f"{_gb(need.total)}{each}: {', '.join(parts)}"


def _describe_free(free: FreeMemory, need: Footprint) -> str:
    parts = [f"the device has {_gb(free.device)} free"] if free.device is not None else []
    if free.shared and need.host:
        parts.append("which it shares with the host")
    elif need.host and free.host is not None:
        parts.append(f"the host {_gb(free.host)}")
    if parts and free.n_stages > 1:
        parts[-1] += f" for each of {free.n_engines * free.n_stages} stages"
    elif parts and free.n_engines > 1:
        parts[-1] += f" for each of {free.n_engines} engines"
    return ", ".join(parts)


def _advice(
    footprint_of: FootprintOf, settings: Settings, requested: Footprint, free: FreeMemory
) -> str:
    """Suggest the settings that fit at the least cost.

    First options that cost little: no --expert-slots, no --kv-offload, a quantised KV cache, a
    shorter context.
    Else fewer experts on the device, or the highest precision that fits.
    """
    for flags, footprint in _cheap_options(footprint_of, settings, requested):
        if free.holds(footprint):
            return f"{flags} it would need {_gb(footprint.total)}"
    options = [
        *_fewer_slots(requested, free),
        *_lower_precision(footprint_of, settings, requested, free),
    ]
    if not options:
        return "No lower precision fits either: choose a smaller model"
    return "With " + ", or with ".join(
        f"{flags} it would need {_describe_total(footprint)}" for flags, footprint in options
    )


def _cheap_options(
    footprint_of: FootprintOf, settings: Settings, requested: Footprint
) -> Iterator[tuple[str, Footprint]]:
    dtype, kv_dtype = settings.dtype, settings.kv_dtype
    if requested.waiting:
        yield "Without --expert-slots", replace(requested, expert_slots=None)
    if requested.kv_offload:
        yield "Without --kv-offload", replace(requested, kv_offload=0)
    if kv_dtype not in SMALL_KV_DTYPES and settings.backend == "wgpu":
        smaller = _with_small_kv(footprint_of, dtype, requested.context)
        if smaller is not None:
            yield f"With --kv-dtype {SMALL_KV_DTYPES[0]}", smaller
    for context in CONTEXTS:
        if context < requested.context:
            yield f"With --context {context}", footprint_of(dtype, context, kv_dtype)


def _fewer_slots(requested: Footprint, free: FreeMemory) -> Iterator[tuple[str, Footprint]]:
    """Yield the largest number of experts on the device that fits, if any does."""
    for n in range(requested.resident_experts - 1, 0, -1):
        footprint = replace(requested, expert_slots=n)
        if free.holds(footprint):
            yield f"--expert-slots {n}", footprint
            return


def _lower_precision(
    footprint_of: FootprintOf, settings: Settings, requested: Footprint, free: FreeMemory
) -> Iterator[tuple[str, Footprint]]:
    """Yield the highest precision that fits, with a shorter context or fewer experts if needed."""
    kv_dtype = settings.kv_dtype
    for lower in DTYPES[DTYPES.index(settings.dtype) + 1 :]:
        for context in (requested.context, *(c for c in CONTEXTS if c < requested.context)):
            shorter = f" --context {context}" if context < requested.context else ""
            footprint = footprint_of(lower, context, kv_dtype)
            if free.holds(footprint):
                yield f"--dtype {lower}{shorter}", footprint
                return
        for flags, footprint in _fewer_slots(
            footprint_of(lower, requested.context, kv_dtype), free
        ):
            yield f"--dtype {lower} {flags}", footprint
            return


def _with_small_kv(footprint_of: FootprintOf, dtype: str, context: int) -> Footprint | None:
    """Return the footprint with a quantised KV cache; None if the heads do not allow one."""
    try:
        return footprint_of(dtype, context, SMALL_KV_DTYPES[0])
    except ModelError:
        return None


def _describe_total(need: Footprint) -> str:
    return _gb(need.total) + (f" and {_gb(need.host)} of host memory" if need.host else "")


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
