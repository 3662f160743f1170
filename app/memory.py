"""Will a model fit? Its need, computed before anything large is fetched or loaded, beside what the
device has; and what to choose where it does not.

WebGPU does not tell how much memory a device has. A software or integrated device, and PyTorch,
share the host's, which the system tells. A card of its own is a matter of trying: there this says
nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from app.config import Settings
from gpu import DeviceError, DeviceInfo, Footprint, ModelError, Shapes

SMALL_BYTES = 256 << 20
"""Any device that runs at all has this much: no need to look."""
DTYPES = ("f32", "f16", "q8", "q4")
CONTEXTS = (32768, 16384, 8192, 4096, 2048, 1024, 512)
SMALL_KV = ("q8", "q8q4", "rotated4")
"""The first of these costs nearly nothing; the others are for those who ask."""
SHARED_KINDS = ("integrated GPU", "software device", "CPU")

Need = Callable[[str, int | None, str | None], Footprint]
"""Of a storage type, a context, and how keys and values are stored."""


def expect_fit(
    name: str,
    path: Path,
    settings: Settings,
    shapes: Shapes | None = None,
    spare_bytes: int = 0,
    free_bytes: Callable[[Settings], int | None] | None = None,
) -> Footprint:
    """What the model at `path` needs with these settings. `shapes`: of weights that are not there
    yet; `spare_bytes`: what will be given back before it is loaded. Raises DeviceError with the
    numbers, and with what would fit, when the device has less, and ModelError for a model that
    cannot be run at all."""
    need = functools.cache(functools.partial(_footprint, path, settings, shapes))
    wanted = need(settings.dtype, settings.context, settings.kv_dtype)
    if wanted.total <= SMALL_BYTES:
        return wanted
    free = (free_bytes or device_bytes)(settings)
    if free is None or wanted.total <= free + spare_bytes:
        return wanted
    free += spare_bytes
    raise DeviceError(
        f"{name} at {settings.dtype} needs {_gb(wanted.total)}: {_gb(wanted.weights)} of weights, "
        f"{_gb(wanted.kv_cache)} of KV cache in {wanted.kv_dtype} for "
        f"{wanted.context:,} tokens, a tenth for the rest; "
        f"the device has {_gb(free)} free. {_advice(need, settings, wanted, free)}"
    )


def _footprint(
    path: Path,
    settings: Settings,
    shapes: Shapes | None,
    dtype: str,
    context: int | None,
    kv_dtype: str | None,
) -> Footprint:
    return Footprint.of(
        path,
        dtype,
        shapes=shapes,
        kv_dtype=kv_dtype,
        n_slots=settings.slots,
        context=context,
        kv_bytes=settings.kv_bytes,
    )


def _advice(need: Need, settings: Settings, wanted: Footprint, free: int) -> str:
    """A KV cache of fewer bits if that is enough, else the longest context that fits as it is, else
    the highest precision that fits, else that none does."""
    dtype, kv = settings.dtype, settings.kv_dtype
    if kv not in SMALL_KV and settings.backend == "wgpu":
        smaller = _with_small_kv(need, dtype, wanted.context)
        if smaller is not None and smaller.total <= free:
            return f"With --kv-dtype {SMALL_KV[0]} it would need {_gb(smaller.total)}"
    for context in CONTEXTS:
        if context < wanted.context and (fits := need(dtype, context, kv)).total <= free:
            return f"With --context {context} it would need {_gb(fits.total)}"
    for lower in DTYPES[DTYPES.index(dtype) + 1 :]:
        for context in (wanted.context, *(c for c in CONTEXTS if c < wanted.context)):
            if (fits := need(lower, context, kv)).total <= free:
                shorter = f" --context {context}" if context < wanted.context else ""
                return f"With --dtype {lower}{shorter} it would need {_gb(fits.total)}"
    return "No lower precision fits either: take a smaller model"


def _with_small_kv(need: Need, dtype: str, context: int) -> Footprint | None:
    """None for heads that no quantised cache holds."""
    try:
        return need(dtype, context, SMALL_KV[0])
    except ModelError:
        return None


def device_bytes(settings: Settings) -> int | None:
    """Free memory of the device that these settings choose, None where nobody tells."""
    if settings.backend == "torch":
        return host_bytes()
    import gpu

    device = _chosen(gpu.devices(), settings.adapter)
    if device is None or device.kind not in SHARED_KINDS:
        return None
    return host_bytes()


def _chosen(devices: list[DeviceInfo], wanted: str | None) -> DeviceInfo | None:
    """As the engine chooses; None leaves the complaint to it."""
    if not wanted:
        return next(iter(devices), None)
    if wanted.isdecimal():
        return devices[int(wanted)] if int(wanted) < len(devices) else None
    named = (d for d in devices if wanted.lower() in f"{d.name} {d.driver}".lower())
    return next(named, None)


def host_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this machine can give, or what a container is limited to if that is less."""
    found = [n for n in (_available(root), _container_left(root)) if n is not None]
    return min(found, default=None)


def _available(root: Path) -> int | None:
    """What the kernel could hand out without swapping; all there is, where it does not say."""
    try:
        for line in (root / "proc/meminfo").read_text("ascii").splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # as on Windows
        return None


def _container_left(root: Path) -> int | None:
    """Of the limit of this control group, version 2."""
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text("ascii").strip()
        used = int((group / "memory.current").read_text("ascii"))
        return None if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return None


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
