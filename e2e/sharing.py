"""Scheduling of a parallel run: files that share something slow to start run in one process."""

from __future__ import annotations

import functools
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
SLOW_TO_START = ("bundled: Site", "small: LocalEnginePage", "moving: Playground")
"""Fixtures of a session, as tests ask for them: each compiles all shaders of the bundled model."""


class SharingScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Like `--dist loadfile`, but all files that ask for one of `SLOW_TO_START` go together."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return scope_of(file)


@functools.cache
def scope_of(file: str) -> str:
    """Return what a test file shares with others, or its own path."""
    text = (ROOT / file).read_text("utf-8")
    return next((shared for shared in SLOW_TO_START if shared in text), file)
