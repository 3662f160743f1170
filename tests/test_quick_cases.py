"""CI runs every value of every parameter, and `make test-slow` the other combinations."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest

from tests.quick_cases import EVERY_CASE, covering, mark_other_cases, values_of


def case(**params: str) -> frozenset[Any]:
    return frozenset(((name,), (value,)) for name, value in params.items())


def test_every_value_occurs_in_as_many_cases_as_the_longest_parameter_has_values() -> None:
    cases = [case(a=a, b=b, c=c) for a, b, c in product("123", "4567", "89")]
    chosen = covering(cases)
    assert len(chosen) == 4
    assert frozenset().union(*(cases[number] for number in chosen)) == frozenset().union(*cases)


def test_cases_without_a_common_value_are_all_taken() -> None:
    assert covering([case(a=a) for a in "12345"]) == set(range(5))


TESTS = """
import pytest

@pytest.fixture(params=["x", "y"])
def engine(request):
    return request.param

@pytest.mark.parametrize("dtype", ["f32", "q4"])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 2), (2, 1)])
def test_it(engine, k, n, dtype):
    pass
"""


def collected(pytester: pytest.Pytester) -> list[Any]:
    pytester.makeini("[pytest]\nmarkers = slow: takes minutes")
    items, _ = pytester.inline_genitems(pytester.makepyfile(TESTS))
    return list(items)


def test_other_cases_are_slow(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVERY_CASE, raising=False)
    items = collected(pytester)
    mark_other_cases(items)
    quick = [item for item in items if item.get_closest_marker("slow") is None]
    assert len(items) == 12
    assert len(quick) == 3, "as many as there are pairs of k and n"
    assert frozenset().union(*map(values_of, quick)) == frozenset().union(*map(values_of, items))


def test_of_a_test_on_a_device_make_test_runs_one_case(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(EVERY_CASE, raising=False)
    pytester.makeini("[pytest]\nmarkers =\n  slow\n  ci")
    tests = TESTS.replace("engine", "device") + TESTS.replace("test_it", "test_beside")
    items, _ = pytester.inline_genitems(pytester.makepyfile(tests))
    mark_other_cases(items)
    chosen = Counter(
        item.name.partition("[")[0]
        for item in items
        if not any(item.iter_markers("slow")) and not any(item.iter_markers("ci"))
    )
    left = [item for item in items if any(item.iter_markers("ci"))]
    assert chosen == {"test_it": 1, "test_beside": 3}
    assert len(left) == 2
    assert not any(mark for item in left for mark in item.iter_markers("slow"))


def test_a_run_may_ask_for_every_case(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVERY_CASE, "1")
    items = collected(pytester)
    mark_other_cases(items)
    assert not any(item.get_closest_marker("slow") for item in items)
