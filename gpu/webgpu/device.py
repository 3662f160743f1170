"""Choosing an adapter and opening its device.

Adapters of Vulkan, Metal and DX12 are considered, GPUs before software devices. OpenGL is left out:
it reports compute shaders that it cannot run well. A lost device is noticed where results are read
back (`gpu.webgpu.native`, `gpu.webgpu.calls`).
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # silences Mesa, harmless elsewhere

import wgpu
from wgpu.backends import wgpu_native
from wgpu.backends.wgpu_native import extras

from gpu.errors import DeviceError
from gpu.info import AdapterInfo
from gpu.webgpu import native
from gpu.webgpu.device_policy import DISCRETE, DevicePolicy
from gpu.webgpu.subgroup_shuffle import can_shuffle
from gpu.webgpu.submissions import Submissions
from gpu.webgpu.tiling import SOFTWARE_LOADS, Tuning
from gpu.webgpu.vendors import vendor_of

BACKENDS = ("Vulkan", "Metal", "DX12")
KIND_ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
KIND_NAMES = {
    "DiscreteGPU": DISCRETE,
    "IntegratedGPU": "integrated GPU",
    "CPU": "software device",
}
WANTED_FEATURES = ("timestamp-query", "timestamp-query-inside-passes", "subgroup")
SOFTWARE_FEATURES = ("shader-int64",)
"""Features that only help software devices: a GPU loads sixteen bytes at once anyway."""
WANTED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-texture-dimension-2d",
    "min-storage-buffer-offset-alignment",
)
NO_ADAPTER = (
    "no WebGPU adapter was found. With a GPU: install its Vulkan driver. Without one: "
    "`apt-get install mesa-vulkan-drivers libvulkan1` gives a software device on Debian and "
    "Ubuntu; or run with --backend torch"
)

SLOW_CALLS = (
    "native calls are not known for wgpu-py %s (%s): steps take more host time and have no GPU "
    "times; `pip install 'wgpu~=0.32.0'` brings both back"
)

log = logging.getLogger(__name__)

_instance_configured = False


def list_adapters() -> list[wgpu.GPUAdapter]:
    """Return all usable adapters, best first."""
    global _instance_configured
    if not _instance_configured:
        extras.set_instance_extras(backends=BACKENDS)
        _instance_configured = True
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]
    return sorted(adapters, key=_rank)


def list_devices() -> list[AdapterInfo]:
    """Describe the adapters of `list_adapters`; `--adapter` takes the index."""
    return [describe(adapter) for adapter in list_adapters()]


def wgpu_versions() -> dict[str, str]:
    """Return the versions of wgpu-py and of the wgpu-native library inside it."""
    return {"wgpu": wgpu.__version__, "wgpu-native": wgpu_native.__version__}


def describe(adapter: wgpu.GPUAdapter) -> AdapterInfo:
    info = adapter.info
    kind = info["adapter_type"]
    wanted = WANTED_FEATURES + (SOFTWARE_FEATURES if kind == "CPU" else ())
    there = {f for f in wanted if f in adapter.features and not _needs_native(f)}
    return AdapterInfo(
        name=info["device"] or info["vendor"] or "unnamed adapter",
        driver=info["description"] or "unknown driver",
        backend=info["backend_type"],
        kind=KIND_NAMES.get(kind, kind),
        software=kind == "CPU",
        features=tuple(f for f in wanted if f in there),
        lacks=tuple(f for f in wanted if f not in there),
        limits={name: int(adapter.limits[name]) for name in WANTED_LIMITS},
        vendor=vendor_of(int(info.get("vendor_id", 0)), info["device"] or info["vendor"]),
        subgroup_sizes=(_subgroup_size(info, "min"), _subgroup_size(info, "max")),
    )


def _subgroup_size(info: Mapping[str, Any], which: str) -> int:
    # wgpu-py 0.32 misspells the first word.
    return int(info.get(f"subgroup_{which}_size", info.get(f"stackgroup_{which}_size", 0)))


def choose_adapter(wanted: str | None) -> wgpu.GPUAdapter:
    """Return the first adapter that `wanted` chooses (`DeviceInfo.is_chosen`), or the best for None
    or "".

    Raises DeviceError if there is none or none matches; the message lists the adapters.
    """
    adapters = list_adapters()
    if not adapters:
        raise DeviceError(NO_ADAPTER)
    if wanted is None or wanted == "":
        return adapters[0]
    for index, adapter in enumerate(adapters):
        if describe(adapter).is_chosen(wanted, index):
            return adapter
    listing = "; ".join(f"{i}: {describe(a).name}" for i, a in enumerate(adapters))
    raise DeviceError(f"no adapter matches {wanted!r}; there are: {listing}")


@dataclass(frozen=True, slots=True)
class Device:
    """An open device.

    `checked`: shaders keep their bounds checks and calls go through wgpu-py's public API, which
    reports errors where they happen. Slower; for tests and debugging. Not for matrices of more than
    6,000 columns on Mesa's software device, which ends long loops early.
    """

    wgpu: Any
    info: AdapterInfo
    checked: bool
    tuning: Tuning
    policy: DevicePolicy
    submissions: Submissions = field(default_factory=Submissions, compare=False)

    @classmethod
    def open(
        cls,
        adapter: str | None = None,
        *,
        checked: bool | None = None,
        more_limits: Mapping[str, int] = MappingProxyType({}),
    ) -> Device:
        """Open the adapter that `choose_adapter` returns.

        `checked` None: checked if the environment variable TOKENGLASS_CHECKED is set. `more_limits`
        are asked for beside those that a model needs. Raises DeviceError.
        """
        chosen = choose_adapter(adapter)
        info = describe(chosen)
        try:
            device = chosen.request_device_sync(
                required_features=list(info.features),
                required_limits={**info.limits, **more_limits},
            )
        except RuntimeError as error:
            raise DeviceError(f"{info.name} could not be opened: {error}") from error
        if checked is None:
            checked = bool(os.environ.get("TOKENGLASS_CHECKED"))
        if native.UNAVAILABLE:
            log.warning(SLOW_CALLS, wgpu.__version__, native.UNAVAILABLE)
            checked = True
        policy = DevicePolicy.of(info)
        return cls(device, info, checked, _tuning(device, policy), policy)

    @property
    def has_timestamps(self) -> bool:
        """True if a pass can be timed as a whole."""
        return "timestamp-query" in self.info.features

    @property
    def has_pass_timestamps(self) -> bool:
        """True if timestamps can be taken between the dispatches of one pass."""
        return "timestamp-query-inside-passes" in self.info.features

    @property
    def max_binding_bytes(self) -> int:
        limits = self.info.limits
        return min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])

    @property
    def max_texture_side(self) -> int:
        return self.info.limits["max-texture-dimension-2d"]

    def close(self) -> None:
        self.submissions.close()
        self.wgpu.destroy()


def _tuning(device: wgpu.GPUDevice, policy: DevicePolicy) -> Tuning:
    """Return the tuning that is used until one is measured."""
    usable = not policy.tuning.subgroup_shuffle or can_shuffle(device)
    return policy.tuning if usable else SOFTWARE_LOADS


def _needs_native(feature: str) -> bool:
    """Return whether a feature is useless without native calls, which alone know the length of a
    timestamp's tick."""
    return bool(native.UNAVAILABLE) and feature.startswith("timestamp-query")


def _rank(adapter: wgpu.GPUAdapter) -> int:
    kind = adapter.info["adapter_type"]
    return KIND_ORDER.index(kind) if kind in KIND_ORDER else len(KIND_ORDER) - 2
