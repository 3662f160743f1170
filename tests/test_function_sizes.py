"""Functions of the code stay small: at most 60 lines, and at most eight parameters outside the ops,
which take tensors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.serving import ROOT

pytestmark = pytest.mark.smoke

MAX_LINES = 60
MAX_PARAMETERS = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text("utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters, without `self` and `cls`."""
    args = function.args
    several = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, *several)]
    return [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize("package", ["app", "gpu", "tests", "e2e"])
def test_functions_are_small(package: str) -> None:
    found, large = 0, []
    for path in sorted((ROOT / package).rglob("*.py")):
        for function in functions(path):
            found += 1
            n_lines = (function.end_lineno or 0) - function.lineno + 1
            n_parameters = 0 if path.parent.name == "ops" else len(parameters(function))
            if n_lines > MAX_LINES or n_parameters > MAX_PARAMETERS:
                at = f"{path.relative_to(ROOT)}:{function.lineno}"
                large.append(f"{at} {function.name}: {n_lines} lines, {n_parameters} parameters")
    assert found > 300
    assert not large


def test_a_function_with_too_much_is_seen() -> None:
    source = "class A:\n    def f(self, a, /, b, *c, d, **e): ..."
    (function,) = (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))
    assert parameters(function) == ["a", "b", "d", "c", "e"]
