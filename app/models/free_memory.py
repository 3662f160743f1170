"""What memory there is for a model: the device's, as far as anybody tells, and the host's.

WebGPU does not tell. A software or integrated device, and PyTorch, share the host's memory, which
the system tells. Of cards with their own, NVIDIA's tool and AMD's driver tell on Linux; with others
it is a matter of trying.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from app.config import MIB, Settings
from gpu import DeviceInfo, Footprint

SHARED_KINDS = ("integrated GPU", "software device", "CPU")
NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.free", "--format=csv,noheader,nounits")
"""A line for each card: its name, and MiB."""
SECONDS = 10
"""The most that the tool may take; it is slow where it first has to wake a card."""


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes, None where nobody tells. `shared`: the device's are the host's."""

    device: int | None
    host: int | None
    shared: bool

    def plus(self, spare_bytes: int) -> Free:
        """With what will be given back on the device."""
        return self if self.device is None else replace(self, device=self.device + spare_bytes)

    def holds(self, need: Footprint) -> bool:
        """As far as is known."""
        if self.shared:
            return self.device is None or need.total + need.waiting <= self.device
        return (self.device is None or need.total <= self.device) and (
            self.host is None or need.waiting <= self.host
        )


def free_memory(settings: Settings) -> Free:
    """Of the device that these settings choose."""
    host = host_bytes()
    if settings.backend == "torch":
        return Free(host, host, shared=True)
    import gpu

    device = _chosen(gpu.devices(), settings.adapter)
    if device is not None and device.kind in SHARED_KINDS:
        return Free(host, host, shared=True)
    return Free(card_bytes(device) if device else None, host, shared=False)


def _chosen(devices: list[DeviceInfo], wanted: str | None) -> DeviceInfo | None:
    """As the engine chooses; None leaves the complaint to it."""
    if not wanted:
        return next(iter(devices), None)
    if wanted.isdecimal():
        return devices[int(wanted)] if int(wanted) < len(devices) else None
    named = (d for d in devices if wanted.lower() in f"{d.name} {d.driver}".lower())
    return next(named, None)


def card_bytes(device: DeviceInfo, root: Path = Path("/")) -> int | None:
    """Free memory of a card of its own. Where it may be one of several (of NVIDIA those of that
    name, of AMD any), the largest."""
    if "nvidia" in device.name.lower():
        return max((free for name, free in _nvidia_cards() if name == device.name), default=None)
    if not any(word in device.name for word in ("AMD", "Radeon")):
        return None
    found = map(_amd_free, root.glob("sys/class/drm/card*/device"))
    return max((free for free in found if free is not None), default=None)


def _nvidia_cards() -> list[tuple[str, int]]:
    """Names and free bytes."""
    tool = shutil.which(NVIDIA[0])
    if tool is None:
        return []
    try:
        lines = subprocess.run(
            (tool, *NVIDIA[1:]), capture_output=True, text=True, timeout=SECONDS, check=True
        ).stdout.splitlines()
        cards = [line.rpartition(",") for line in lines]
        return [(name.strip(), int(free) * MIB) for name, _, free in cards]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _amd_free(card: Path) -> int | None:
    """As the kernel's amdgpu driver tells it; None of cards of others."""
    try:
        total, used = (
            int((card / f"mem_info_vram_{which}").read_text("ascii")) for which in ("total", "used")
        )
    except (OSError, ValueError):
        return None
    return max(0, total - used)


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
    """Of the limit of this control group, version 2. Cached files count as used there, as those of
    a model just fetched, but give way."""
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text("ascii").strip()
        used = int((group / "memory.current").read_text("ascii"))
        fields = (line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        cached = sum(int(n) for key, n in fields if key in ("active_file", "inactive_file"))
        return None if limit == "max" else max(0, int(limit) - max(0, used - cached))
    except (OSError, ValueError):
        return None
