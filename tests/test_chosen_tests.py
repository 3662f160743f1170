"""The lists of tests that the Makefile gives to pytest name tests that are there."""

from __future__ import annotations

import pytest

from e2e.sharing import SLOW_TO_START, scope_of
from tests.serving import ROOT

LISTS = ("tests/smoke.txt", "e2e/quick.txt")


@pytest.mark.parametrize("name", LISTS)
def test_a_list_names_tests_that_are_there(name: str) -> None:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    missing = [line for line in lines if not is_there(line)]
    assert lines
    assert not missing, f"in {name}: a file or a test was renamed or is gone"
    assert lines == list(dict.fromkeys(lines)), f"{name} has a line twice"


def is_there(line: str) -> bool:
    """Say whether a line of such a list names a file or a test that is there."""
    path, _, function = line.partition("::")
    file = ROOT / path
    return file.is_file() and (not function or f"def {function}(" in file.read_text("utf-8"))


def test_a_test_that_is_gone_is_noticed() -> None:
    here = "tests/test_chosen_tests.py"
    assert is_there(f"{here}::test_a_test_that_is_gone_is_noticed")
    assert not is_there(f"{here}::test_a_test_that_is")
    assert not is_there("tests/test_chosen.py")


@pytest.mark.parametrize("fixture", SLOW_TO_START)
def test_several_files_share_what_is_slow_to_start(fixture: str) -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "e2e").rglob("test_*.py")]
    assert len([file for file in files if scope_of(file) == fixture]) > 1
