"""Each limit alone ends a limited process."""

from __future__ import annotations

import sys
import time

import pytest

from app.processes.limited_process import LimitedProcess, LimitExceeded, ProcessLimits

MOST_SECONDS = 8.0
"""Time to end and reap a process, on a busy machine."""


def greedy() -> LimitedProcess:
    return LimitedProcess("tests.app.engine.greedy_process", ProcessLimits(128 << 20, 1000))


def test_the_server_ends_a_process_that_is_late() -> None:
    process = greedy()
    assert process.call(b"sleep 0", 10) == b"slept"
    begun = time.monotonic()
    with pytest.raises(LimitExceeded, match=r"takes longer than 0\.3 s"):
        process.call(b"sleep 20", 0.3)
    assert time.monotonic() - begun < MOST_SECONDS
    assert not process.alive


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory so")
def test_memory_beyond_the_limit_is_not_given() -> None:
    process = greedy()
    assert process.call(b"hold 32", 10) == b"32"
    with pytest.raises(LimitExceeded, match="needs more than 128 MiB of memory"):
        process.call(b"hold 1024", 10)
