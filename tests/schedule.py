"""Order of the test files in a parallel run: the slowest first, so that none starts last.

`tests/seconds.json` holds the seconds of every file that takes long; `--write-seconds` measures
them anew. Files that are not in it count by their number of tests.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

SECONDS = Path(__file__).with_name("seconds.json")
SECONDS_PER_TEST = 0.2
LEAST_SECONDS = 3.0


def slowest_file_first(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Sort `items` in place by their file's seconds, descending; inside a file nothing moves."""
    n_tests = Counter(file_of(item.nodeid) for item in items)

    def rank(item: pytest.Item) -> tuple[float, str]:
        file = file_of(item.nodeid)
        return -seconds.get(file, SECONDS_PER_TEST * n_tests[file]), file

    items.sort(key=rank)


def file_of(nodeid: str) -> str:
    """Return the path of a test's file, relative to the root."""
    return nodeid.partition("::")[0]


def read_seconds() -> dict[str, float]:
    """Return the measured seconds by file."""
    return dict(json.loads(SECONDS.read_text("utf-8")))


class SecondsRecorder:
    """Plugin that adds up what the tests of each file took, and writes `SECONDS` at the end."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        slow = {file: round(s) for file, s in self._seconds.items() if s >= LEAST_SECONDS}
        SECONDS.write_text(json.dumps(dict(sorted(slow.items())), indent=1) + "\n", "utf-8")
