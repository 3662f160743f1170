"""The mutation check matches the code: every fault can still be made, and every one was noticed.

The check itself is slow: `make mutants`.
"""

from __future__ import annotations

import pytest

from tests.mutants.cases import ROOMS
from tests.mutants.checkout import ROOT
from tests.mutants.mutant import Mutant, StaleMutant
from tests.mutants.report import read_report, report

MUTANTS = [mutant for room in ROOMS.values() for mutant in room]
REPORT = ROOT / "docs" / "mutants.md"
AGAIN = "run `make mutants`, which runs those without a result and writes docs/mutants.md"


def test_there_are_enough_mutants_with_different_names() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.key for mutant in MUTANTS}) == len(MUTANTS)
    kinds = {mutant.file.partition("/")[0] for mutant in MUTANTS}
    assert {"gpu", "app", "static"} <= kinds
    assert sum(mutant.file.endswith(".wgsl") for mutant in MUTANTS) >= 30


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_made_of_the_code_as_it_is(mutant: Mutant) -> None:
    broken = mutant.broken(ROOT)
    assert broken != (ROOT / mutant.file).read_text("utf-8"), "it changes nothing"
    if mutant.file.endswith(".py"):
        compile(broken, mutant.file, "exec")
    missing = [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).is_file()]
    assert not missing, "the tests that should notice it are not there"


def test_every_mutant_of_the_report_was_noticed_by_a_test() -> None:
    verdicts = read_report(REPORT)
    unknown = [mutant.name for mutant in MUTANTS if mutant.key not in verdicts]
    assert not unknown, f"docs/mutants.md has no result of them; {AGAIN}"
    survivors = [mutant.name for mutant in MUTANTS if verdicts[mutant.key].survived]
    assert not survivors, "no test noticed them: write one that does"
    assert REPORT.read_text("utf-8") == report(ROOMS, verdicts), AGAIN


def test_the_tests_that_noticed_are_still_there() -> None:
    for verdict in read_report(REPORT).values():
        path, _, name = verdict.noticed_by.partition("::")
        if not name:  # a run that hung
            continue
        function = f"def {name.partition('[')[0]}("
        assert function in (ROOT / path).read_text("utf-8"), f"{verdict.noticed_by}: {AGAIN}"


def test_make_test_runs_the_tests_of_the_page_that_noticed() -> None:
    quick = set((ROOT / "e2e" / "quick.txt").read_text("utf-8").split())
    noticed = {verdict.noticed_by for verdict in read_report(REPORT).values()}
    tests = {test.partition("[")[0] for test in noticed if test.startswith("e2e/")}
    missing = {test for test in tests if not quick & {test, test.partition("::")[0]}}
    assert tests
    assert not missing, "add them to e2e/quick.txt"


def test_a_mutant_replaces_only_the_occurrence_that_it_names() -> None:
    mutant = Mutant("m", "b", "f.py", "a + b", "a - b", ("t.py",), nth=1, count=3)
    assert mutant.applied("a + b; a + b; a + b") == "a + b; a - b; a + b"
    with pytest.raises(StaleMutant, match=r"expected its text 3 times in f\.py, but it is there 2"):
        mutant.applied("a + b; a + b")
