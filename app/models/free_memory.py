"""Free memory for a model: that of the device, where it can be known, and that of the host.

WebGPU does not report free memory. Software and integrated devices, and PyTorch, use the host's
memory, which the system reports. For GPUs with their own memory, nvidia-smi reports it, and on
Linux AMD's driver. For others it is unknown.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.config import MIB, Settings
from gpu import DeviceInfo, Footprint

SHARED_KINDS = ("integrated GPU", "software device", "CPU")
NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.free", "--format=csv,noheader,nounits")
"""Prints one line per GPU: its name and its free MiB."""
TOOL_SECONDS = 10
"""Time limit of nvidia-smi; it is slow if it first has to wake up a GPU."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free bytes for an engine, or for a stage of one, None if unknown. `shared`: the device uses
    the host's memory. `n_engines`, `n_stages`: engines that the memory is divided among, and stages
    of each."""

    device: int | None
    host: int | None
    shared: bool
    n_engines: int = 1
    n_stages: int = 1

    def divided(self, settings: Settings) -> FreeMemory:
        """Return the share of one of the engines, or stages, that these settings start."""
        n_engines, n_stages = settings.data_parallel_size, settings.pipeline_parallel_size
        n = n_engines * n_stages
        on_device = n if self.shared else math.ceil(n / len(settings.adapters))
        if settings.ray is not None and not self.shared:
            on_device = 1  # Ray gives each a device of its own
        return FreeMemory(
            None if self.device is None else self.device // on_device,
            None if self.host is None else self.host // n,
            self.shared,
            n_engines,
            n_stages,
        )

    def plus(self, spare_bytes: int) -> FreeMemory:
        """Return the free memory after `spare_bytes` have been freed on the device."""
        return self if self.device is None else replace(self, device=self.device + spare_bytes)

    def holds(self, need: Footprint) -> bool:
        """Return whether a model that needs this fits; memory of unknown size holds anything."""
        if self.shared:
            return self.device is None or need.total + need.host <= self.device
        return (self.device is None or need.total <= self.device) and (
            self.host is None or need.host <= self.host
        )


def free_memory(settings: Settings) -> FreeMemory:
    """Return the free memory of the device that these settings select, for each engine on it.
    That of other machines is unknown."""
    if settings.on_other_machines:
        return FreeMemory(None, None, shared=False).divided(settings)
    host = host_bytes()
    if settings.backend == "torch":
        return FreeMemory(host, host, shared=True).divided(settings)
    import gpu

    device = _selected_device(gpu.devices(), settings.adapters[0])
    if device is not None and device.kind in SHARED_KINDS:
        return FreeMemory(host, host, shared=True).divided(settings)
    card = card_bytes(device) if device else None
    return FreeMemory(card, host, shared=False).divided(settings)


def _selected_device(devices: Sequence[DeviceInfo], adapter: str | None) -> DeviceInfo | None:
    """Return the device that the engine would select; None where it will raise an error."""
    if not adapter:
        return next(iter(devices), None)
    chosen = (d for index, d in enumerate(devices) if d.is_chosen(adapter, index))
    return next(chosen, None)


def card_bytes(device: DeviceInfo, root: Path = Path("/")) -> int | None:
    """Return the free memory of a GPU with its own memory; None if unknown.

    If several match (NVIDIA: same name, AMD: any), it is the largest.
    """
    if "nvidia" in device.name.lower():
        return max((free for name, free in _nvidia_cards() if name == device.name), default=None)
    if not any(word in device.name for word in ("AMD", "Radeon")):
        return None
    free_bytes = map(_amd_free, root.glob("sys/class/drm/card*/device"))
    return max((free for free in free_bytes if free is not None), default=None)


def _nvidia_cards() -> list[tuple[str, int]]:
    """Return (name, free bytes) of each NVIDIA GPU."""
    tool = shutil.which(NVIDIA[0])
    if tool is None:
        return []
    try:
        lines = subprocess.run(
            (tool, *NVIDIA[1:]), capture_output=True, text=True, timeout=TOOL_SECONDS, check=True
        ).stdout.splitlines()
        cards = [line.rpartition(",") for line in lines]
        return [(name.strip(), int(free) * MIB) for name, _, free in cards]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _amd_free(card: Path) -> int | None:
    """Return the free bytes as reported by the amdgpu kernel driver; None for other drivers."""
    try:
        total, used = (
            int((card / f"mem_info_vram_{which}").read_text("ascii")) for which in ("total", "used")
        )
    except (OSError, ValueError):
        return None
    return max(0, total - used)


def host_bytes(root: Path = Path("/")) -> int | None:
    """Return the available memory of this machine, or of its container if that is less."""
    known = [n for n in (_available(root), _container_left(root)) if n is not None]
    return min(known, default=None)


def _available(root: Path) -> int | None:
    """Return the bytes available without swapping; all memory if the system does not say."""
    try:
        for line in (root / "proc/meminfo").read_text("ascii").splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def _container_left(root: Path) -> int | None:
    """Return the bytes left below the limit of this cgroup (v2); None if there is no limit.

    The page cache counts as used there, but is reclaimed when memory is needed.
    """
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text("ascii").strip()
        used = int((group / "memory.current").read_text("ascii"))
        fields = (line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        cached = sum(int(n) for key, n in fields if key in ("active_file", "inactive_file"))
        return None if limit == "max" else max(0, int(limit) - max(0, used - cached))
    except (OSError, ValueError):
        return None
