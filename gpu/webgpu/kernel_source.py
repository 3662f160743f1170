"""Source of a kernel with its overrides replaced by their values."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

import numpy as np

from gpu.webgpu.kernels import Kernel, Number
from gpu.webgpu.wgsl_types import shared_variables

_OVERRIDE = re.compile(r"^override\s+(\w+)\s*:\s*(\w+)(?:\s*=\s*([^;]+?))?\s*;", re.MULTILINE)
_CONST = re.compile(r"^const\s+(\w+)(?:\s*:\s*\w+)?\s*=\s*([^;]+?)\s*;", re.MULTILINE)
_SIZE = re.compile(r"@workgroup_size\(([^)]*)\)")
_SUFFIX = re.compile(r"\b(\d+)[ui]\b")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "max": max,
    "min": min,
    "select": lambda otherwise, value, condition: value if condition else otherwise,
}


def filled_source(kernel: Kernel) -> str:
    """Return the WGSL that was compiled, libraries included, with a `const` for every
    `override`."""
    return _OVERRIDE.sub(lambda match: _as_const(match, kernel.constants), kernel.source)


def workgroup_size(kernel: Kernel) -> tuple[int, int, int]:
    """Return the invocations of a workgroup in x, y and z, from `@workgroup_size`."""
    source = filled_source(kernel)
    consts = dict(_CONST.findall(source))
    match = _SIZE.search(source)
    if match is None:
        raise ValueError(f"{kernel.name}.wgsl has no @workgroup_size")
    sizes = [_value(size, consts) for size in match[1].split(",") if size.strip()]
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def workgroup_memory(kernel: Kernel) -> int:
    """Return the bytes of workgroup memory that a kernel declares."""
    source = filled_source(kernel)
    consts = dict(_CONST.findall(source))
    return sum(
        variable.element.n_bytes * (_value(variable.length, consts) if variable.length else 1)
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


def _value(expression: str, consts: Mapping[str, str]) -> int:
    """Evaluate an expression of integers, truth values and constants."""
    tree = ast.parse(_SUFFIX.sub(r"\1", expression.strip()), mode="eval").body
    return _evaluated(tree, consts)


def _evaluated(node: ast.expr, consts: Mapping[str, str]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id="true" | "false" as name):
            return int(name == "true")
        case ast.Name(id=name) if name in consts:
            return _value(consts[name], consts)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluated(left, consts), _evaluated(right, consts))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluated(arg, consts) for arg in args))
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return int(_evaluated(left, consts) == _evaluated(right, consts))
    raise ValueError(f"{ast.unparse(node)} is not an expression of known constants")
