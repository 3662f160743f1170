"""Copy of the checkout's tracked files, in which mutants are applied and reverted."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]


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


def tracked_files(root: Path = ROOT) -> list[str]:
    """Return the paths that git tracks and the working tree has."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    return [path for path in listed.decode().split("\0") if path and (root / path).is_file()]


@contextmanager
def copied_checkout() -> Iterator[Checkout]:
    """Yield a copy that is removed at the end."""
    with tempfile.TemporaryDirectory(
        prefix="tokenglass-mutants-", ignore_cleanup_errors=True
    ) as at:
        folder = Path(at) / "checkout"
        for path in tracked_files():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, folder / path)
        yield Checkout(folder)
