"""Types of arguments of the benchmarks' command lines: what cannot be measured is refused before
minutes are spent on it."""

from __future__ import annotations

import argparse
from pathlib import Path


def count(text: str) -> int:
    """Return a number of at least 1."""
    return _at_least(1, text)


def count_of_two(text: str) -> int:
    """Return a number of at least 2, of things that have a time between them."""
    return _at_least(2, text)


def counts(text: str) -> list[int]:
    """Return the numbers of a list such as 128,1024."""
    return [count(part) for part in text.split(",")]


def file_to_append(text: str) -> Path:
    """Return the path of a file in a folder that exists."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} should be a file in a folder that exists")
    return path


def _at_least(least: int, text: str) -> int:
    if not (text.isdecimal() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"expected a number of at least {least}, but got {text!r}")
    return int(text)
