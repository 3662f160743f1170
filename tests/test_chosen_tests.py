"""Marks say which tests of the page CI and `make test` run; files share what is slow to start."""

from __future__ import annotations

import pytest

from e2e.conftest import mark_by_command
from e2e.sharing import SLOW_TO_START, scope_of
from tests.serving import ROOT

pytestmark = pytest.mark.smoke

TESTS = """
import pytest

@pytest.mark.quick
@pytest.mark.smoke
def test_one():
    pass

@pytest.mark.quick
@pytest.mark.push
def test_another():
    pass

@pytest.mark.quick
def test_a_third():
    pass

def test_a_fourth():
    pass
"""


def test_make_test_runs_those_marked_smoke_or_push_and_ci_the_quick_ones(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  quick\n  smoke\n  push\n  page\n  ci")
    items, _ = pytester.inline_genitems(pytester.makepyfile(TESTS))
    mark_by_command(items)
    marks = {item.name: {mark.name for mark in item.iter_markers()} for item in items}
    assert marks == {
        "test_one": {"quick", "smoke"},
        "test_another": {"quick", "push"},
        "test_a_third": {"quick", "ci"},
        "test_a_fourth": {"page"},
    }


@pytest.mark.parametrize("fixture", SLOW_TO_START)
def test_several_files_share_what_is_slow_to_start(fixture: str) -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "e2e").rglob("test_*.py")]
    assert len([file for file in files if scope_of(file) == fixture]) > 1
