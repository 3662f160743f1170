"""WebSockets, and every workaround for flask-sock 0.7 and simple-websocket 1.1.

flask-sock declares the route (`app.ws.page_connection`) and simple-websocket makes the handshake.
After that this module drives wsproto itself, on the route's thread, as simple-websocket's own
thread has races:

- For a message that is too large, `Base._handle_events` sets its event while `connected` is still
  true. A reader that wakes before `connected` is cleared waits for ever, with two threads, a
  descriptor and a slot.
- For a bad opcode or bad UTF-8 it wakes the reader before it sends the close frame. The request can
  end, and its socket be closed, before the frame is out.
- `send` takes no lock although two threads send, and the list of unread messages has no bound. Here
  a page that sends too fast is held back by TCP.

The workarounds:

- `_NoThread`: simple-websocket's thread, never started.
- `_Handshake`: stands in for the socket during the handshake and records that its answer was sent,
  after which nothing may be sent as HTTP.
- `_Answered`: replaces the empty page that flask-sock answers with, which a browser would read as a
  frame. It raises ConnectionError, at which werkzeug ends the connection silently.
- The header that offers deflate is removed: compressing costs the writer more than it saves.
- Handshakes with a body, and with headers that are not ASCII, are refused: wsproto would read the
  body as frames, and fail on the headers.
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

from app.http.errors import body_of
from app.http.request_reader import RequestStream
from app.http.sockets import READ_BYTES, hang_up, wait_readable

PING_SECONDS = 25.0
"""A page that is silent for this long is asked whether it is there. It is gone if it is silent for
as long again after it was sent that: a message that is being sent comes first, and has a limit of
its own."""
SEND_SECONDS = 20.0
"""A page that does not take `SEND_BYTES` within this time is cut off; it can come back."""
SEND_BYTES = 1024 * 1024
CLOSE_SECONDS = 2.0
"""Time at most to finish the message being sent and send the close frame."""
POLL_SECONDS = 1.0
"""Interval at which a reader checks whether another thread has ended the WebSocket."""


ControlFrame = Ping | Pong | CloseConnection


class WebSocketClosed(Exception):
    """The WebSocket has ended: nothing more can be received or sent."""


class WebSocket:
    """Server side of one WebSocket. One thread calls `receive` and at last `finish`; any thread may
    `send` and `close`.

    Frames are sent under the lock `_sending`. Control frames (ping, pong, close) are put into
    `_notes`; they are sent at once if the lock is free, else by the thread that holds it, after its
    message. So the reading thread does not wait for a message to a page that does not read.
    """

    def __init__(self, server: Server, most_bytes: int) -> None:
        self._server = server
        self._sock: socket.socket = server.sock.sock
        self._sock.settimeout(SEND_SECONDS)
        self._protocol = server.ws
        self._most_bytes = most_bytes
        self._sending = threading.Lock()
        self._notes: dict[type[ControlFrame], ControlFrame] = {}
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
                self._ping()
            if wait_readable(self._sock, min(POLL_SECONDS, (end or math.inf) - now)):
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
            self._disconnect()
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
                    self._queue_control(event.response())
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

    def _ping(self) -> None:
        """Ping a page that has been silent, or close if the last ping was not answered."""
        if not self._heard and Ping not in self._notes:
            self.close(CloseReason.POLICY_VIOLATION, "a ping was not answered")
            return
        self._heard = False
        self._next_ping = time.monotonic() + PING_SECONDS
        self._queue_control(Ping())

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
                    self._disconnect()
                    raise WebSocketClosed from None
        finally:
            self._send_controls()

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame after the message that is being sent. Only the first call counts."""
        if not self._closing:
            self._closing = True
            self._queue_control(CloseConnection(code, reason))

    def abort(self, code: int, reason: str) -> None:
        """End soon without reading any more, not even messages that have come already.

        Returns at once: the reading thread sends the close frame when it notices.
        """
        if not self._closing:
            self._notes[CloseConnection] = CloseConnection(code, reason)
        self._closing = self._cut_off = True

    def finish(self) -> None:
        """Send the close frame if it was not sent yet, and end the sending side.

        If neither side has closed by now, the route has failed: the code is 1011.
        """
        self.close(CloseReason.INTERNAL_ERROR, "the server made a mistake; see its log")
        if self._sending.acquire(timeout=CLOSE_SECONDS):
            try:
                self._send_queued_controls()
            finally:
                self._sending.release()
        if not self._over:
            self._disconnect()
        self._server.connected = False  # or flask-sock would say goodbye again
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _queue_control(self, event: ControlFrame) -> None:
        self._notes[type(event)] = event  # of several pings, the last is answered
        self._send_controls()

    def _send_controls(self) -> None:
        while self._notes and not self._over and self._sending.acquire(blocking=False):
            try:
                self._send_queued_controls()
            finally:
                self._sending.release()

    def _send_queued_controls(self) -> None:
        """Send what was noted. The caller holds `_sending`."""
        try:
            while self._notes and not self._over:
                if Ping in self._notes:
                    self._next_ping = time.monotonic() + PING_SECONDS
                kind, event = self._notes.popitem()
                if kind is CloseConnection:
                    self._sock.settimeout(CLOSE_SECONDS)
                    self._send_all(self._protocol.send(event))
                    self._over = True
                elif not self._closing:
                    self._send_all(self._protocol.send(event))
        except (OSError, LocalProtocolError):
            self._disconnect()

    def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        for at in range(0, len(view), SEND_BYTES):
            self._sock.sendall(view[at : at + SEND_BYTES])

    def _disconnect(self) -> None:
        """End both directions: the connection cannot be used any more."""
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
    """Response to a request that its WebSocket has answered."""

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
