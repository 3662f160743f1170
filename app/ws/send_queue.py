"""Send queue of one page, with backpressure: a thread that sends messages, limits on what waits."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

import msgspec
from wsproto.frame_protocol import CloseReason

from app.protocol.messages import Hello, Status, ToPage
from app.ws.frames import Frame
from app.ws.sessions import GenerationLog
from app.ws.websocket import WebSocket, WebSocketClosed
from gpu import InvalidRequest

log = logging.getLogger(__name__)

MAX_REPLIES = 1000
"""Answers that wait to be sent; a page that asks this much and does not read is cut off."""
STATS_BACKLOG = 32
"""A page that is this many messages behind gets them without statistics until it has caught up."""


class SendQueue:
    """Queue of messages to one page. A thread of its own sends them (`_write`); any thread may call
    the public methods."""

    def __init__(self, ws: WebSocket) -> None:
        self._ws = ws
        self._thread = threading.Thread(target=self._write, name="ws writer", daemon=True)
        self._wake = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self._status: tuple[Status, Hello | None] | None = None
        self._replies: deque[tuple[ToPage | Frame, Callable[[], None]]] = deque()
        # run -> [the last seq sent, the last seq that was old when the page began to follow]
        self._cursors: dict[GenerationLog, list[int]] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The page is gone: what waits is dropped, and nobody is followed any more."""
        self._closed = True
        self._wake.set()
        with self._lock:
            self._replies.clear()
            followed = list(self._cursors)
        for generation in followed:
            self._unfollow(generation)

    def join(self) -> None:
        """Wait for the writer's end, after `close` and the WebSocket's `finish`."""
        self._thread.join()

    def set_status(self, status: Status, hello: Hello | None) -> None:
        """Tell the engine's state; only the latest that waits is sent."""
        with self._lock:
            self._status = (status, hello)
        self._wake.set()

    def reply(self, message: ToPage | Frame, sent: Callable[[], None] = lambda: None) -> None:
        """Send a message, and call `sent` when that is done. Frames are encoded by the writer."""
        with self._lock:
            if self._closed:
                return
            self._replies.append((message, sent))
            too_many = len(self._replies) > MAX_REPLIES
        self._wake.set()
        if too_many:
            self._ws.abort(
                CloseReason.POLICY_VIOLATION, f"more than {MAX_REPLIES} answers wait to be read"
            )

    def follow(self, generation: GenerationLog, after: int) -> None:
        """Send the messages of a generation whose seq is greater than `after`, old ones and new."""
        if not 0 <= after <= generation.last_seq:
            raise InvalidRequest(
                f"after must be from 0 to {generation.last_seq}, the last seq of this generation, "
                f"but got {after}",
                "after",
            )
        with self._lock:
            known = generation in self._cursors
            self._cursors[generation] = [after, generation.last_seq]
        if not known:
            generation.follow(self._wake.set)
        self._wake.set()

    # ---- the writer's thread -----------------------------------------------------------------

    def _write(self) -> None:
        try:
            while not self._closed:
                self._wake.wait()
                self._wake.clear()
                while not self._closed and self._send_some():
                    pass
        except WebSocketClosed:
            pass
        except Exception:
            log.exception("a message could not be sent to a page")
            self._ws.abort(CloseReason.INTERNAL_ERROR, "the server made a mistake; see its log")

    def _send_some(self) -> bool:
        """Send what waits, at most one message of each generation; False when nothing waited."""
        with self._lock:
            state, self._status = self._status, None
            replies = [self._replies.popleft() for _ in range(len(self._replies))]
            cursors = list(self._cursors.items())
        if state is not None:
            status, hello = state
            if hello is not None:
                self._send(msgspec.json.encode(hello))
            self._send(msgspec.json.encode(status))
        for message, sent in replies:
            if isinstance(message, Frame):
                self._ws.send(message.encode())
            else:
                self._send(msgspec.json.encode(message))
            sent()
        sent_any = state is not None or bool(replies)
        for generation, cursor in cursors:
            sent_any |= self._send_next(generation, cursor)
        return sent_any

    def _send_next(self, generation: GenerationLog, cursor: list[int]) -> bool:
        seq = cursor[0] + 1
        entry = generation.entry(seq)
        if entry is None:
            return False
        behind = generation.last_seq - seq >= STATS_BACKLOG and seq > cursor[1]
        cursor[0] = seq
        self._send(entry.lean if behind else entry.full or entry.lean)
        if entry.is_last:
            self._unfollow(generation)
        return True

    def _unfollow(self, generation: GenerationLog) -> None:
        with self._lock:
            known = self._cursors.pop(generation, None) is not None
        if known:
            generation.unfollow(self._wake.set)

    def _send(self, encoded: bytes) -> None:
        self._ws.send(encoded.decode())
