"""The WebSocket: reads, validates, hands over; one writer thread per connection.

The thread that serves the route reads. Everything sent goes through the writer thread, because
simple-websocket's `send` has no lock; its own thread also writes (pongs), which is why the socket
it gets is a `LockedSocket`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from flask import Flask, request
from flask_sock import Sock
from simple_websocket import ConnectionClosed, Server
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from app.engines import EngineClient
from app.errors import body_of
from app.inbox import BadMessageError, PendingUpdates, changes_of, decode
from app.prompts import prompt_ids
from app.protocol import (
    MAX_MESSAGE_BYTES,
    Count,
    Counted,
    Error,
    FromPage,
    Generate,
    Hello,
    Resume,
    Status,
    Stop,
    ToPage,
    Update,
)
from app.security import browser_session
from app.sessions import LiveRun, Sessions
from gpu import EngineError, InvalidRequest

log = logging.getLogger(__name__)

PATH = "/ws"
MAX_CONNECTIONS = 64
MAX_UNREAD = 1000
"""Messages of a page that wait to be handled; simple-websocket's own list has no bound."""
MAX_REPLIES = 1000
"""Answers that wait to be sent; a page that asks this much and does not read is cut off."""
STATS_BACKLOG = 32
"""A page that is this many messages behind gets them without statistics until it has caught up."""
SEND_SECONDS = 20.0
"""A page that takes nothing for this long is cut off; it can come back and resume."""
TRANSPORT_MESSAGE_BYTES = 16 * MAX_MESSAGE_BYTES
"""Past this the transport closes the connection; up to it, too large is answered by an error."""
TRY_AGAIN_LATER = 1013


class LockedSocket:
    """A socket whose `send` sends all or raises, one caller at a time, within `SEND_SECONDS`."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(SEND_SECONDS)
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, data: bytes) -> int:
        with self._lock:
            self._sock.sendall(data)
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Connection:
    """One page. `read` runs on the route's thread, `_write` on a thread of its own."""

    def __init__(self, ws: Server, owner: str, engine: EngineClient, sessions: Sessions) -> None:
        self._ws = ws
        self._owner = owner
        self._engine = engine
        self._sessions = sessions
        self._wake = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self._state: tuple[Status, Hello | None] | None = None
        self._replies: deque[ToPage] = deque()
        self._updates = PendingUpdates()
        # run -> [the last seq sent, the last seq that was old when the page began to follow]
        self._cursors: dict[LiveRun, list[int]] = {}

    def serve(self) -> None:
        """Read until the page goes away."""
        writer = threading.Thread(target=self._write, name="ws writer", daemon=True)
        writer.start()
        unlisten = self._engine.listen(self._on_state)
        try:
            while True:
                raw = self._ws.receive(timeout=self._updates.seconds_left())
                self._handle(raw)
                if len(self._ws.input_buffer) > MAX_UNREAD:
                    self._hang_up()
        finally:
            unlisten()
            self._closed = True
            self._wake.set()
            with self._lock:
                followed = list(self._cursors)
            for live in followed:
                self._unfollow(live)

    # ---- from the page -----------------------------------------------------------------------

    def _handle(self, raw: str | bytes | None) -> None:
        """Carry out a message; None is only a look at the updates that wait."""
        message = None
        if raw is not None:
            try:
                message = decode(raw)
            except BadMessageError as error:
                self._reply(Error("bad_message", str(error), error.id, error.param))
                return
        for update in self._updates.due(before=message):
            self._guarded(update.id, functools.partial(self._update, update))
        if message is not None:
            self._guarded(getattr(message, "id", ""), lambda: self._dispatch(message))

    def _guarded(self, id: str, act: Callable[[], None]) -> None:
        """Answer what goes wrong with an error about generation `id`."""
        try:
            act()
        except EngineError as error:
            self._reply(Error(error.code, str(error), id, getattr(error, "param", "")))
        except ConnectionClosed:
            raise
        except Exception:
            log.exception("a message could not be handled")
            self._reply(Error("internal", "the server made a mistake; see its log", id))

    def _dispatch(self, message: FromPage) -> None:
        match message:
            case Generate():
                self._generate(message)
            case Update():
                self._updates.take(message)
            case Stop(id=id):
                self._sessions.get(self._owner, id).cancel()
            case Resume(id=id, after=after):
                self._follow(self._sessions.get(self._owner, id), after)
            case Count(request=number):
                ids = prompt_ids(self._engine.tokenizer, message.prompt, message.messages)
                self._reply(Counted(number, len(ids)))

    def _update(self, update: Update) -> None:
        live = self._sessions.get(self._owner, update.id)
        live.update(update.capture, changes_of(update))

    def _generate(self, message: Generate) -> None:
        self._engine.require_ready()
        params = message.params.validate()
        ids = prompt_ids(
            self._engine.tokenizer,
            message.prompt,
            message.messages,
            message.ids,
            continue_final=message.continue_final,
        )
        live = self._sessions.start(self._owner, message.id, ids, params, message.capture)
        self._follow(live, after=0)

    def _follow(self, live: LiveRun, after: int) -> None:
        if not 0 <= after <= live.last_seq:
            raise InvalidRequest(
                f"after must be from 0 to {live.last_seq}, the last seq of this generation, "
                f"but got {after}",
                "after",
            )
        with self._lock:
            known = live in self._cursors
            self._cursors[live] = [after, live.last_seq]
        if not known:
            live.follow(self._wake.set)
        self._wake.set()

    # ---- to the page -------------------------------------------------------------------------

    def _on_state(self, status: Status, hello: Hello | None) -> None:
        with self._lock:
            self._state = (status, hello)
        self._wake.set()

    def _reply(self, message: ToPage) -> None:
        with self._lock:
            self._replies.append(message)
            too_many = len(self._replies) > MAX_REPLIES
        self._wake.set()
        if too_many:
            self._hang_up()

    def _write(self) -> None:
        try:
            while not self._closed:
                self._wake.wait()
                self._wake.clear()
                while not self._closed and self._send_some():
                    pass
        except (ConnectionClosed, LocalProtocolError, OSError):
            pass
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        """End both directions at once: reading may wait in `recv`, writing in `send`."""
        with contextlib.suppress(OSError):
            self._ws.sock.shutdown(socket.SHUT_RDWR)

    def _send_some(self) -> bool:
        """Send what waits, at most one message of each generation; False when nothing waited."""
        with self._lock:
            state, self._state = self._state, None
            replies = [self._replies.popleft() for _ in range(len(self._replies))]
            cursors = list(self._cursors.items())
        if state is not None:
            status, hello = state
            if hello is not None:
                self._send(msgspec.json.encode(hello))
            self._send(msgspec.json.encode(status))
        for reply in replies:
            self._send(msgspec.json.encode(reply))
        sent = state is not None or bool(replies)
        for live, cursor in cursors:
            sent |= self._send_next(live, cursor)
        return sent

    def _send_next(self, live: LiveRun, cursor: list[int]) -> bool:
        seq = cursor[0] + 1
        entry = live.entry(seq)
        if entry is None:
            return False
        behind = live.last_seq - seq >= STATS_BACKLOG and seq > cursor[1]
        cursor[0] = seq
        self._send(entry.lean if behind else entry.full or entry.lean)
        if live.finished_at is not None and seq == live.last_seq:
            self._unfollow(live)
        return True

    def _unfollow(self, live: LiveRun) -> None:
        with self._lock:
            known = self._cursors.pop(live, None) is not None
        if known:
            live.unfollow(self._wake.set)

    def _send(self, encoded: bytes) -> None:
        self._ws.send(encoded.decode())


def register(app: Flask, engine: EngineClient, sessions: Sessions) -> None:
    """Add the WebSocket route."""
    app.config["SOCK_SERVER_OPTIONS"] = {
        "ping_interval": 25,
        "max_message_size": TRANSPORT_MESSAGE_BYTES,
    }
    app.register_error_handler(RemoteProtocolError, _bad_handshake)
    slots = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @app.before_request
    def prepare_socket() -> None:
        environ = request.environ
        if request.path == PATH and "werkzeug.socket" in environ:
            environ["werkzeug.socket"] = LockedSocket(environ["werkzeug.socket"])
            # Deflating costs the writer more than it saves the loopback or a LAN.
            environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)

    @Sock(app).route(PATH)  # type: ignore[untyped-decorator]
    def live(ws: Server) -> None:
        if not slots.acquire(blocking=False):
            ws.close(TRY_AGAIN_LATER, f"more than {MAX_CONNECTIONS} pages are open; close some")
            return
        try:
            Connection(ws, browser_session(), engine, sessions).serve()
        finally:
            slots.release()


def _bad_handshake(error: RemoteProtocolError) -> tuple[Any, int]:
    return body_of(f"not a WebSocket handshake: {error}", 400), 400
