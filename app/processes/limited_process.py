"""A process for work on files that are somebody else's (a chat template, a tokenizer): with limits
of time, memory and output, and without files, environment or secrets of the server.

It is a fresh interpreter, not a fork: it inherits no descriptor but its three pipes, no variable of
the environment, no lock. It ends when the server does, however that ends, since its input ends
then; one that is at work then is ended by the system (see `app.limited_child`).
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import app
from app.limited_child import LAST, OUT_OF_MEMORY, REPLY_HEAD, REQUEST_HEAD

MIB = 1024 * 1024
ROOT = str(Path(app.__file__).resolve().parent.parent)
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from app.limited_child import main; main(sys.argv[2], int(sys.argv[3]))"
)
KEPT_VARIABLES = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Without which an interpreter, or a library of it, cannot start on some systems."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "0"}


class OverLimit(Exception):
    """A request could not be answered within the limits, and its process is gone. The message
    says which limit, for people, after "it"."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one process: memory it may allocate, and bytes of one reply."""

    memory_bytes: int
    reply_bytes: int


class LimitedProcess:
    """A process that answers requests with the function `answer` of `module`, one at a time."""

    def __init__(self, module: str, limits: Limits) -> None:
        self._limits = limits
        paths = [ROOT, *(os.path.abspath(path) for path in sys.path if path)]
        command = [sys.executable, "-I", "-S", "-c", START, json.dumps(paths), module]
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            [*command, str(limits.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where a panic prints its frames
            env=kept | ONE_THREAD,
            cwd=os.path.abspath(os.sep),
            bufsize=0,
            start_new_session=True,  # Ctrl+C in a terminal is for the server
        )
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)
        self.end = weakref.finalize(self, _end, self._process)
        """Ends the process. Called when nobody uses it any more, too."""
        self._lock = threading.Lock()
        self._n_calls = 0
        self._timed_out = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, request: bytes, seconds: float) -> bytes:
        """The answer to `request`. Raises OverLimit, after which the process is gone."""
        if not self.end.alive:
            raise OverLimit("has ended its process")
        late = threading.Timer(seconds, self._time_out, [self._n_calls])
        late.daemon = True
        late.start()
        try:
            reply = self._exchange(request, seconds)
        except (OSError, EOFError):
            self._done(late)
            self.end()
            raise OverLimit(self._why_gone(seconds)) from None
        except BaseException:
            self._done(late)
            self.end()
            raise
        self._done(late)
        return reply

    def _done(self, late: threading.Timer) -> None:
        """From now on the time of this call is of no interest."""
        late.cancel()
        with self._lock:
            self._n_calls += 1

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
            raise OverLimit(self._too_much_memory())
        if n_bytes > self._limits.reply_bytes:
            raise OverLimit(
                f"made {n_bytes:,} bytes, but {self._limits.reply_bytes:,} are the most"
            )
        reply = self._read(n_bytes)
        if last:
            self.end()
        return reply

    def _why_gone(self, seconds: float) -> str:
        ended_by = _signal_name(self._process.wait())
        if self._timed_out or ended_by in ("SIGALRM", "SIGXCPU"):
            return f"takes longer than {round(seconds, 1):g} s"
        if ended_by == "SIGABRT":  # as Rust ends a process
            return f"ends its process, perhaps because it {self._too_much_memory()}"
        return f"ends its process ({ended_by or self._process.returncode})"

    def _too_much_memory(self) -> str:
        return f"needs more than {self._limits.memory_bytes // MIB:,} MiB of memory"

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._input.write(left) :]

    def _read(self, n_bytes: int) -> bytes:
        """Exactly so many bytes. Raises EOFError."""
        found = bytearray()
        while len(found) < n_bytes:
            part = self._output.read(n_bytes - len(found))
            if not part:
                raise EOFError
            found += part
        return bytes(found)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and forget it: no pipe and no zombie stays."""
    _kill(process)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            cast(IO[bytes], pipe).close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it may have started."""
    if process.poll() is None and hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _signal_name(code: int) -> str:
    """Name of the signal that ended a process; "" if none did."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return ""
