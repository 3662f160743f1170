"""Marks say which tests of the page `make test` runs, and files share what is slow to start."""

from __future__ import annotations

import pytest

from e2e.conftest import mark_others_page
from e2e.sharing import SLOW_TO_START, scope_of
from tests.serving import ROOT

pytestmark = pytest.mark.smoke

TESTS = """
import pytest

@pytest.mark.quick
def test_one():
    pass

def test_another():
    pass
"""


def test_make_test_leaves_out_what_is_not_marked_quick(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  quick\n  page")
    items, _ = pytester.inline_genitems(pytester.makepyfile(TESTS))
    mark_others_page(items)
    assert {item.name: item.get_closest_marker("page") is None for item in items} == {
        "test_one": True,
        "test_another": False,
    }


@pytest.mark.parametrize("fixture", SLOW_TO_START)
def test_several_files_share_what_is_slow_to_start(fixture: str) -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "e2e").rglob("test_*.py")]
    assert len([file for file in files if scope_of(file) == fixture]) > 1
