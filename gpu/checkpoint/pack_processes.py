"""Processes that quantise chunks for the threads of a `PackPool`.

Quantising is hundreds of short NumPy calls, and each takes the interpreter's lock again: more than
three threads of one interpreter wait for one another. Rows go to a process and packed words come
back through pipes, at a tenth of the time that packing them takes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import IO, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.checkpoint.pack_pool import WORKERS
from gpu.checkpoint.packing import pack
from gpu.errors import ModelError

MOST = WORKERS if WORKERS > 3 else 0
"""Processes, one for each packing thread; none where threads scale as well."""
START_WEIGHTS = 1 << 26
"""Weights that are packed before processes are started: about two seconds of one core. Starting
them takes half a second of each core."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
COMMAND = "from gpu.checkpoint.pack_processes import serve; serve()"


class Chunk(msgspec.Struct, frozen=True):
    """Head of a request, as a line of JSON; rows follow, as float32 (n, k)."""

    dtype: str
    name: str
    n: int
    k: int


class Outcome(msgspec.Struct, frozen=True):
    """Head of a reply, as a line of JSON: "", and packed words follow, or a ModelError's words."""

    error: str


class PackProcesses:
    """Quantises rows, the first of them on the caller's thread and later ones in processes.

    most           processes that may run
    start_weights  weights that are packed before the first is started
    """

    def __init__(self, most: int | None = None, start_weights: int | None = None) -> None:
        self._most = MOST if most is None else most
        self._until_start = START_WEIGHTS if start_weights is None else start_weights
        self._start_weights = self._until_start
        self._lock = threading.Lock()
        self._idle: list[_PackProcess] = []
        self._n_started = 0

    def pack(
        self, dtype: str, rows: npt.NDArray[Any], name: str, out: npt.NDArray[np.uint32]
    ) -> None:
        """Pack `rows` into `out` as `gpu.checkpoint.packing.pack` does. Any number of threads may
        call it. Raises ModelError for weights that the format cannot hold."""
        process = self._take(rows.size)
        if process is not None:
            try:
                error = process.pack(Chunk(dtype, name, *rows.shape), rows, out)
            except (OSError, EOFError, msgspec.DecodeError):  # it was killed
                process.end()
            else:
                self._give_back(process)
                if error:
                    raise ModelError(error)
                return
        pack(dtype, rows, name, out)

    def close(self) -> None:
        """End the processes. The next ones start after as many weights again."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._n_started, self._until_start = 0, self._start_weights
        for process in idle:
            process.end()

    def _take(self, n_weights: int) -> _PackProcess | None:
        """Return a process that has no work, or None if there is none and none may start."""
        with self._lock:
            self._until_start -= n_weights
            if self._until_start >= 0:
                return None
            if self._idle:
                return self._idle.pop()
            if self._n_started >= self._most:
                return None
            self._n_started += 1
        try:
            return _PackProcess()
        except OSError:  # no more processes, or no interpreter to start
            return None

    def _give_back(self, process: _PackProcess) -> None:
        with self._lock:
            self._idle.append(process)


class _PackProcess:
    """One process, and the pipes to it."""

    def __init__(self) -> None:
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": paths},
            start_new_session=True,  # Ctrl+C in the terminal must reach the parent only
        )
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)

    def pack(self, chunk: Chunk, rows: npt.NDArray[Any], out: npt.NDArray[np.uint32]) -> str:
        """Fill `out` and return "", or return why these rows cannot be packed. Raises OSError or
        EOFError if the process has ended."""
        self._input.write(msgspec.json.encode(chunk) + b"\n")
        self._input.write(_bytes(np.ascontiguousarray(rows, np.float32)))
        self._input.flush()
        outcome = msgspec.json.decode(self._output.readline(), type=Outcome)
        if not outcome.error:
            _fill(self._output, out)
        return outcome.error

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):  # what was left to write has no reader
                pipe.close()


def serve() -> None:
    """Pack the chunks that come through standard input until it ends."""
    while line := sys.stdin.buffer.readline():
        chunk = msgspec.json.decode(line, type=Chunk)
        rows = np.empty((chunk.n, chunk.k), np.float32)
        _fill(sys.stdin.buffer, rows)
        try:
            packed, error = pack(chunk.dtype, rows, chunk.name), ""
        except ModelError as refusal:
            packed, error = np.empty(0, np.uint32), str(refusal)
        sys.stdout.buffer.write(msgspec.json.encode(Outcome(error)) + b"\n")
        sys.stdout.buffer.write(_bytes(packed))
        sys.stdout.buffer.flush()


def _fill(pipe: IO[bytes], array: npt.NDArray[Any]) -> None:
    """Read an array. Raises EOFError if the pipe ends before it."""
    view = _bytes(array)
    while view:
        n = pipe.readinto(view)  # type: ignore[attr-defined]
        if not n:
            raise EOFError
        view = view[n:]


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data
