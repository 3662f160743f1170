"""Devices that are not here, in the place of the one that is: other kinds, inexact ones, and such
as leave in memory what was there before.

`--pose`, `--inexact` and `--leftovers` run any tests on the device so; `make devices` has all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu.info import AdapterInfo
from gpu.kv.pools import KvPools
from gpu.webgpu import device as device_module
from gpu.webgpu.device_policy import DISCRETE
from gpu.webgpu.kernels import Kernel, Kernels
from tests.gpu.inexact import inexact

SMALLEST_LIMITS = {
    "max-compute-workgroup-storage-size": 16 << 10,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-buffer-size": 256 << 20,
}
"""What every WebGPU device has, and some phones no more."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "discrete": {"kind": DISCRETE},
    "integrated": {"kind": "integrated GPU"},
    "phone": {"kind": "integrated GPU", "vendor": "Qualcomm", "limits": SMALLEST_LIMITS},
}
"""Kinds to pose as, and how an adapter describes itself then."""

LEFTOVERS = {"nan": np.nan, "inf": np.inf, "stale": 123.5}
"""What memory holds where nothing was written: no number, infinity, or one of an earlier text."""

_MAIN = re.compile(r"@workgroup_size\((.+?)\)\s*\nfn main\(.*?\) \{\n", re.DOTALL)
_LANE = re.compile(r"@builtin\(local_invocation_index\)\s*(\w+)")
_WORKGROUP = re.compile(r"^var<workgroup>\s*(\w+)\s*:\s*([^;]+);", re.MULTILINE)
_ARRAY = re.compile(r"array<((?:[^,<]|<\w+>)+)(?:,\s*(.+))?>\Z")
_STRUCT = re.compile(r"^struct\s+(\w+)\s*\{([^}]*)\}", re.MULTILINE)
_MEMBER = re.compile(r"\w+\s*:\s*(\w+(?:<\w+>)?)")
_ALIAS = re.compile(r"^alias\s+(\w+)\s*=\s*([^;]+);", re.MULTILINE)


def pose(patch: pytest.MonkeyPatch, kind: str) -> None:
    """Let every adapter describe itself as one of `KINDS`."""
    describe = device_module.describe

    def described(adapter: Any) -> AdapterInfo:
        info, changes = describe(adapter), dict(KINDS[kind])
        least = changes.pop("limits", {})
        limits = {name: min(n, least.get(name, n)) for name, n in info.limits.items()}
        features = tuple(f for f in info.features if f not in device_module.SOFTWARE_FEATURES)
        return replace(info, software=False, features=features, limits=limits, **changes)

    patch.setattr(device_module, "describe", described)


def make_inexact(patch: pytest.MonkeyPatch, way: str) -> None:
    """Let every kernel compute inexactly in one of `inexact.WAYS`."""
    rewrite_kernels(patch, lambda source: inexact(source, way))


def leave(patch: pytest.MonkeyPatch, leftover: float) -> None:
    """Let the KV cache and the workgroup memory of every kernel hold `leftover` at first."""
    rewrite_kernels(patch, lambda source: with_leftover(source, leftover))
    make = KvPools.__init__

    def made(self: KvPools, *args: Any) -> None:
        make(self, *args)
        for pool in {pool.name: pool for pool in (*self.keys, *self.values)}.values():
            number = (np.float16 if pool.dtype == "f16" else np.float32)(leftover)
            words = np.full(4 // number.nbytes, number).view(np.uint32)
            self._memory.write(pool, np.resize(words, pool.n_bytes // 4))

    patch.setattr(KvPools, "__init__", made)


def rewrite_kernels(patch: pytest.MonkeyPatch, rewrite: Callable[[str], str]) -> None:
    """Let every kernel be compiled from its composed source after `rewrite`."""
    begin = Kernels._begin

    def begun(self: Kernels, name: str, source: str, constants: dict[str, Any]) -> Kernel:
        return begin(self, name, rewrite(source), constants)

    patch.setattr(Kernels, "_begin", begun)


def with_leftover(source: str, leftover: float) -> str:
    """Return a composed source whose workgroup memory begins with `leftover` in place of zeros."""
    source = re.sub(r"//[^\n]*", "", source)
    variables, main, lane = _WORKGROUP.findall(source), _MAIN.search(source), _LANE.search(source)
    if not variables or main is None or lane is None:
        return source
    types = dict(_ALIAS.findall(source))
    types |= {name: _MEMBER.findall(members) for name, members in _STRUCT.findall(source)}
    stores = []
    for name, kind in variables:
        if array := _ARRAY.match(kind):
            loop = f"for (var at = {lane[1]}; at < u32({array[2].strip(' ,')}); at += {main[1]})"
            stores.append(f"{loop} {{ {_stored(f'{name}[at]', array[1], types)} }}")
        else:
            stores.append(_stored(name, kind, types))
    bits = int(np.float32(leftover).view(np.uint32))
    declared = f"\nvar<private> leftover: u32 = {bits}u;\n"
    begin = "\n".join([*stores, "workgroupBarrier();\n"])
    return source[: main.end()] + begin + source[main.end() :] + declared


def _stored(place: str, kind: str, types: Mapping[str, Any]) -> str:
    if kind.startswith("atomic"):
        return f"atomicStore(&{place}, leftover);"
    return f"{place} = {_value(kind, types)};"


def _value(kind: str, types: Mapping[str, Any]) -> str:
    """Return the leftover as a WGSL expression of a type."""
    found = types.get(kind, kind)
    if isinstance(found, list):
        return f"{kind}({', '.join(_value(member, types) for member in found)})"
    if vector := re.fullmatch(r"vec\d(f|u|<\w+>)", found):
        part = {"f": "f32", "u": "u32"}.get(vector[1], vector[1].strip("<>"))
        return f"{found}({_value(part, types)})"
    return "bitcast<f32>(leftover)" if found == "f32" else f"{found}(leftover)"
