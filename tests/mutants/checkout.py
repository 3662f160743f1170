"""Copy of the checkout's tracked files, in which a mutant is applied and tests are run."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.quick_cases import EVERY_CASE

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 240.0
"""Limit for all tests of a mutant together. Only a mutant that makes them hang comes near it."""
TEST_SECONDS = 60
"""Limit for one test. The longest that mutants name takes a third of it."""
SECOND_DRIVER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""The driver of Debian's chromium package, as in the Makefile."""
PASSED, SOME_FAILED = 0, 1  # exit statuses of pytest


class Checkout:
    """A folder with a copy of every tracked file, as it is in the working tree now."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        # Python matches bytecode and source by size and whole seconds: each version gets its own.
        self._seconds = itertools.count(int(time.time()) - 100_000)

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant, and revert it at the end. Raises StaleMutant."""
        path = self.root / mutant.file
        original = path.read_bytes()
        self._write(path, mutant.broken(self.root).encode())
        try:
            yield
        finally:
            self._write(path, original)

    def _write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        second = next(self._seconds)
        os.utime(path, (second, second))

    def all_pass(self, tests: Sequence[str], *, second_driver: bool = False) -> bool:
        """Run tests, each with all of its cases, up to the first that fails; False too if they are
        stopped at the limit. Raises RuntimeError if none ran."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line"]
        if "-k" not in tests:  # a keyword may name a slow test
            command += ["-m", "not slow"]
        process = subprocess.Popen(
            [*command, f"--timeout={TEST_SECONDS}", "-p", "no:cacheprovider", *tests],
            cwd=self.root,
            env=self._environment(second_driver),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            _end_with_children(process)
            return False
        if process.returncode not in (PASSED, SOME_FAILED):
            raise RuntimeError(f"pytest ended with {process.returncode}:\n{output}")
        return process.returncode == PASSED

    def _environment(self, second_driver: bool) -> dict[str, str]:
        """Return variables with which the copy is imported instead of the original checkout, and
        nothing is cached between mutants."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        if second_driver:
            kept |= dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), str(SECOND_DRIVER))
        return {
            **kept,
            "PYTHONPATH": str(self.root),
            "TOKENGLASS_CACHE": os.devnull,
            EVERY_CASE: "1",
        }


def _end_with_children(process: subprocess.Popen[str]) -> None:
    """Kill a run with the servers and engines it started."""
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@contextmanager
def copied_checkout() -> Iterator[Checkout]:
    """Yield a copy that is removed at the end."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory(
        prefix="tokenglass-mutants-", ignore_cleanup_errors=True
    ) as at:
        folder = Path(at) / "checkout"
        for path in listed.decode().split("\0"):
            if path and (ROOT / path).is_file():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, folder / path)
        yield Checkout(folder)
