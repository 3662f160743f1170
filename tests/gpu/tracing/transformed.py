"""Kernels whose sources are changed: with every index compared with the length of its array, or
with workgroup memory that begins as something."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gpu.tracing.instrument import AccessRewriter, Kind, Site
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernel, Kernels
from gpu.webgpu.wgsl_types import SharedVariable, shared_variables

COUNTS = "bounds_counts"
"""Name of the binding: four words for each site: accesses, those outside of the array, the largest
index of these, the length of the array."""
SITE_WORDS = 4

_COMMENT = re.compile(r"//[^\n]*")
_MAIN = re.compile(r"fn main\(([^)]*(?:\([^)]*\)[^)]*)*)\)\s*\{")
_LANE = re.compile(r"@builtin\(local_invocation_index\)\s*(\w+)")
_DECLARED = re.compile(r"^\s*var<workgroup>\s*(\w+)\s*:\s*([^;]+);", re.MULTILINE)
_ALIAS = re.compile(r"^alias\s+(\w+)\s*=\s*([^;]+);", re.MULTILINE)
_STRUCT = re.compile(r"^struct\s+(\w+)\s*\{([^}]*)\}", re.MULTILINE)
_MEMBER_TYPE = re.compile(r"\w+\s*:\s*(\w+(?:<[^,}]*>)?)")

_COUNTING = """
@group(0) @binding(%(binding)d) var<storage, read_write> bounds_counts: array<atomic<u32>>;

fn in_bounds(site: u32, index: u32, length: u32) -> u32 {
  atomicAdd(&bounds_counts[4u * site], 1u);
  if (index >= length) {
    atomicAdd(&bounds_counts[4u * site + 1u], 1u);
    atomicMax(&bounds_counts[4u * site + 2u], index);
    atomicMax(&bounds_counts[4u * site + 3u], length);
    return 0u;
  }
  return index;
}
"""


class TransformedKernels(Kernels):
    """Kernels made of those of another cache by `transform`, which returns a source and its
    sites."""

    def __init__(
        self, device: Device, transform: Callable[[str], tuple[str, tuple[Site, ...]]]
    ) -> None:
        super().__init__(device)
        self._transform = transform
        self._made: dict[tuple[Any, ...], tuple[Kernel, tuple[Site, ...]]] = {}

    def of(self, kernel: Kernel) -> tuple[Kernel, tuple[Site, ...]]:
        key = (kernel.source, tuple(sorted(kernel.constants.items())))
        if key not in self._made:
            source, sites = self._transform(kernel.source)
            self._made[key] = self._begin(kernel.name, source, dict(kernel.constants)), sites
        return self._made[key]


def counting(source: str) -> tuple[str, tuple[Site, ...]]:
    """Return a source that counts accesses outside of their arrays, and moves them to the first
    element."""
    source = _COMMENT.sub("", source)
    body = _Bounds(source, {v.name: v for v in shared_variables(source)})
    text = body.rewritten()
    last = max(map(int, re.findall(r"@binding\((\d+)\)", source)), default=-1)
    return text + _COUNTING % {"binding": last + 1}, tuple(body.sites)


class _Bounds(AccessRewriter):
    def _element(
        self, variable: SharedVariable, kind: Kind, written: str, index: str, after: str
    ) -> str:
        number = self._number(variable, kind, variable.element.n_bytes, written)
        length = variable.length
        n = f"u32({length})" if length else f"arrayLength(&{variable.name})"
        return f"{variable.name}[in_bounds({number}u, {index}, {n})]"

    def _whole(self, variable: SharedVariable, text: str, end: int, before: str) -> str:
        return before


def with_workgroup_memory_of(bits: int) -> Callable[[str], tuple[str, tuple[Site, ...]]]:
    """Return a transform after which every word of workgroup memory begins as `bits`."""

    def transform(source: str) -> tuple[str, tuple[Site, ...]]:
        clean = _COMMENT.sub("", source)
        declared = _DECLARED.findall(clean)
        main = _MAIN.search(clean)
        assert main is not None
        lane = _LANE.search(main[1])
        if not declared:
            return source, ()
        assert lane is not None, "a kernel with workgroup memory needs the number of its lane"
        aliases, structs = dict(_ALIAS.findall(clean)), dict(_STRUCT.findall(clean))
        stores = "".join(_stores(name, kind, aliases, structs) for name, kind in declared)
        begin = f"\n  if ({lane[1]} == 0u) {{{stores}\n  }}\n  workgroupBarrier();\n"
        text = clean[: main.end()] + begin + clean[main.end() :]
        return f"{text}\nvar<private> poison_bits: u32 = {bits}u;\n", ()

    return transform


def _stores(name: str, kind: str, aliases: dict[str, str], structs: dict[str, str]) -> str:
    """Return WGSL that fills a variable."""
    array = re.fullmatch(r"array<((?:[^,<>]|<[^>]*>)+),(.*)>", kind.strip(), re.DOTALL)
    element = (array[1] if array else kind).strip()
    place = f"{name}[poison_i]" if array else name
    element = aliases.get(element, element).strip()
    if re.fullmatch(r"atomic<\w+>", element):
        store = f"atomicStore(&{place}, poison_bits);"
    else:
        store = f"{place} = {_value(element, structs)};"
    if array is None:
        return f"\n    {store}"
    return f"\n    for (var poison_i = 0u; poison_i < u32({array[2]}); poison_i++) {{ {store} }}"


def _value(kind: str, structs: dict[str, str]) -> str:
    number = "bitcast<f32>(poison_bits)"
    if kind in structs:
        parts = (_value(part.strip(), structs) for part in _MEMBER_TYPE.findall(structs[kind]))
        return f"{kind}({', '.join(parts)})"
    known = {"f32": number, "u32": "poison_bits", "i32": "i32(poison_bits)", "bool": "true"}
    if kind in known:
        return known[kind]
    assert re.fullmatch(r"vec[234][fu]", kind), f"poison for {kind} is not known"
    return f"{kind}({number if kind.endswith('f') else 'poison_bits'})"
