"""Pieces of matrices, packed on threads ahead of the one that puts them in place."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import numpy.typing as npt

WORKERS = max(1, min(4, (os.cpu_count() or 1) - 1))
"""Threads that pack; a core is left for the one that copies to the device."""
AHEAD = 4
"""Pieces that may wait to be put in place."""

Packed = npt.NDArray[Any]


class Room:
    """Memory for a piece, used again and again: what the system hands out it clears first."""

    def __init__(self) -> None:
        self._words = np.empty(0, np.uint32)
        self._numbers = np.empty(0, np.float32)

    def words(self, shape: tuple[int, int]) -> npt.NDArray[np.uint32]:
        """For what is packed; holds anything."""
        size = shape[0] * shape[1]
        if len(self._words) < size:
            self._words = np.empty(size, np.uint32)
        return self._words[:size].reshape(shape)

    def numbers(self, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
        """For what is to be packed; holds anything."""
        size = shape[0] * shape[1]
        if len(self._numbers) < size:
            self._numbers = np.empty(size, np.float32)
        return self._numbers[:size].reshape(shape)


class Ahead:
    """Packs pieces on threads, some of them ahead, and has them put in place by the caller's thread
    in the order in which they were added."""

    def __init__(self) -> None:
        self._packers = ThreadPoolExecutor(WORKERS, "pack")
        self._free = [Room() for _ in range(WORKERS + AHEAD + 1)]  # one is being put
        self._waiting: deque[tuple[Room, Future[Packed], Callable[[Packed], None]]] = deque()

    def add(self, fill: Callable[[Room], Packed], put: Callable[[Packed], None]) -> None:
        """Fill a room, later, and give what is in it to `put`, before `finish` returns. Raises what
        went wrong with pieces that were added before."""
        if not self._free:
            self._put_first()
        room = self._free.pop()
        self._waiting.append((room, self._packers.submit(fill, room), put))

    def finish(self) -> None:
        """Have all pieces put in place. Raises what went wrong with one of them."""
        while self._waiting:
            self._put_first()

    def give_up(self) -> None:
        """Forget those that are not in place."""
        while self._waiting:
            room, future, _ = self._waiting.popleft()
            if not future.cancel():
                wait([future])  # its room is still being filled
            self._free.append(room)

    def _put_first(self) -> None:
        room, future, put = self._waiting.popleft()
        try:
            put(future.result())
        except BaseException:
            self.give_up()
            raise
        finally:
            self._free.append(room)
