"""Cases of a test that `make test` and CI run: as few as have every value of every parameter once.

Parameters multiply: four dtypes, four tilings and ten sizes are 160 cases, each of which may
compile kernels or start a process. CI runs ten of them, in which each size, tiling and dtype
occurs; the others are marked `slow`. Parameters that one decorator sets together stay together.
`make test-slow` runs the others, `pytest` without `-m` all, and the mutants all as well (EVERY_CASE
in the environment).

Without a GPU, compiling kernels takes most of the time of CI. So of a test on a device `make test`
runs one case only, and the others that CI runs are marked `ci`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

EVERY_CASE = "EVERY_CASE"

Value = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of parameters that are set together, and what they are set to."""


DEVICE = "device"
"""Fixture of tests that compute on a GPU, or on what stands in for one."""


def mark_other_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases that have no value of their own as `slow`, and of a test on a device all
    others but the first as `ci`."""
    if os.environ.get(EVERY_CASE):
        return
    tests: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("slow") is None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        chosen = covering([values_of(case) for case in cases])
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker(pytest.mark.slow)
            elif DEVICE in case.fixturenames and number != min(chosen):
                case.add_marker(pytest.mark.ci)


def covering(cases: Sequence[frozenset[Value]]) -> set[int]:
    """Return the numbers of cases that together have every value. Greedy: each is the first of
    those that have most of what is missing."""
    missing = set[Value]().union(*cases)
    chosen: set[int] = set()
    while missing:
        best = max(range(len(cases)), key=lambda number: (len(missing & cases[number]), -number))
        missing -= cases[best]
        chosen.add(best)
    return chosen


def values_of(case: Any) -> frozenset[Value]:
    """Return the values of a case's parameters."""
    params = dict(case.callspec.params)
    values = []
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.split(",") if isinstance(names, str) else names
        together = tuple(name.strip() for name in names)
        values.append((together, tuple(repr(params.pop(name, None)) for name in together)))
    values += [((name,), (repr(value),)) for name, value in params.items()]  # of fixtures
    return frozenset(values)
