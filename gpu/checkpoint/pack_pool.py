"""Thread pool that packs chunks of matrices ahead of the thread that uploads them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import numpy.typing as npt

WORKERS = min(4, max(1, (os.cpu_count() or 1) - 1))
"""Packing threads; one core is left for the thread that copies to the device. More than four are no
faster, as each call of NumPy takes the interpreter's lock again."""
MAX_WAITING = 4 - WORKERS
"""Packed chunks that may wait to be written: with those that are being packed, and the one that is
being written, there are five in memory."""

Packed = npt.NDArray[Any]


class PackBuffer:
    """Memory for one chunk, reused: the system clears fresh memory first, which takes time."""

    def __init__(self) -> None:
        self._words = np.empty(0, np.uint32)
        self._numbers = np.empty(0, np.float32)

    def words(self, shape: tuple[int, int]) -> npt.NDArray[np.uint32]:
        """Return memory for packed words; its contents are undefined."""
        size = shape[0] * shape[1]
        if len(self._words) < size:
            self._words = np.empty(size, np.uint32)
        return self._words[:size].reshape(shape)

    def numbers(self, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
        """Return memory for the numbers to pack; its contents are undefined."""
        size = shape[0] * shape[1]
        if len(self._numbers) < size:
            self._numbers = np.empty(size, np.float32)
        return self._numbers[:size].reshape(shape)


class PackPool:
    """Packs chunks on threads ahead of time. The caller's thread writes them in the order in which
    they were added."""

    def __init__(self) -> None:
        self._packers = ThreadPoolExecutor(WORKERS, "pack")
        # One more than can be packed and waiting: its chunk is being written.
        self._free = [PackBuffer() for _ in range(WORKERS + MAX_WAITING + 1)]
        self._waiting: deque[tuple[PackBuffer, Future[Packed], Callable[[Packed], None]]] = deque()

    def add(self, fill: Callable[[PackBuffer], Packed], write: Callable[[Packed], None]) -> None:
        """Schedule `fill` on a thread; its result goes to `write` before `finish` returns.

        Raises the error of a chunk that was added earlier.
        """
        if not self._free:
            self._write_first()
        buffer = self._free.pop()
        self._waiting.append((buffer, self._packers.submit(fill, buffer), write))

    def finish(self) -> None:
        """Write all pending chunks. Raises the error of the first that failed."""
        while self._waiting:
            self._write_first()

    def cancel(self) -> None:
        """Drop all chunks that are not yet written."""
        while self._waiting:
            buffer, future, _ = self._waiting.popleft()
            if not future.cancel():
                wait([future])  # its buffer is still being filled
            self._free.append(buffer)

    def _write_first(self) -> None:
        buffer, future, write = self._waiting.popleft()
        try:
            write(future.result())
        except BaseException:
            self.cancel()
            raise
        finally:
            self._free.append(buffer)
