"""Child process with a pipe, of the engine or of a training: start, kill, wait, and free its
resources."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.process
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from app.engine.pipe import CLOSE_SECONDS

log = logging.getLogger(__name__)

KILL_SECONDS = 1.0
"""A killed process ends within this time, unless a GPU driver keeps it in the kernel."""


class Pipe(Protocol):
    """Two-way connection that keeps messages whole. An end that is gone raises EOFError or
    OSError."""

    def send_bytes(self, data: bytes, /) -> None: ...
    def recv_bytes(self) -> bytes: ...
    def close(self) -> None: ...


class EngineProcess(Protocol):
    """Process of an engine as `app.engine.handle.EngineHandle` uses it; `Child` is one."""

    pid: int | None

    @property
    def pipe(self) -> Pipe: ...
    def kill(self, reason: str) -> bool: ...
    def wait_exit(self) -> str: ...
    def release(self) -> bool: ...


class Child:
    """Daemon process that runs `target(pipe, *args)`. Raises OSError if it cannot be started."""

    def __init__(self, target: Callable[..., None], *args: Any, name: str = "engine") -> None:
        context = multiprocessing.get_context("spawn")  # a GPU device does not survive a fork
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *args), name=name, daemon=True)
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
        """Kill the process. Return False if it does not end: a driver keeps it in the kernel."""
        self._killed_because = reason
        self._process.kill()
        return self._gone(KILL_SECONDS)

    def wait_exit(self) -> str:
        """Wait for a process that has ended or is about to; return how it ended."""
        killed = bool(self._killed_because)
        gone = self._gone(KILL_SECONDS if killed else CLOSE_SECONDS)
        if not gone and not killed:
            log.error("killing the process %s: it closed its pipe but did not end", self.pid)
            gone = self.kill("it closed its pipe but did not end")
        if gone:
            self._process.join()
        return self._killed_because or ending(self._process.exitcode)

    def release(self) -> bool:
        """Free the resources of the process except its pipe; call `wait_exit` first.

        Return False if the process is still running.
        """
        self.pid = None
        if self._process.exitcode is None:
            log.error(
                "process %s was killed but does not end; a driver keeps it in the kernel",
                self._process.pid,
            )
            forget(self._process)
            return False
        self._process.close()
        return True

    def _gone(self, seconds: float) -> bool:
        return bool(wait([self._process.sentinel], seconds))


def ending(exit_code: int | None) -> str:
    """Describe how a process ended."""
    if exit_code is None:
        return "closing its pipe"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


def forget(process: BaseProcess) -> None:
    """Remove `process` from the children that Python waits for at exit."""
    children: set[BaseProcess] = getattr(multiprocessing.process, "_children", set())
    children.discard(process)
