"""Each limit alone ends a limited process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from app.processes.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from tests.app.engine.processes import assert_ends_with_server

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


KILLED_SERVER = """
import os, signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from app.processes.limited_process import LimitedProcess, ProcessLimits

def start():
    return LimitedProcess("tests.app.engine.greedy_process", ProcessLimits(128 << 20, 1000))

if __name__ == "__main__":
    with ThreadPoolExecutor(1) as request:
        process = request.submit(start).result()
    assert process.call(b"hold 1", 60) == b"1", "it must not end with the thread of a request"
    os.kill(process.pid, signal.SIGSTOP)
    Path("pid").write_text(str(process.pid))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells processes of it")
def test_a_frozen_process_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    """Frozen, it neither sees that its input has ended nor hears the alarm of its time limit."""
    assert_ends_with_server(KILLED_SERVER, tmp_path)
