"""WebSockets: everything around flask-sock and simple-websocket that needs more than their face.

flask-sock declares the route (`app.live`), simple-websocket 1.1 makes the handshake, and from there
on this module drives wsproto by itself, on the route's own thread. Reasons:

- simple-websocket's thread says that something came before it says that the line has ended
  (`Base._handle_events`, a message that is too large): a reader that wakes between the two waits
  for ever. Two threads, a descriptor and a slot were lost each time.
- It wakes the reader before it sends the close frame (a bad opcode, bad UTF-8), so that the end of
  the request overtakes the frame; and it closes the socket while others may send on it.
- Its `send` has no lock, and its list of unread messages no bound: here a page that sends faster
  than it is served waits, as TCP lets it.

What is done around the packages, each where it is needed:

- `_NoThread` is simple-websocket's thread, and is never started.
- `_Handshake` is the socket it is given: once that has sent, no HTTP may follow.
- `_Answered` takes the place of the empty page that flask-sock answers with, which a browser would
  take for a frame. werkzeug lets go of a lost connection without a word.
- The header that offers deflate is hidden: it costs the writer more than it saves on a LAN.
- Requests that wsproto would take amiss are refused first: with a body, or with bytes that are not
  ASCII in what it reads of the handshake.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections import deque
from typing import Any

from flask import Flask, Response, g, request
from simple_websocket import Server
from werkzeug.exceptions import BadRequest
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from app.errors import body_of
from app.request_reader import RequestStream
from app.sockets import READ_BYTES, hang_up, wait_readable

PING_SECONDS = 25.0
"""A page that is silent for this long is asked whether it is there; after as long again it is
gone."""
SEND_SECONDS = 20.0
"""A page that does not take `SEND_BYTES` within this time is cut off; it can come back."""
SEND_BYTES = 1024 * 1024
FAREWELL_SECONDS = 2.0
"""For the message that is being sent, and for the close frame after it."""
LOOK_SECONDS = 1.0
"""How often a reader looks whether another thread has ended the WebSocket."""


Note = Ping | Pong | CloseConnection


class WebSocketClosed(Exception):
    """This WebSocket has ended: nothing more comes, and nothing more can be sent."""


class WebSocket:
    """Server's side of one WebSocket. One thread calls `receive` and at last `finish`; every thread
    may `send` and `close`.

    Whoever holds `_sending` sends. What must be sent besides messages (a pong, a ping, the close
    frame) is left as a note; who leaves one sends it, unless somebody else is sending, who then
    does so next. So a reader never waits for a page that does not read.
    """

    def __init__(self, server: Server, most_bytes: int) -> None:
        self._server = server
        self._sock: socket.socket = server.sock.sock
        self._sock.settimeout(SEND_SECONDS)
        self._protocol = server.ws
        self._most_bytes = most_bytes
        self._sending = threading.Lock()
        self._notes: dict[type[Note], Note] = {}
        self._closing = False  # a close frame was noted
        self._over = False  # it was sent, or nothing can be sent any more
        self._cut_off = False
        self._messages: deque[str | bytes] = deque()
        self._partial = bytearray()
        self._heard = True  # since the last ping
        self._next_ping = time.monotonic() + PING_SECONDS
        stream = server.environ["wsgi.input"]
        if isinstance(stream, RequestStream):  # frames that came in one packet with the handshake
            self._feed(stream.read_ahead())

    # ---- reading: the route's thread -------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> str | bytes | None:
        """The next message, or None after `timeout` seconds. Raises `WebSocketClosed`."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._cut_off:
            if self._messages:
                return self._messages.popleft()
            if self._closing or self._over:
                break
            now = time.monotonic()
            if now >= self._next_ping:
                self._ask()
            if wait_readable(self._sock, min(LOOK_SECONDS, (end or math.inf) - now)):
                self._read()
            if end is not None and not self._messages and time.monotonic() >= end:
                return None
        raise WebSocketClosed

    def _read(self) -> None:
        self._heard = True
        self._next_ping = time.monotonic() + PING_SECONDS
        try:
            data = self._sock.recv(READ_BYTES)
        except OSError:
            self._break()
            return
        if data:
            self._feed(data)
        else:
            self.close(CloseReason.PROTOCOL_ERROR, "the line ended without a close frame")

    def _feed(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events():
            match event:
                case TextMessage() | BytesMessage():
                    self._take(event)
                case Ping():
                    self._note(event.response())
                case CloseConnection():  # the page's own, or wsproto's for what it cannot read
                    self.close(event.code, event.reason or "")
            if self._closing:
                break

    def _take(self, part: TextMessage | BytesMessage) -> None:
        data = part.data.encode() if isinstance(part, TextMessage) else part.data
        if len(self._partial) + len(data) > self._most_bytes:
            self._partial.clear()
            self.close(
                CloseReason.MESSAGE_TOO_BIG, f"a message has {self._most_bytes} bytes at most"
            )
            return
        self._partial += data
        if part.message_finished:
            whole = bytes(self._partial)
            self._partial.clear()
            self._messages.append(whole.decode() if isinstance(part, TextMessage) else whole)

    def _ask(self) -> None:
        """Nothing was heard for a while: is the page still there?"""
        if not self._heard:
            self.close(CloseReason.POLICY_VIOLATION, "a ping was not answered")
            return
        self._heard = False
        self._next_ping = time.monotonic() + PING_SECONDS
        self._note(Ping())

    # ---- sending: any thread ---------------------------------------------------------------------

    def send(self, data: str | bytes) -> None:
        """Send a message whole. Raises `WebSocketClosed`."""
        try:
            with self._sending:
                if self._closing or self._over:
                    raise WebSocketClosed
                try:
                    message = TextMessage(data) if isinstance(data, str) else BytesMessage(data)
                    self._send_all(self._protocol.send(message))
                except (OSError, LocalProtocolError):
                    self._break()
                    raise WebSocketClosed from None
        finally:
            self._send_notes()

    def close(self, code: int, reason: str = "") -> None:
        """End this, and say why: after the message that is being sent. The first reason counts."""
        if not self._closing:
            self._closing = True
            self._note(CloseConnection(code, reason))

    def cut_off(self, code: int, reason: str) -> None:
        """End this soon, and read nothing more, not even what has come already. Never waits: it is
        the reader that sends the close frame, when it looks."""
        if not self._closing:
            self._notes[CloseConnection] = CloseConnection(code, reason)
        self._closing = self._cut_off = True

    def finish(self) -> None:
        """The last that is done here: no byte is sent after this.

        Without a word from either side until now, it is the server that made a mistake.
        """
        self.close(CloseReason.INTERNAL_ERROR, "the server made a mistake; see its log")
        if self._sending.acquire(timeout=FAREWELL_SECONDS):
            try:
                self._send_held_notes()
            finally:
                self._sending.release()
        if not self._over:
            self._break()
        self._server.connected = False  # or flask-sock would say goodbye again
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _note(self, event: Note) -> None:
        self._notes[type(event)] = event  # of several pings, the last is answered
        self._send_notes()

    def _send_notes(self) -> None:
        while self._notes and not self._over and self._sending.acquire(blocking=False):
            try:
                self._send_held_notes()
            finally:
                self._sending.release()

    def _send_held_notes(self) -> None:
        """Send what was noted. The caller holds `_sending`."""
        try:
            while self._notes and not self._over:
                kind, event = self._notes.popitem()
                if kind is CloseConnection:
                    self._sock.settimeout(FAREWELL_SECONDS)
                    self._send_all(self._protocol.send(event))
                    self._over = True
                elif not self._closing:
                    self._send_all(self._protocol.send(event))
        except (OSError, LocalProtocolError):
            self._break()

    def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        for at in range(0, len(view), SEND_BYTES):
            self._sock.sendall(view[at : at + SEND_BYTES])

    def _break(self) -> None:
        """The line cannot be used any more."""
        self._over = True
        hang_up(self._sock)


# ---- the route -----------------------------------------------------------------------------------


class _NoThread(threading.Thread):
    def start(self) -> None:
        pass


class _Handshake:
    """Stands in for the socket: sends the handshake's answer whole, and notes that it was sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, data: bytes) -> int:
        g.has_websocket = True
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise _LostHandshake from error
        return len(data)


class _LostHandshake(Exception):
    """The client went away before it had the handshake's answer."""


class _Answered(Response):
    """To a request that its WebSocket has answered."""

    def __call__(self, *_: Any) -> Any:
        raise ConnectionError("the WebSocket has ended")


def register(app: Flask, path: str) -> None:
    """Prepare `app` for a route of flask-sock's at `path`."""
    app.config["SOCK_SERVER_OPTIONS"] = {"thread_class": _NoThread}

    @app.before_request
    def prepare_handshake() -> None:
        environ = request.environ
        if request.path != path or "werkzeug.socket" not in environ:
            return
        if request.method != "GET" or request.content_length or "wsgi.input_terminated" in environ:
            raise BadRequest("not a WebSocket handshake: it must be a GET without a body")
        if not all(value.isascii() for key, value in environ.items() if key.startswith("HTTP_")):
            raise BadRequest("not a WebSocket handshake: its headers must be ASCII")
        environ["werkzeug.socket"] = _Handshake(environ["werkzeug.socket"])
        environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)

    @app.after_request
    def end_with_the_websocket(response: Response) -> Response:
        return _Answered() if g.get("has_websocket") else response

    @app.errorhandler(_LostHandshake)
    def lost_handshake(error: _LostHandshake) -> Response:
        return _Answered()

    @app.errorhandler(RemoteProtocolError)
    def bad_handshake(error: RemoteProtocolError) -> Any:
        return body_of(f"not a WebSocket handshake: {error}", 400), 400
