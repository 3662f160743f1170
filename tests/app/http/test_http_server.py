"""Limits of the HTTP server on connections, time and bytes; ambiguous requests are refused."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any

import pytest

from app.http import connections, http_server, request_reader
from app.http.connections import MAX_CONNECTIONS, MIN_CONNECTIONS, max_connections
from app.http.http_server import HttpServer
from app.http.security import MAX_BODY_BYTES
from app.server import bind
from tests.app.conftest import Site, wait_until_load_is
from tests.app.http.raw_socket import CLOSE, RawSocket, frame, n_descriptors
from tests.app.page import PATIENCE_S
from tests.app.test_server import Server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt":"Once","max_tokens":2}'
LONG = b'{"prompt":"Once","max_tokens":400}'
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

StartServer = Callable[..., int]


@pytest.fixture
def start_server(site: Site) -> Iterator[StartServer]:
    """Start another server with a limit on connections, of the same application or of `app`; return
    its port."""
    servers = []

    def start(max_connections: int, app: Any = None) -> int:
        with bind("127.0.0.1", 0) as listener:
            server = http_server.http_server(listener, app or site.app, max_connections)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server.port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def ask(port: int, data: bytes) -> bytes:
    """Return the whole response to these bytes."""
    with connect(port) as sock:
        sock.sendall(data)
        return read_all(sock)


def test_a_signal_leaves_a_request_to_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises it wherever the main thread is, as when that has just started the other."""
    ended = threading.Event()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        assert ended.wait(PATIENCE_S)
        start_response("200 OK", [("Content-Length", "5")])
        return [b"whole"]

    start_thread = ThreadingMixIn.process_request

    def interrupted(server: Any, request: Any, address: Any) -> None:
        start_thread(server, request, address)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingMixIn, "process_request", interrupted)
    with bind("127.0.0.1", 0) as listener:
        server = http_server.http_server(listener, app)
        with connect(server.port) as sock:
            sock.sendall(HEALTH)
            server.serve_forever()
            ended.set()
            assert read_all(sock).endswith(b"whole")


def read_all(sock: socket.socket) -> bytes:
    answer = b""
    try:
        while data := sock.recv(65536):
            answer += data
    except ConnectionResetError:
        pass
    return answer


def status(answer: bytes) -> int:
    match = re.match(rb"HTTP/1.1 ([0-9]{3}) ", answer)
    return int(match.group(1)) if match else 0


# ---- time --------------------------------------------------------------------------------------


def drip(sock: socket.socket, data: bytes, seconds: float) -> None:
    """Send a byte every `seconds` until the server closes."""
    sock.settimeout(seconds)
    for byte in data:
        try:
            sock.send(bytes([byte]))
            if sock.recv(1000) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    else:
        raise AssertionError("the server took all of it")


# One pace at which the server waits for bytes, and one at which there is always a byte to read.
paces = pytest.mark.parametrize(("n_bytes", "seconds"), [(300, 0.05), (60_000, 0.0002)])


@paces
def test_a_head_that_comes_a_byte_at_a_time_is_cut_off(
    site: Site, monkeypatch: pytest.MonkeyPatch, n_bytes: int, seconds: float
) -> None:
    monkeypatch.setattr(request_reader, "HEAD_SECONDS", 0.5)
    began = time.monotonic()
    with connect(site.port) as sock:
        drip(sock, HEALTH[:-4] + b"\r\nX-A: " + b"a" * n_bytes, seconds)
    assert 0.4 < time.monotonic() - began < 5


@paces
def test_a_body_that_comes_a_byte_at_a_time_is_cut_off(
    site: Site, monkeypatch: pytest.MonkeyPatch, n_bytes: int, seconds: float
) -> None:
    monkeypatch.setattr(request_reader, "BODY_SECONDS", 0.5)
    for head in (POST + b"Content-Length: 100000\r\n\r\n", CHUNKED + b"186a0\r\n"):
        began = time.monotonic()
        with connect(site.port) as sock:
            sock.sendall(head)
            drip(sock, b" " * n_bytes, seconds)
        assert 0.4 < time.monotonic() - began < 5


def test_a_silent_connection_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "HEAD_SECONDS", 0.3)
    with connect(site.port) as sock:
        assert read_all(sock) == b""


def test_bytes_after_a_request_do_not_hold_the_connection(site: Site) -> None:
    """The server neither waits for them nor answers them."""
    with connect(site.port) as sock:
        sock.sendall(HEALTH + HEALTH + b"GET /hea")
        assert read_all(sock).count(b"HTTP/1.1 ") == 1


def test_a_client_that_does_not_hang_up_holds_no_thread(site: Site) -> None:
    n_threads = threading.active_count()
    socks = [connect(site.port) for _ in range(20)]
    for sock in socks:
        sock.sendall(HEALTH)
        assert status(read_all(sock)) == 200
    deadline = time.monotonic() + 10
    while threading.active_count() > n_threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= n_threads
    for sock in socks:
        sock.close()


# ---- connections -------------------------------------------------------------------------------


def test_silent_connections_give_way_to_those_that_ask(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 3600.0)
    port = start_server(8)
    silent = [connect(port) for _ in range(8)]
    assert status(ask(port, HEALTH)) == 503, "none was silent for long"
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 0.0)
    for _ in range(20):
        assert status(ask(port, HEALTH)) == 200
    for sock in silent:
        sock.close()


@pytest.mark.parametrize(
    "head", [POST + b"Content-Length: 1000\r\n\r\n", CHUNKED + b"3e8\r\n"], ids=["plain", "chunked"]
)
def test_a_connection_with_half_a_body_gives_way(
    site: Site, start_server: StartServer, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """There are three connections, of which none is reserved for requests that are answered at
    once: all can be at work."""
    entered = threading.Semaphore(0)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        entered.release()
        return site.app(environ, start_response)

    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 3600.0)
    port = start_server(3, app)
    slow = [connect(port) for _ in range(3)]
    for sock in slow:
        sock.sendall(head)
        assert entered.acquire(timeout=PATIENCE_S)
    assert status(ask(port, HEALTH)) == 503, "none was slow for long"
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 0.0)
    for _ in slow:  # not once more: one that gave way counts until its thread has ended
        assert status(ask(port, HEALTH)) == 200
    for sock in slow:
        sock.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Content-Length: %d\r\n\r\n" % len(LONG) + LONG,
        CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(LONG), LONG),
    ],
    ids=["plain", "chunked"],
)
def test_a_request_that_is_whole_does_not_give_way(
    site: Site, start_server: StartServer, monkeypatch: pytest.MonkeyPatch, request_bytes: bytes
) -> None:
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 0.0)
    port, page, held = start_server(1), site.page(), ("a", "b", "c", "d")
    for id in held:
        page.hold_slot(id)
    with connect(port) as sock:
        sock.sendall(request_bytes)
        wait_until_load_is(site, len(held), 1)
        assert status(ask(port, HEALTH)) == 503
        for id in held:
            page.stop(id)
        answer = read_all(sock)
    assert status(answer) == 200
    assert b'"completion_tokens":400' in answer.replace(b" ", b"")


def test_connections_at_work_do_not_give_way(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 0.0)
    port = start_server(4)
    pages = [RawSocket(port) for _ in range(4)]
    for page in pages:
        page.wait_ready()
    refusal = ask(port, HEALTH)
    assert status(refusal) == 503
    assert b"too many connections are open; try again in a moment\n" in refusal
    for page in pages[:2]:
        page.send(frame(CLOSE))
        assert page.end() == 1005
        page.sock.close()
    deadline = time.monotonic() + 10
    while status(ask(port, HEALTH)) != 200:
        assert time.monotonic() < deadline, "a page that left still counts"
    for page in pages[2:]:
        page.send_message("count", request=1, prompt="Once")
        assert b'"counted"' in next(page.frames())[1]
        page.sock.close()


def test_requests_that_take_long_leave_places_to_the_page(start_server: StartServer) -> None:
    entered, go = threading.Semaphore(0), threading.Event()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            entered.release()
            assert go.wait(PATIENCE_S)
        start_response("200 OK", [("Content-Length", "0")])
        return []

    port = start_server(4, app)
    asking = [connect(port) for _ in range(3)]
    try:
        for sock in asking:
            sock.sendall(POST + b"\r\n")
            assert entered.acquire(timeout=PATIENCE_S)
        refusal = ask(port, POST + b"\r\n")
        assert status(refusal) == 503
        assert b"Retry-After: 2\r\n" in refusal
        assert status(ask(port, HEALTH)) == 200
    finally:
        go.set()
    assert [status(read_all(sock)) for sock in asking] == [200] * 3
    assert status(ask(port, POST + b"\r\n")) == 200, "their places are free again"
    for sock in asking:
        sock.close()


def test_half_bodies_give_way_to_requests_that_take_long(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no place among those at work, although others are free."""
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 0.0)
    port = start_server(8)
    halves = [connect(port) for _ in range(6)]
    for sock in halves:
        sock.sendall(POST + b"Content-Length: 100\r\n\r\n{")
    for _ in range(3):
        assert status(ask(port, POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)) == 200
    for sock in halves:
        sock.close()


def test_connections_that_do_not_read_give_way(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", [])
        return [bytes(2**16)] * (1024 if environ["PATH_INFO"] == "/weights" else 1)

    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 0.3)
    port = start_server(2, app)
    deaf = [connect(port) for _ in range(2)]
    for sock in deaf:
        sock.sendall(b"GET /weights HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(sock.recv(64)) == 200  # and no more: 64 MB are in no buffer
    deadline = time.monotonic() + PATIENCE_S
    while status(ask(port, HEALTH)) != 200:  # until a send has waited for 0.3 s
        assert time.monotonic() < deadline
    for sock in deaf:
        sock.close()


def test_a_refusal_holds_nothing(start_server: StartServer) -> None:
    port = start_server(1)
    silent = connect(port)
    before = settled()
    for _ in range(200):
        assert status(ask(port, HEALTH)) == 503
    # Fewer are no fault: threads of earlier tests may still be ending.
    assert all(now <= then for now, then in zip(settled(), before, strict=True))
    silent.close()


def settled() -> tuple[int, int]:
    """Return how many descriptors and threads this process has, once it is the same for 0.3 s:
    connections of earlier tests may still be closing."""
    found, since = None, time.monotonic()
    while time.monotonic() - since < 0.3:
        now = n_descriptors(), threading.active_count()
        if now != found:
            found, since = now, time.monotonic()
        time.sleep(0.02)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("limit", "most"),
    [(64, MIN_CONNECTIONS), (256, 96), (1024, MAX_CONNECTIONS), (-1, MAX_CONNECTIONS)],
)
def test_the_cap_leaves_room_below_the_limit_of_descriptors(
    monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert max_connections() == most


def test_without_descriptors_it_pauses_and_lets_a_silent_connection_go(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 0.0)
    with bind("127.0.0.1", 0) as listener:
        server = HttpServer(listener, site.app, 10)
    ours, theirs = socket.socketpair()
    server.connections.admit(ours)

    def accept() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(server, "socket", type("Full", (), {"accept": staticmethod(accept)}))
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(OSError, match="Too many"):
            server.get_request()
    assert time.monotonic() - began >= 3 * http_server.PAUSE_SECONDS
    assert theirs.recv(1) == b""
    assert len([r for r in caplog.records if "Too many open files" in r.getMessage()]) == 1
    ours.close()
    theirs.close()


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of descriptors")
def test_more_silent_connections_than_descriptors_keep_nobody_out() -> None:
    """There are 376 of them, and 256 descriptors."""
    server = Server(before=["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"])
    silent: list[socket.socket] = []
    try:
        port = int(server.line(r"http://127.0.0.1:([0-9]+)/"))
        server.line("(Ready)")
        silent = [connect(port) for _ in range(376)]
        assert status(ask(port, HEALTH)), "it accepts in order, so all others are accepted by now"
        assert share_of_processor(server.process.pid, connections.MIN_IDLE_SECONDS + 0.5) < 0.5
        health = f"http://127.0.0.1:{port}/health"
        for _ in range(20):
            with urllib.request.urlopen(health, timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        with RawSocket(port) as page:
            page.wait_ready()
            assert share_of_processor(server.process.pid, 1) < 0.5, "it spins"
    finally:
        for sock in silent:
            sock.close()
        server.process.terminate()
        _, errors = server.process.communicate(timeout=40)
    assert errors == ""


def share_of_processor(pid: int, seconds: float) -> float:
    """Return which share of one processor a process takes meanwhile."""
    worked, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - worked) / (time.monotonic() - began)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process; 0 without /proc."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- where a request ends ----------------------------------------------------------------------

DOUBTFUL = {
    "two lengths": b"Content-Length: 32\r\nContent-Length: 5\r\n",
    "the same length twice": b"Content-Length: 32\r\nContent-Length: 32\r\n",
    "lengths in a list": b"Content-Length: 32, 5\r\n",
    "a length and chunks": b"Content-Length: 32\r\nTransfer-Encoding: chunked\r\n",
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 32\r\n",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "an unknown encoding": b"Transfer-Encoding: gzip, chunked\r\n",
    "nearly chunked": b"Transfer-Encoding: xchunked\r\n",
    "a signed length": b"Content-Length: +32\r\n",
    "a negative length": b"Content-Length: -32\r\n",
    "a length in words": b"Content-Length: many\r\n",
    "a length with an underscore": b"Content-Length: 3_2\r\n",
    "an endless length": b"Content-Length: " + b"9" * 500 + b"\r\n",
    "a space before the colon": b"Content-Length : 32\r\n",
    "a line that is no header": b"hello\r\nContent-Length: 32\r\n",
    "two hosts": b"Host: localhost\r\nContent-Length: 32\r\n",
}


@pytest.mark.parametrize("headers", DOUBTFUL.values(), ids=DOUBTFUL)
def test_a_request_of_ambiguous_length_is_refused(site: Site, headers: bytes) -> None:
    answer = ask(site.port, POST + headers + b"\r\n" + BODY)
    assert status(answer) == 400, answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1


def test_headers_without_an_end_are_refused(site: Site) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (i, b"a" * 5000) for i in range(90))
    assert status(ask(site.port, HEALTH[:-2] + lines + b"\r\n")) == 431


def test_a_stream_has_no_chunks_for_a_client_of_http_1_0(site: Site) -> None:
    """Such as ApacheBench; its end is that of the connection."""
    body = b'{"prompt":"Once","max_tokens":2,"stream":true}'
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    head, _, text = ask(site.port, POST.replace(b"/1.1", b"/1.0") + length + body).partition(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.0 200 ")
    assert b"transfer-encoding" not in head.lower()
    assert text.startswith(b"data: {")
    assert text.endswith(b"}\n\ndata: [DONE]\n\n")


def chunks(data: bytes, size: int) -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"0;a=b\r\n\r\n", b"0\r\nX-Sum: 1\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_chunked_body_is_read_whole(site: Site, size: int, end: bytes) -> None:
    answer = ask(site.port, CHUNKED + chunks(BODY, size) + end)
    assert status(answer) == 200
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("size", [4096, MAX_BODY_BYTES, 2 * MAX_BODY_BYTES])
def test_a_chunked_body_past_the_bound_is_refused_and_not_cut(site: Site, size: int) -> None:
    """The response arrives although the client continues to send."""
    padding = b" " * (MAX_BODY_BYTES - len(BODY))
    largest = ask(site.port, CHUNKED + chunks(BODY + padding, size) + b"0\r\n\r\n")
    assert status(largest) == 200
    one_more = ask(site.port, CHUNKED + chunks(BODY + padding + b" ", size) + b"0\r\n\r\n")
    assert status(one_more) == 413
    many_more = ask(site.port, CHUNKED + chunks(BODY + 5 * padding, size) + b"0\r\n\r\n")
    assert status(many_more) == 413


def test_a_body_past_the_bound_is_refused_while_it_is_sent(site: Site) -> None:
    body = b" " * 20 * MAX_BODY_BYTES
    answer = ask(site.port, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert status(answer) == 413


@pytest.mark.parametrize(
    "body",
    [
        b"7fffffff\r\n" + BODY,
        b"20\r\n" + BODY,
        b"20\r\n" + BODY + b"0\r\n\r\n",
        b"-1\r\n" + BODY,
        b"0x20\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"1_0\r\n" + BODY,
        b"\r\n",
        b"2" * 4000,
        b"",
    ],
)
def test_a_broken_chunk_is_refused(site: Site, body: bytes) -> None:
    """This includes one that ends early: missing bytes are not replaced by uninitialised memory."""
    with connect(site.port) as sock:
        sock.sendall(CHUNKED + body)
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert status(answer) in (400, 413), answer[:200]
    assert b"malformed" not in answer, "something was read in place of what is missing"
