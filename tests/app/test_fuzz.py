"""Requests and frames with random changes are refused or served, without a traceback."""

from __future__ import annotations

import random
import re
import socket
import threading

import pytest

from tests.app.conftest import Site
from tests.app.http.raw_socket import TEXT, RawSocket, frame, handshake, n_descriptors
from tests.app.ws.test_websocket import assert_nothing_is_left, settled, warm

N_REQUESTS = 1000
N_FRAMES = 500
BODY = b'{"prompt":"Once","max_tokens":2}'
CHAT = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stream":true}'
HOST = b"Host: localhost\r\n"
REQUESTS = [
    b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
    handshake(0).replace(b"127.0.0.1:0", b"localhost") + frame(TEXT, b"{}") + frame(8),
    b"POST /v1/completions HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (HOST, len(BODY)) + BODY,
    b"POST /v1/chat/completions HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n" % HOST
    + b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHAT), CHAT),
    b"GET /api/weights?model=a HTTP/1.1\r\n%sExpect: 100-continue\r\n\r\n" % HOST,
    b"GET /static/js/main.js HTTP/1.1\r\n%sRange: bytes=0-10\r\n\r\n" % HOST,
]
PIECES = [
    b"\r\n",
    b"\0",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: evil.example\r\n",
    b"Upgrade: websocket\r\n",
    b"\xff\xfe",
    b"%00",
    b":",
    b"-1",
]


def changed(data: bytes, chance: random.Random) -> bytes:
    """Return `data` with up to five parts overwritten, inserted, removed or repeated."""
    found = bytearray(data)
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(found) + 1)
        n = chance.randrange(1, 20)
        match chance.randrange(5):
            case 0:
                found[at : at + 1] = chance.randbytes(1)
            case 1:
                found[at:at] = chance.randbytes(n)
            case 2:
                del found[at : at + n]
            case 3:
                found[at:at] = found[at : at + 3 * n]
            case _:
                found[at:at] = chance.choice(PIECES)
    return bytes(found)


def answer_to(site: Site, data: bytes) -> bytes:
    """Return all that the server sends back."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while more := sock.recv(65536):
            answer += more
        return answer


def test_changed_requests_are_served_or_refused(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    for data in REQUESTS:  # what the first of a kind starts stays, such as the template's process
        answer_to(site, data)
    before = warm(site)
    chance = random.Random(7)
    seen = set()
    for _ in range(N_REQUESTS):
        data = changed(chance.choice(REQUESTS), chance)
        answer = answer_to(site, data)
        status = re.match(rb"HTTP/1.[01] ([1-4][0-9]{2}|505) ", answer)
        assert status or not answer, (data, answer[:200])
        seen.add(status.group(1) if status else b"")
    assert {b"101", b"200", b"400", b"403", b"404"} <= seen
    assert not [record for record in caplog.records if record.exc_info]
    assert_nothing_is_left(site, before)


def test_random_frames_end_with_a_close_frame(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    before = warm(site)
    chance = random.Random(7)
    whole = frame(TEXT, b'{"type":"count","request":1,"prompt":"Once"}')
    for i in range(N_FRAMES):
        data = chance.randbytes(chance.randrange(1, 400)) if i % 2 else changed(whole, chance)
        with RawSocket(site.port) as page:
            page.send(data)
            page.sock.shutdown(socket.SHUT_WR)
            assert page.end() is not None, data
    assert not [record for record in caplog.records if record.exc_info]
    assert settled(threading.active_count, before[0]) <= before[0]
    assert settled(n_descriptors, before[1]) <= before[1]
