"""Process for work on untrusted files (chat templates, tokenizers), with limits on time, memory and
output, and without access to files, environment or secrets of the server.

It is a fresh interpreter, not a fork: it inherits no descriptors but its three pipes, no
environment variables and no locks. It ends with the server, because its input ends then; if it is
busy or frozen then, the system ends it (see `app.processes.limited_child`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from app.processes.limited_child import LAST, OUT_OF_MEMORY, REPLY_HEAD, REQUEST_HEAD

MIB = 1024 * 1024
ROOT = str(Path(__file__).resolve().parents[2])
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from app.processes.limited_child import main; main(sys.argv[2], int(sys.argv[3]))"
)
START_SECONDS = 30.0
"""Time limit of a start, which takes a second on an idle machine."""
KEPT_VARIABLES = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Environment variables that the interpreter or its libraries need to start on some systems."""
STARTER = ThreadPoolExecutor(1, "process starter")
"""Thread that starts these processes and lives as long as the server. Linux kills them when the
thread that started them ends, which must not be that of the request that first needed one."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "0"}


class LimitExceeded(Exception):
    """A request exceeded a limit, and its process has ended. The message names the limit; it is
    written to follow the word "it"."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of one process: bytes it may allocate, and bytes of one reply."""

    memory_bytes: int
    reply_bytes: int


class LimitedProcess:
    """Process that answers requests with the function `answer` of `module`, one at a time."""

    def __init__(self, module: str, limits: ProcessLimits) -> None:
        self._limits = limits
        paths = [ROOT, *(os.path.abspath(path) for path in sys.path if path)]
        command = [sys.executable, "-I", "-S", "-c", START, json.dumps(paths), module]
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._process = STARTER.submit(
            subprocess.Popen[bytes],
            [*command, str(limits.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Rust panics print stack frames
            env=kept | ONE_THREAD,
            cwd=os.path.abspath(os.sep),
            bufsize=0,
            start_new_session=True,  # Ctrl+C in the terminal must reach the server only
        ).result()
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)
        self.end = weakref.finalize(self, _end, self._process)
        """Ends the process. Also called when this object is garbage-collected."""
        self._lock = threading.Lock()
        self._n_calls = 0
        self._timed_out = False

    @classmethod
    def start(cls, module: str, limits: ProcessLimits) -> LimitedProcess:
        """Return a process that is ready for requests. Raises LimitExceeded."""
        process = cls(module, limits)
        process.call(b"", START_SECONDS)
        return process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, request: bytes, seconds: float) -> bytes:
        """Return the reply to `request`. Raises LimitExceeded after ending the process."""
        if not self.end.alive:
            raise LimitExceeded("has no running process any more")
        timer = threading.Timer(seconds, self._time_out, [self._n_calls])
        timer.daemon = True
        timer.start()
        try:
            reply = self._exchange(request, seconds)
        except (OSError, EOFError):
            self._stop_timer(timer)
            self.end()
            raise LimitExceeded(self._why_gone(seconds)) from None
        except BaseException:
            self._stop_timer(timer)
            self.end()
            raise
        self._stop_timer(timer)
        return reply

    def _stop_timer(self, timer: threading.Timer) -> None:
        timer.cancel()
        with self._lock:
            self._n_calls += 1  # a timer that has fired already then does nothing

    def _time_out(self, call: int) -> None:
        with self._lock:
            if call == self._n_calls:
                self._timed_out = True
                _kill(self._process)

    def _exchange(self, request: bytes, seconds: float) -> bytes:
        head = REQUEST_HEAD.pack(len(request), int(seconds * 1000))
        self._write(head + request)
        (n_bytes,) = REPLY_HEAD.unpack(self._read(REPLY_HEAD.size))
        last, n_bytes = n_bytes & LAST, n_bytes & ~LAST
        if n_bytes == OUT_OF_MEMORY:
            raise LimitExceeded(self._too_much_memory())
        if n_bytes > self._limits.reply_bytes:
            raise LimitExceeded(
                f"produced {n_bytes:,} bytes of output, but the limit is "
                f"{self._limits.reply_bytes:,}"
            )
        reply = self._read(n_bytes)
        if last:
            self.end()
        return reply

    def _why_gone(self, seconds: float) -> str:
        ended_by = _signal_name(self._process.wait())
        if self._timed_out or ended_by in ("SIGALRM", "SIGXCPU"):
            return f"takes longer than {round(seconds, 1):g} s"
        if ended_by == "SIGABRT":  # Rust aborts when it is out of memory
            return f"crashes its process, probably because it {self._too_much_memory()}"
        return f"crashes its process ({ended_by or self._process.returncode})"

    def _too_much_memory(self) -> str:
        return f"needs more than {self._limits.memory_bytes // MIB:,} MiB of memory"

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._input.write(left) :]

    def _read(self, n_bytes: int) -> bytes:
        """Read exactly `n_bytes` bytes. Raises EOFError."""
        found = bytearray()
        while len(found) < n_bytes:
            part = self._output.read(n_bytes - len(found))
            if not part:
                raise EOFError
            found += part
        return bytes(found)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and free its pipes and its entry in the process table."""
    _kill(process)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            cast(IO[bytes], pipe).close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and every process that it started."""
    if process.poll() is None and hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _signal_name(code: int) -> str:
    """Return the name of the signal that ended a process; "" if none did."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return ""
