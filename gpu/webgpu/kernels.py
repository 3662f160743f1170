"""WGSL files to pipelines: composition, binding layouts read from the source, a cache.

A shader is specialised in two ways: `override` constants, and a prelude of `const` and `alias`
lines for what WGSL cannot override (private array lengths, types). A `// use: name` line adds
shaders/lib/name.wgsl and its own uses before the shader. A loop whose line ends in `// unroll` is
unrolled for devices that need it. Ops bind by name; only the shader declares the order of its
bindings. One that ends in `// optional` may be left out: every binding costs the host time at each
dispatch.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import wgpu

from gpu.webgpu.compiler import Compiler
from gpu.webgpu.device import Device
from gpu.webgpu.unroll import unmarked, unrolled

_BINDING = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(uniform|storage)\s*(?:,\s*(read_write|read)\s*)?>"
    r"\s*(\w+)\s*:"
)
_TEXTURE = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*var\s+(\w+):\s*texture_storage_2d<rgba32uint, read>"
)
_OPTIONAL = re.compile(
    r"^@group\(0\) @binding\(\d+\) var<storage[^>]*> (\w+): array<(\w+)>; // optional$",
    re.MULTILINE,
)
_USE = re.compile(r"^// use: (\w+)\s*$", re.MULTILINE)
_OVERRIDE = re.compile(r"^override\s+(\w+)\s*:.*\n", re.MULTILINE)

Number = bool | int | float


def shader_names() -> list[str]:
    """Return the names of all shaders of ops, sorted."""
    folder = resources.files("gpu") / "shaders"
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".wgsl"))


@cache
def read_shader(name: str) -> str:
    return (resources.files("gpu") / "shaders" / f"{name}.wgsl").read_text("utf-8")


def compose(
    name: str,
    prelude: Mapping[str, str],
    lib: Mapping[str, str] | None = None,
    unbound: Collection[str] = (),
    *,
    unroll: bool = False,
) -> str:
    """Return the whole source of shader `name`: prelude, the library files it uses, itself.

    `prelude` maps a WGSL declaration such as "const TILE_M" or "alias Scalar" to its value. `lib`
    maps a used name to the file that replaces it, e.g. {"weight": "weight_f16"}. `unbound` names
    optional bindings to do without; raises ValueError for one that is not optional, and for a
    marked loop that cannot be unrolled if it is to `unroll` them.
    """
    lib = lib or {}
    parts = ["".join(f"{declaration} = {value};\n" for declaration, value in prelude.items())]
    seen: set[str] = set()

    def add(source: str) -> None:
        for used in _uses(source):
            if used not in seen:
                seen.add(used)
                add(read_shader(f"lib/{lib.get(used, used)}"))
        parts.append(source)

    add(read_shader(name))
    source = _without(frozenset(unbound), _overrides_first("\n".join(parts)), name)
    return unrolled(source) if unroll else unmarked(source)


# Many kernels have the same text, and differ in constants: each text is read once.
@cache
def _uses(source: str) -> tuple[str, ...]:
    return tuple(_USE.findall(source))


@cache
def _overrides(source: str) -> frozenset[str]:
    return frozenset(_OVERRIDE.findall(source))


@cache
def _without(unbound: frozenset[str], source: str, name: str) -> str:
    """Return the source without these optional bindings. Constants keep the shader from using them;
    private variables stand in their place, so that it compiles, and compilers remove them."""
    optional = {match[1] for match in _OPTIONAL.finditer(source)}
    if needed := sorted(set(unbound) - optional):
        raise ValueError(f"{name}.wgsl cannot do without {', '.join(needed)}")

    def declared(match: re.Match[str]) -> str:
        private = f"var<private> {match[1]}: array<{match[2]}, 1>; // not bound"
        return private if match[1] in unbound else match[0]

    return _OPTIONAL.sub(declared, source)


@cache
def _overrides_first(source: str) -> str:
    """Move overrides to the start: naga 29 aborts if an array length uses an override below it."""
    overrides = "".join(match[0] for match in _OVERRIDE.finditer(source))
    return overrides + _OVERRIDE.sub("", source)


@dataclass(frozen=True, slots=True)
class Binding:
    index: int
    name: str
    kind: str  # "uniform", "texture", "read-only-storage" or "storage"

    @property
    def layout(self) -> dict[str, Any]:
        """Entry of a bind group layout."""
        if self.kind == "texture":
            what = {"format": wgpu.TextureFormat.rgba32uint, "access": "read-only"}
            how: dict[str, Any] = {"storage_texture": {**what, "view_dimension": "2d"}}
        else:
            how = {"buffer": {"type": self.kind}}
        return {"binding": self.index, "visibility": wgpu.ShaderStage.COMPUTE, **how}


@cache
def bindings_of(source: str) -> tuple[Binding, ...]:
    """Return the bindings declared in group 0, by index."""
    found = [
        Binding(int(index), name, _kind(space, access))
        for index, space, access, name in _BINDING.findall(source)
    ]
    found += [Binding(int(index), name, "texture") for index, name in _TEXTURE.findall(source)]
    return tuple(sorted(found, key=lambda b: b.index))


def _kind(space: str, access: str) -> str:
    if space == "uniform":
        return "uniform"
    return "storage" if access == "read_write" else "read-only-storage"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Kernel:
    """A specialised shader: the compiled `source` and its overrides, `constants`."""

    name: str
    layout: Any
    bindings: tuple[Binding, ...]
    source: str
    constants: Mapping[str, Number]
    _compiled: Future[Any]

    @property
    def pipeline(self) -> Any:
        """The compiled pipeline; waits for it. Raises DeviceError if compilation failed."""
        return self._compiled.result()


class Kernels:
    """Cache of kernels by specialisation, compiled in the background."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._compiler = Compiler(device)
        self._kernels: dict[tuple[Any, ...], Kernel] = {}

    def __len__(self) -> int:
        return len(self._kernels)

    def get(
        self,
        name: str,
        constants: Mapping[str, Number],
        prelude: Mapping[str, str] | None = None,
        lib: Mapping[str, str] | None = None,
        unbound: frozenset[str] = frozenset(),
        *,
        unroll: bool = False,
    ) -> Kernel:
        """Return the kernel of shader `name` with these overrides; a new one starts to compile.

        `unroll`: whether its marked loops are unrolled. Raises ValueError for an override that the
        shader does not declare, for a binding in `unbound` that it needs, and for a loop that
        cannot be unrolled.
        """
        prelude, lib = prelude or {}, self.device.policy.lib | dict(lib or {})
        key = (name, _items(constants), _items(prelude), _items(lib), unbound, unroll)
        if key not in self._kernels:
            source = compose(name, prelude, lib, unbound, unroll=unroll)
            self._kernels[key] = self._begin(name, source, dict(constants))
        return self._kernels[key]

    def compiled_again(self, kernel: Kernel) -> Kernel:
        """Return a kernel of another cache, of the same device, as compiled by this one."""
        key = (kernel.source, _items(kernel.constants))
        if key not in self._kernels:
            self._kernels[key] = self._begin(kernel.name, kernel.source, dict(kernel.constants))
        return self._kernels[key]

    def forget(self, ids: Collection[int]) -> None:
        """Keep the kernels of these identities no longer: nobody who is kept uses them."""
        self._kernels = {key: k for key, k in self._kernels.items() if id(k) not in ids}

    def close(self) -> None:
        """Cancel what has not begun to compile, and wait for the rest."""
        self._compiler.close()

    def _begin(self, name: str, source: str, constants: dict[str, Number]) -> Kernel:
        if unknown := constants.keys() - _overrides(source):
            raise ValueError(f"{name}.wgsl has no override named {', '.join(sorted(unknown))}")
        bindings = bindings_of(source)
        layout = self.device.wgpu.create_bind_group_layout(
            label=name, entries=[b.layout for b in bindings]
        )
        compiled = self._compiler.begin(name, source, constants, layout)
        kernel = Kernel(name, layout, bindings, source, constants, compiled)
        # A strong reference would keep the pipeline's device alive past garbage collection.
        weakref.finalize(kernel, _cancel, weakref.ref(compiled))
        return kernel


def _cancel(compiled: weakref.ref[Future[Any]]) -> None:
    """Cancel a compilation whose kernel is gone."""
    if pending := compiled():
        pending.cancel()


def _items(mapping: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(mapping.items()))
