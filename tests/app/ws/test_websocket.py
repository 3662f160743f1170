"""However a WebSocket ends, its close frame has the right code, none of its bytes is taken for
HTTP, and nothing of it is left."""

from __future__ import annotations

import gc
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from wsproto.events import Ping

from app.http.http_server import Handler
from app.ws import websocket
from app.ws.page_connection import MAX_PAGES, MAX_TRANSPORT_BYTES
from app.ws.websocket import WebSocket
from gpu.inspection.requests import Answer, Array, Question
from tests.app.conftest import Site, StartSite
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.http.raw_socket import (
    BINARY,
    CLOSE,
    PING,
    TEXT,
    RawSocket,
    frame,
    handshake,
    n_descriptors,
)
from tests.app.page import wait_until

N_ENDS = 200
FEW_ENDS = 8
"""Enough to count what one end leaves; the slow tests look for races, too."""
N_LARGE = 40
"""Number of ends where each costs megabytes."""
HTTP = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"x" * (MAX_TRANSPORT_BYTES + 1)
HALF = len(LARGE) // 2
PONG = 10

# name: bytes after the handshake, code of the server's close frame
ENDS = {
    "a frame that is too large": (frame(TEXT, LARGE), 1009),
    "a message that is too large": (
        frame(TEXT, LARGE[:HALF], fin=False) + frame(0, LARGE[HALF:]),
        1009,
    ),
    "an opcode that is none": (frame(3, b"abc"), 1002),
    "a control opcode that is none": (frame(11), 1002),
    "a reserved bit": (frame(TEXT, b"{}", bits=4), 1002),
    "bad UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "half a character": (frame(TEXT, "é".encode()[:1]), 1007),
    "half a character of two frames": (
        frame(TEXT, "é".encode()[:1], fin=False) + frame(0, b"x"),
        1007,
    ),
    "no mask": (b"\x81\x02{}", 1002),
    "a continuation of nothing": (frame(0, b"x"), 1002),
    "a ping in two frames": (frame(PING, b"x", fin=False), 1002),
    "a ping that is too large": (frame(PING, b"x" * 126), 1002),
    "a length with too many bytes": (b"\x81\xfe\x00\x02" + bytes(4) + b"{}", 1002),
    "close with a code for nobody": (frame(CLOSE, struct.pack("!H", 1006)), 1002),
    "close with half a code": (frame(CLOSE, b"\x03"), 1002),
    "close with bad UTF-8": (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
    "close": (frame(CLOSE, struct.pack("!H", 3001)), 3001),
    "close without a code": (frame(CLOSE), 1005),
}


def settled(value: Callable[[], int], least: int) -> int:
    """`value` once it is `least` or less, or after a while."""
    deadline = time.monotonic() + 15
    while (now := value()) > least and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def warm(site: Site) -> tuple[int, int]:
    """Return the threads and descriptors of a server that has served a page before."""
    with RawSocket(site.port) as page:
        page.wait_ready()
        page.send(frame(CLOSE))
        page.end()
    time.sleep(0.3)
    gc.collect()
    return threading.active_count(), n_descriptors()


def assert_nothing_is_left(site: Site, before: tuple[int, int]) -> None:
    assert settled(threading.active_count, before[0]) <= before[0]
    assert settled(n_descriptors, before[1]) <= before[1]
    cookies = [site.cookie(), site.cookie()]  # one browser may not have all places
    pages = [RawSocket(site.port, cookie=cookies[i % 2]) for i in range(MAX_PAGES)]
    for page in pages:  # every place is free again
        page.wait_ready()
    for page in pages:
        page.send(frame(CLOSE))
        assert page.end() == 1005
        page.sock.close()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the path of every request that the server reads."""
    paths = []
    parse = Handler.parse_request

    def parse_request(handler: Handler) -> bool:
        good = parse(handler)
        paths.append(handler.path)
        return good

    monkeypatch.setattr(Handler, "parse_request", parse_request)
    return paths


@pytest.mark.parametrize("n_ends", [FEW_ENDS, pytest.param(N_ENDS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("sent", "code"), ENDS.values(), ids=ENDS)
def test_every_way_to_disconnect_is_reported_and_leaves_nothing(
    site: Site, requests: list[str], sent: bytes, code: int, n_ends: int
) -> None:
    """Also with requests behind it, which nobody may read."""
    before = warm(site)
    for i in range(min(n_ends, N_LARGE) if len(sent) > 2**20 else n_ends):
        with RawSocket(site.port) as page:
            if i % 2:
                page.wait_ready()
            page.send(sent + HTTP * (i % 3))
            assert page.end() == code, f"the end number {i}"
    assert set(requests) == {"/ws"}
    assert_nothing_is_left(site, before)


def test_a_disconnect_while_a_text_is_written_is_reported_too(start_site: StartSite) -> None:
    site = start_site(delay=0.0005, n_slots=4)
    before = warm(site)
    for i in range(60):
        with RawSocket(site.port) as page:
            page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 400})
            frames = page.frames()
            while b'"token"' not in next(frames)[1]:
                pass
            page.send(frame(3) + HTTP)
            assert page.end() == 1002, f"the end number {i}"
        for live in site.app.extensions["tokenglass_sessions"]._generations.values():
            live.cancel()
    assert_nothing_is_left(site, before)


def test_half_a_frame_and_a_reset_connection_leave_nothing(site: Site) -> None:
    before = warm(site)
    half = frame(TEXT, b"x" * 1000)[:500]
    for i in range(N_ENDS):
        with RawSocket(site.port) as page:
            page.send(half)
            if i % 2:
                page.sock.shutdown(socket.SHUT_WR)
                assert page.end() == 1002
            else:
                page.reset()
    assert_nothing_is_left(site, before)


def test_a_handshake_that_nobody_waits_for_leaves_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    before = warm(site)
    for _ in range(N_ENDS):
        sock = socket.create_connection(("127.0.0.1", site.port))
        sock.sendall(handshake(site.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    assert_nothing_is_left(site, before)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_handshake_whose_reply_is_lost_ends_the_connection(
    site: Site, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = websocket._Handshake.send

    def fail(stand_in: websocket._Handshake, data: bytes) -> int:
        stand_in.sock.shutdown(socket.SHUT_WR)
        return send(stand_in, data)

    monkeypatch.setattr(websocket._Handshake, "send", fail)
    n_threads = threading.active_count()
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as sock:
        sock.sendall(handshake(site.port) + HTTP)
        assert sock.recv(1000) == b""
    assert settled(threading.active_count, n_threads) <= n_threads
    assert requests == ["/ws"]


def test_frames_that_come_with_the_handshake_are_read(site: Site) -> None:
    count = json.dumps({"type": "count", "request": 1, "prompt": "Once"}).encode()
    with RawSocket(site.port, early=frame(TEXT, count) + frame(CLOSE)) as page:
        frames = list(page.frames())
    assert frames[-1] == (CLOSE, b"")
    with RawSocket(site.port, early=frame(TEXT, count)) as page:
        assert any(b'"counted"' in payload for _, payload in page.frames())


def test_messages_sent_before_the_close_are_handled(start_site: StartSite) -> None:
    """A page that leaves says stop and closes in one piece."""
    site = start_site(delay=0.01)
    with RawSocket(site.port) as page:
        page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 500})
        while b'"token"' not in next(page.frames())[1]:
            pass
        page.send(frame(TEXT, b'{"type":"stop","id":"a"}') + frame(CLOSE))
        page.end()
    (live,) = site.app.extensions["tokenglass_sessions"]._generations.values()
    assert settled(lambda: int(live.finished_at is None), 0) == 0


def test_a_ping_is_answered_between_the_parts_of_a_message(site: Site) -> None:
    with RawSocket(site.port) as page:
        page.wait_ready()
        page.send(frame(TEXT, b'{"type":"count",', fin=False) + frame(PING, b"hello"))
        assert next(page.frames()) == (PONG, b"hello")
        page.send(frame(0, b'"request":1,"prompt":"Once"}'))
        assert b'"counted"' in next(page.frames())[1]


def test_pings_that_nobody_reads_the_answers_of_cost_nothing(site: Site) -> None:
    before = warm(site)
    with RawSocket(site.port) as page:
        page.wait_ready()
        page.sock.settimeout(3)
        with pytest.raises(OSError):  # noqa: PT012 - the line is full, or cut off
            while True:
                page.send(frame(PING, b"x" * 125) * 1000)
    assert_nothing_is_left(site, before)


def test_a_page_that_does_not_answer_a_ping_is_gone(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.2)
    with RawSocket(start_site().port) as page:
        page.wait_ready()
        frames = page.frames()
        assert next(frames) == (PING, b"")
        page.send(frame(PONG))
        assert next(frames) == (PING, b"")
        assert page.end() == 1008


class _Large(FakeEngine):
    """Engine whose answers are larger than a socket's buffers."""

    def _answer(self, question: Question, future: Future[Answer]) -> None:
        future.set_result(Answer({}, (Array.of("weights", np.ones(4_000_000)),)))


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[WebSocket]:
    """Return a list that gets the server's side of every WebSocket."""
    found: list[WebSocket] = []

    def made(*given: Any) -> WebSocket:
        found.append(WebSocket(*given))
        return found[-1]

    monkeypatch.setattr("app.ws.page_connection.WebSocket", made)
    monkeypatch.setattr(websocket, "POLL_SECONDS", 0.02)
    return found


def test_a_page_that_is_still_being_sent_a_message_is_not_gone(
    start_site: StartSite, sockets: list[WebSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow line that takes longer than a ping may, which comes after the message."""
    site = start_site(load=lambda progress: _Large(FakeOptions(delay=0.002)))
    with RawSocket(site.port) as page:
        page.wait_ready()
        question = {"kind": "losses", "ids": [0, 262]}
        page.send_message("inspect", request=1, question=question)
        page.sock.recv(1, socket.MSG_PEEK)  # it has begun
        monkeypatch.setattr(websocket, "PING_SECONDS", 0.2)
        sockets[0]._next_ping = 0.0
        time.sleep(5 * websocket.PING_SECONDS)
        frames = page.frames()
        assert [next(frames)[0], next(frames)[0]] == [BINARY, PING]


def test_a_ping_has_its_time_from_when_it_is_sent(site: Site, sockets: list[WebSocket]) -> None:
    with RawSocket(site.port) as page:
        page.wait_ready()
        (ws,) = sockets
        with ws._sending:  # a message is being sent
            ws._next_ping = 0.0
            wait_until(lambda: Ping in ws._notes)
            ws._next_ping = 0.0
        ws._send_controls()
        assert next(page.frames()) == (PING, b"")
        assert ws._next_ping > time.monotonic()


def test_one_page_too_many_is_refused_and_leaves_nothing(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ws.page_connection.MAX_PAGES", 1)
    site = start_site()
    before = warm(site)
    with RawSocket(site.port) as first:
        first.wait_ready()
        for _ in range(N_ENDS):
            with RawSocket(site.port, early=frame(TEXT, b"{}")) as page:
                assert page.end() == 1013
        first.send(frame(CLOSE))
        first.end()
    assert settled(threading.active_count, before[0]) <= before[0]
    assert settled(n_descriptors, before[1]) <= before[1]


@pytest.mark.parametrize(
    "request_bytes",
    [
        handshake(0).replace(b"GET", b"POST"),
        handshake(0).replace(b"GET", b"HEAD"),
        handshake(0, "Content-Length: 4") + b"aaaa",
        handshake(0, "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        handshake(0, "Sec-WebSocket-Protocol: \xe9"),
        handshake(0).replace(b"Version: 13", b"Version: 8"),
        handshake(0).replace(b"Upgrade: websocket", b"Upgrade: h2c"),
    ],
)
def test_a_malformed_handshake_is_refused(site: Site, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as sock:
        sock.sendall(request_bytes.replace(b"127.0.0.1:0", f"127.0.0.1:{site.port}".encode()))
        answer = b""
        while data := sock.recv(65536):
            answer += data
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 ")), answer[:100]


def test_a_binary_message_is_an_error_of_its_own(site: Site) -> None:
    with RawSocket(site.port) as page:
        page.wait_ready()
        page.send(frame(BINARY, b"\x00"))
        assert b'"bad_message"' in next(page.frames())[1]
