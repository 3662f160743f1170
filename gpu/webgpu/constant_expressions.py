"""Values of WGSL expressions of integers and constants."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_CONST = re.compile(r"^const\s+(\w+)(?:\s*:\s*\w+)?\s*=\s*([^;]+?)\s*;", re.MULTILINE)
_SUFFIX = re.compile(r"\b(0x[0-9a-fA-F]+|\d+)[ui]\b")
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


def constants_of(source: str) -> dict[str, str]:
    """Return the expressions of the constants that a source declares outside of functions."""
    return dict(_CONST.findall(source))


def evaluate(expression: str, constants: Mapping[str, str]) -> int:
    """Return the value of an expression of integers, truth values and `constants`. Raises
    ValueError for anything else."""
    try:
        tree = ast.parse(_SUFFIX.sub(r"\1", expression.strip()), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{expression} is not an expression of known constants") from error
    return _evaluated(tree, constants)


def _evaluated(node: ast.expr, constants: Mapping[str, str]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id="true" | "false" as name):
            return int(name == "true")
        case ast.Name(id=name) if name in constants:
            return evaluate(constants[name], constants)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluated(left, constants), _evaluated(right, constants))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluated(arg, constants) for arg in args))
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return int(_evaluated(left, constants) == _evaluated(right, constants))
    raise ValueError(f"{ast.unparse(node)} is not an expression of known constants")
