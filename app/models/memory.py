"""Will a model fit? Its need, computed before anything large is fetched or loaded, beside what
there is; and what to choose where that is too little."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from app.config import Settings
from app.free_memory import Free, free_memory
from gpu import DeviceError, Footprint, ModelError, Shapes

SMALL_BYTES = 256 << 20
"""Any device that runs at all has this much: no need to look."""
DTYPES = ("f32", "f16", "q8", "q4")
CONTEXTS = (32768, 16384, 8192, 4096, 2048, 1024, 512)
SMALL_KV = ("q8", "q8q4", "rotated4")
"""The first of these costs nearly nothing; the others are for those who ask."""

Need = Callable[[str, int | None, str | None], Footprint]
"""Of a storage type, a context, and how keys and values are stored."""


def expect_fit(
    name: str,
    path: Path,
    settings: Settings,
    shapes: Shapes | None = None,
    *,
    spare_bytes: int = 0,
    loras: Mapping[str, Path] | None = None,
    free: Free | None = None,
) -> Footprint:
    """What the model at `path` needs with these settings. `shapes`: of weights that are not there
    yet; `spare_bytes`: what will be given back before it is loaded; `loras`: folders of adapters;
    `free`: None: what there is. Raises DeviceError with the numbers, and with what would fit, when
    that is less, and ModelError for a model that cannot be run at all."""
    need = functools.cache(functools.partial(_footprint, path, settings, shapes, loras))
    wanted = need(settings.dtype, settings.context, settings.kv_dtype)
    if wanted.total + wanted.waiting <= SMALL_BYTES:
        return wanted
    free = (free or free_memory(settings)).plus(spare_bytes)
    if free.holds(wanted):
        return wanted
    raise DeviceError(
        f"{name} at {settings.dtype} needs {_told(wanted)}; {_there_is(free, wanted)}. "
        f"{_advice(need, settings, wanted, free)}"
    )


def _footprint(
    path: Path,
    settings: Settings,
    shapes: Shapes | None,
    loras: Mapping[str, Path] | None,
    dtype: str,
    context: int | None,
    kv_dtype: str | None,
) -> Footprint:
    return Footprint.of(
        path,
        dtype,
        shapes=shapes,
        backend=settings.backend,
        kv_dtype=kv_dtype,
        n_slots=settings.slots,
        context=context,
        kv_bytes=settings.kv_bytes,
        loras=loras,
        expert_slots=settings.expert_slots,
    )


def _told(need: Footprint) -> str:
    parts = [f"{_gb(need.weights)} of weights"]
    if need.waiting:
        parts[0] += f" with {need.n_slots} of {need.n_experts} experts"
    if need.adapters:
        parts.append(f"{_gb(need.adapters)} of adapters")
    parts += [
        f"{_gb(need.kv_cache)} of KV cache in {need.kv_dtype} for {need.context:,} tokens",
        "a tenth for the rest",
    ]
    waiting = f", and {_gb(need.waiting)} in the host's memory for all experts"
    return f"{_gb(need.total)}: {', '.join(parts)}{waiting if need.waiting else ''}"


def _there_is(free: Free, need: Footprint) -> str:
    found = [f"the device has {_gb(free.device)} free"] if free.device is not None else []
    if free.shared and need.waiting:
        found.append("and no memory of its own")
    elif need.waiting and free.host is not None:
        found.append(f"the host {_gb(free.host)}")
    return ", ".join(found)


def _advice(need: Need, settings: Settings, wanted: Footprint, free: Free) -> str:
    """What costs least of what is enough: all experts in the one memory there is, a KV cache of
    fewer bits, the longest context that fits; or else fewer experts on the device and the highest
    precision that fits."""
    for flags, fits in _cheap(need, settings, wanted):
        if free.holds(fits):
            return f"{flags} it would need {_gb(fits.total)}"
    ways = [*_fewer_slots(wanted, free), *_lower_precision(need, settings, wanted, free)]
    if not ways:
        return "No lower precision fits either: take a smaller model"
    return "With " + ", or with ".join(f"{flags} it would need {_both(n)}" for flags, n in ways)


def _cheap(need: Need, settings: Settings, wanted: Footprint) -> Iterator[tuple[str, Footprint]]:
    dtype, kv = settings.dtype, settings.kv_dtype
    if wanted.waiting:
        yield "Without --expert-slots", replace(wanted, expert_slots=None)
    if kv not in SMALL_KV and settings.backend == "wgpu":
        smaller = _with_small_kv(need, dtype, wanted.context)
        if smaller is not None:
            yield f"With --kv-dtype {SMALL_KV[0]}", smaller
    for context in CONTEXTS:
        if context < wanted.context:
            yield f"With --context {context}", need(dtype, context, kv)


def _fewer_slots(need: Footprint, free: Free) -> Iterator[tuple[str, Footprint]]:
    """The most experts on the device that fit, fewer than it has now."""
    for n in range(need.n_slots - 1, 0, -1):
        fits = replace(need, expert_slots=n)
        if free.holds(fits):
            yield f"--expert-slots {n}", fits
            return


def _lower_precision(
    need: Need, settings: Settings, wanted: Footprint, free: Free
) -> Iterator[tuple[str, Footprint]]:
    """The highest that fits, with a shorter context or fewer experts on the device if need be."""
    kv = settings.kv_dtype
    for lower in DTYPES[DTYPES.index(settings.dtype) + 1 :]:
        for context in (wanted.context, *(c for c in CONTEXTS if c < wanted.context)):
            shorter = f" --context {context}" if context < wanted.context else ""
            fits = need(lower, context, kv)
            if free.holds(fits):
                yield f"--dtype {lower}{shorter}", fits
                return
        for flags, fits in _fewer_slots(need(lower, wanted.context, kv), free):
            yield f"--dtype {lower} {flags}", fits
            return


def _with_small_kv(need: Need, dtype: str, context: int) -> Footprint | None:
    """None for heads that no quantised cache holds."""
    try:
        return need(dtype, context, SMALL_KV[0])
    except ModelError:
        return None


def _both(need: Footprint) -> str:
    return _gb(need.total) + (f" and {_gb(need.waiting)} of the host's" if need.waiting else "")


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
