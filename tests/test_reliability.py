"""Every fault of docs/reliability.md has a test, and every test named there exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.serving import ROOT

DOCUMENT = ROOT / "docs" / "reliability.md"
NODE = re.compile(r"`((?:tests|e2e)/[\w/]+\.py)::(\w+)`")
LEAST_ROWS = 50


def rows() -> list[str]:
    """Return the rows of all tables, without their heads."""
    lines = DOCUMENT.read_text("utf-8").splitlines()
    ruled = [i for i, line in enumerate(lines) if line.startswith("| ---")]
    heads = {i - 1 for i in ruled}
    return [
        line
        for i, line in enumerate(lines)
        if line.startswith("|") and i not in heads and i not in ruled
    ]


def named_tests() -> list[tuple[str, str]]:
    """Return (file, function) of each test, once, in the order of the document."""
    return list(dict.fromkeys(NODE.findall(DOCUMENT.read_text("utf-8"))))


def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


def test_every_fault_names_its_tests() -> None:
    assert len(rows()) >= LEAST_ROWS
    without = [row for row in rows() if not NODE.search(row.rpartition(" | ")[2])]
    assert not without


@pytest.mark.parametrize("file", sorted({file for file, _ in named_tests()}))
def test_every_named_test_exists(file: str) -> None:
    wanted = {name for other, name in named_tests() if other == file}
    assert wanted <= functions_of(ROOT / file)


if __name__ == "__main__":
    print(*("::".join(node) for node in named_tests()))
