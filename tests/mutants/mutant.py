"""One fault that can be put into the code, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class StaleMutant(Exception):
    """The text that a mutant replaces is not in its file, or not only once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A replacement of text in one file.

    name     of the mutant
    breaks   one sentence: what goes wrong with it
    file     path from the root of the checkout
    old      the text that is replaced, which occurs once
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
    second_driver: bool = False

    @property
    def chosen_tests(self) -> tuple[str, ...]:
        """Arguments of pytest."""
        return (*self.tests, *(("-k", self.keyword) if self.keyword else ()))

    def broken(self, root: Path) -> str:
        """Return the file's text in the checkout at `root` with the fault in it; raises
        StaleMutant."""
        path = root / self.file
        if not path.is_file():
            raise StaleMutant(f"{self.name}: {self.file} is not there; name the file it moved to")
        text = path.read_text("utf-8")
        if (n := text.count(self.old)) != 1:
            raise StaleMutant(
                f"{self.name}: expected its text once in {self.file}, but it is there {n} times; "
                "give the mutant the text that stands there now"
            )
        return text.replace(self.old, self.new)
