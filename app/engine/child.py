"""A child process with a pipe to it: started, killed if need be, and given back whole."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.process
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from app.pipe import CLOSE_SECONDS

log = logging.getLogger(__name__)

KILL_SECONDS = 1.0
"""A process that was killed is gone within this time, unless its driver holds it in the kernel."""


class Child:
    """The process of `target(pipe, *args)`, a daemon. Raises OSError when it cannot be started."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a GPU device does not survive a fork
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=target, args=(theirs, *args), name="engine", daemon=True
        )
        self._killed_because = ""
        try:
            self._process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid

    def kill(self, reason: str) -> bool:
        """End the process by force, also one that is stopped. False when it does not end: its
        driver holds it in the kernel."""
        self._killed_because = reason
        log.error("killing the engine's process: %s", reason)
        self._process.kill()
        return self._gone(KILL_SECONDS)

    def reap(self) -> str:
        """Wait for the process, which has ended or is about to, and tell how it ended."""
        killed = bool(self._killed_because)
        gone = self._gone(KILL_SECONDS if killed else CLOSE_SECONDS)
        if not gone and not killed:
            gone = self.kill("it closed its pipe and did not end")
        if gone:
            self._process.join()
        return self._killed_because or ending(self._process.exitcode)

    def release(self) -> bool:
        """Give back what the process needed, but for the pipe. Call `reap` first. False when the
        process is still there."""
        self.pid = None
        if self._process.exitcode is None:
            log.error("process %s does not end when killed; its driver holds it", self._process.pid)
            forget(self._process)
            return False
        self._process.close()
        return True

    def _gone(self, seconds: float) -> bool:
        return bool(wait([self._process.sentinel], seconds))


def ending(exit_code: int | None) -> str:
    """How a process ended, for people."""
    if exit_code is None:
        return "closing its pipe"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


def forget(process: BaseProcess) -> None:
    """Let this process end although `process` does not: at its end Python waits for all that it
    knows of."""
    children: set[BaseProcess] = getattr(multiprocessing.process, "_children", set())
    children.discard(process)
