"""Runs of pytest in a copy of the checkout, and their verdicts on mutants."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.checkout import Checkout
from tests.mutants.mutant import Mutant
from tests.quick_cases import EVERY_CASE

LIMIT_SECONDS = 240.0
"""Limit for all tests of a mutant together."""
TEST_SECONDS = 60
"""Limit for one test. The longest that mutants name takes a third of it."""
SECOND_DRIVER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""The driver of Debian's chromium package, as in the Makefile."""
PASSED, FAILED = 0, 1  # exit statuses of pytest
FAULT = re.compile(r"^(?:FAILED|ERROR) ((?:tests|e2e)/.+?)(?: - .*)?$", re.MULTILINE)
TIMED_OUT = re.compile(r"^FAILED .* - Failed: Timeout ", re.MULTILINE)  # of pytest-timeout
SURVIVED = "no test"
UNENDING = "all of them together"


class UnsoundRun(Exception):
    """A run without a verdict: no test was found, or one fails without the mutant too."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one mutant.

    The test that noticed it (`SURVIVED`: none), and the seconds of testing. `hangs`: the run was
    stopped at its time limit. `UNENDING` stands for the tests if pytest itself was stopped.
    """

    noticed_by: str
    seconds: float
    hangs: bool = False

    @property
    def survived(self) -> bool:
        return self.noticed_by == SURVIVED


@dataclass(frozen=True, slots=True)
class Run:
    """Exit status of pytest (None: stopped at the limit), its output and its duration."""

    status: int | None
    output: str
    seconds: float

    @property
    def failed_test(self) -> str:
        """Node id of the first failed test."""
        found = FAULT.search(self.output)
        return found.group(1) if found else ""


class Jury:
    """Tests of one copy of the checkout. Remembers which tests pass there without a mutant."""

    def __init__(self, checkout: Checkout, limit: float = LIMIT_SECONDS) -> None:
        self._checkout = checkout
        self._limit = limit
        self._sound: set[tuple[str | bool, ...]] = set()

    def judge(self, mutant: Mutant) -> Verdict:
        """Run a mutant's tests with it. The test that fails is then run without it and must pass.
        Raises UnsoundRun and StaleMutant."""
        if mutant.second_driver and not SECOND_DRIVER.exists():
            raise UnsoundRun(f"{mutant.name}: needs {SECOND_DRIVER}, of Debian's chromium package")
        chosen = (*mutant.tests, *(("-k", mutant.keyword) if mutant.keyword else ()))
        with self._checkout.with_mutant(mutant):
            run = self._pytest(chosen, mutant.second_driver)
        if run.status == PASSED:
            return Verdict(SURVIVED, run.seconds)
        if run.status is None:
            self._expect_pass(mutant, chosen)
            return Verdict(UNENDING, run.seconds, hangs=True)
        if run.status != FAILED or not run.failed_test:
            raise UnsoundRun(f"{mutant.name}: pytest ended with {run.status}:\n{run.output}")
        self._expect_pass(mutant, (run.failed_test,))
        test = run.failed_test.partition("[")[0]  # whatever its parameters are
        return Verdict(test, run.seconds, bool(TIMED_OUT.search(run.output)))

    def _expect_pass(self, mutant: Mutant, chosen: tuple[str, ...]) -> None:
        if (*chosen, mutant.second_driver) in self._sound:
            return
        run = self._pytest(chosen, mutant.second_driver)
        if run.status != PASSED:
            raise UnsoundRun(
                f"{mutant.name}: {' '.join(chosen)} fails without the mutant too:\n{run.output}"
            )
        self._sound.add((*chosen, mutant.second_driver))

    def _pytest(self, chosen: Sequence[str], second_driver: bool) -> Run:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-m", "not slow"]
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, f"--timeout={TEST_SECONDS}", "-p", "no:cacheprovider", *chosen],
            cwd=self._checkout.root,
            env=self._environment(second_driver),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=self._limit)
        except subprocess.TimeoutExpired:
            _end_with_children(process)
            return Run(None, "", time.monotonic() - began)
        return Run(process.returncode, output, time.monotonic() - began)

    def _environment(self, second_driver: bool) -> dict[str, str]:
        """Return variables with which the copy is imported instead of the original checkout,
        nothing is cached between mutants, and a test runs all of its cases."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        if second_driver:
            kept |= dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), str(SECOND_DRIVER))
        root = str(self._checkout.root)
        return {**kept, "PYTHONPATH": root, "TOKENGLASS_CACHE": os.devnull, EVERY_CASE: "1"}


def _end_with_children(process: subprocess.Popen[str]) -> None:
    """Kill a run with the servers and engines it started."""
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
