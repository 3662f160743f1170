"""Hooks of every run: the order of the files, garbage, and the largest errors of all processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from dataclasses import astuple
from typing import Any

import pytest

from tests import figures
from tests.figures import FIGURES, Worst
from tests.quick_cases import mark_other_cases
from tests.schedule import SecondsRecorder, read_seconds, slowest_file_first

# Threads of the references' libraries spin while they wait for each other, and take the cores from
# the tests beside them. Set before anything imports them.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Commands that name no model run the bundled one, and whatever asks pip for another all the same
# finds nothing: no test uses the network by accident.
os.environ.setdefault("TOKENGLASS_MODEL", "tale")
os.environ.setdefault("PIP_NO_INDEX", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-seconds", action="store_true", help="measure tests/seconds.json anew")
    parser.addoption("--soak-seconds", type=float, default=12.0, help="length of tests/soak")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("write_seconds"):
        config.pluginmanager.register(SecondsRecorder())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from searching modules and collected tests, now and while they
    run: there is no garbage, and a search takes longer the more objects there are."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Let CI run each value of each parameter, not every combination, and a run in several
    processes start the slowest files first."""
    mark_other_cases(items)
    result = yield  # chooses by marks
    if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        slowest_file_first(items, read_seconds())
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the worker's comparisons to the main process (pytest-xdist)."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["figures"] = {name: astuple(worst) for name, worst in FIGURES.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add a worker's comparisons in the main process (pytest-xdist)."""
    for name, worst in getattr(node, "workeroutput", {}).get("figures", {}).items():
        figures.add(name, Worst(*worst))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the largest errors, result by result."""
    if not FIGURES:
        return
    terminalreporter.section("largest errors")
    for name, worst in sorted(FIGURES.items()):
        terminalreporter.line(
            f"{name:32} {worst.error:9.2e}  {worst.of_bound:4.0%} of its bound, {worst.n:,} numbers"
        )
