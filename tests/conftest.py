"""The largest errors of a run, put together from all processes that ran tests of it."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from tests import figures
from tests.figures import FIGURES, Worst


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a process that runs tests for another: hand over what it compared."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["figures"] = {name: astuple(worst) for name, worst in FIGURES.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """In the process that has others run tests (pytest-xdist): take what one compared."""
    for name, worst in getattr(node, "workeroutput", {}).get("figures", {}).items():
        figures.add(name, Worst(*worst))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How close the numbers were, result by result."""
    if not FIGURES:
        return
    terminalreporter.section("largest errors")
    for name, worst in sorted(FIGURES.items()):
        terminalreporter.line(
            f"{name:32} {worst.error:9.2e}  {worst.of_bound:4.0%} of its bound, {worst.n:,} numbers"
        )
