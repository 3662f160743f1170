"""Source of a kernel with its overrides replaced by their values."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from gpu.webgpu.constant_expressions import constants_of, evaluate
from gpu.webgpu.kernels import Kernel, Number
from gpu.webgpu.wgsl_types import shared_variables

_OVERRIDE = re.compile(r"^override\s+(\w+)\s*:\s*(\w+)(?:\s*=\s*([^;]+?))?\s*;", re.MULTILINE)
_SIZE = re.compile(r"@workgroup_size\(([^)]*)\)")


def filled_source(kernel: Kernel) -> str:
    """Return the WGSL that was compiled, libraries included, with a `const` for every
    `override`."""
    return _OVERRIDE.sub(lambda match: _as_const(match, kernel.constants), kernel.source)


def workgroup_size(kernel: Kernel) -> tuple[int, int, int]:
    """Return the invocations of a workgroup in x, y and z, from `@workgroup_size`."""
    source = filled_source(kernel)
    consts = constants_of(source)
    match = _SIZE.search(source)
    if match is None:
        raise ValueError(f"{kernel.name}.wgsl has no @workgroup_size")
    sizes = [evaluate(size, consts) for size in match[1].split(",") if size.strip()]
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def workgroup_memory(kernel: Kernel) -> int:
    """Return the bytes of workgroup memory that a kernel declares."""
    source = filled_source(kernel)
    consts = constants_of(source)
    return sum(
        variable.element.n_bytes * (evaluate(variable.length, consts) if variable.length else 1)
        for variable in shared_variables(source)
        if variable.space == "workgroup"
    )


def _as_const(match: re.Match[str], constants: Mapping[str, Number]) -> str:
    name, kind, default = match.groups()
    value = _literal(kind, constants[name]) if name in constants else default
    return f"const {name}: {kind} = {value};"


def _literal(kind: str, value: Number) -> str:
    match kind:
        case "bool":
            return "true" if value else "false"
        case "u32":
            return f"{int(value)}u"
        case "i32":
            return f"{int(value)}i"
    return f"{float(np.float32(value))!r}f"
