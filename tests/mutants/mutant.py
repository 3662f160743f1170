"""One fault that can be put into the code, and the tests that must notice it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

KEY_DIGITS = 10


class StaleMutant(Exception):
    """The text that a mutant replaces does not occur in its file as often as the mutant says."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A replacement of text in one file.

    name     of the mutant, as `--only` takes it
    breaks   one sentence: what goes wrong with it
    file     path from the root of the checkout
    old      the text that is replaced, which occurs `count` times
    nth      which of them is meant, from 0
    new      what takes its place
    tests    arguments of pytest: files or node ids
    keyword  expression for `pytest -k`; empty: all of `tests`
    second_driver
             run them on the second Vulkan driver, as `make parity` does: lanes of the first run in
             an order in which the fault cannot show
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    keyword: str = ""
    nth: int = 0
    count: int = 1
    second_driver: bool = False

    @property
    def key(self) -> str:
        """Digest of the fault and the tests that must notice it: a result is valid only for
        these."""
        said = [self.file, self.old, self.new, self.nth, self.count, self.tests, self.keyword]
        said += [self.second_driver] if self.second_driver else []
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:KEY_DIGITS]

    def applied(self, text: str) -> str:
        """Return the file's text with the fault in it; raises StaleMutant."""
        parts = text.split(self.old)
        if len(parts) - 1 != self.count:
            raise StaleMutant(
                f"{self.name}: expected its text {self.count} times in {self.file}, but it is "
                f"there {len(parts) - 1} times; give the mutant the text that stands there now"
            )
        before, after = parts[: self.nth + 1], parts[self.nth + 1 :]
        return self.old.join(before) + self.new + self.old.join(after)

    def broken(self, root: Path) -> str:
        """Return the file's text in the checkout at `root` with the fault in it; raises
        StaleMutant."""
        path = root / self.file
        if not path.is_file():
            raise StaleMutant(f"{self.name}: {self.file} is not there; name the file it moved to")
        return self.applied(path.read_text("utf-8"))
