"""Faults in shaders and page can still be made, and tests notice each; the latter is slow:
`make mutants`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants import page, shaders
from tests.mutants.checkout import LIMIT_SECONDS, ROOT, SECOND_DRIVER, Checkout, copied_checkout
from tests.mutants.mutant import Mutant

MUTANTS = (*shaders.MUTANTS, *page.MUTANTS)
each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@pytest.fixture(scope="module")
def checkout() -> Iterator[Checkout]:
    with copied_checkout() as copied:
        yield copied


@each_mutant
def test_a_mutant_can_be_made_of_the_code_as_it_is(mutant: Mutant) -> None:
    assert mutant.broken(ROOT) != (ROOT / mutant.file).read_text("utf-8"), "it changes nothing"
    missing = [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).is_file()]
    assert not missing, "the tests that should notice it are not there"


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_SECONDS + 60)
@each_mutant
def test_a_mutant_is_noticed(mutant: Mutant, checkout: Checkout) -> None:
    if mutant.second_driver and not SECOND_DRIVER.exists():
        pytest.skip(f"{SECOND_DRIVER}, of Debian's chromium package, is not there")
    how = {"second_driver": mutant.second_driver}
    with checkout.with_mutant(mutant):
        assert not checkout.all_pass(mutant.chosen_tests, **how), (
            f"no test noticed that {mutant.breaks}"
        )
    assert checkout.all_pass(mutant.chosen_tests, **how), "they fail without the mutant too"
