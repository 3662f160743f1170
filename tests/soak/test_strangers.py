"""Pace of one client's tokens while strangers hold every other connection of the server."""

from __future__ import annotations

import contextlib
import itertools
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from app.http.connections import MAX_CONNECTIONS, MIN_IDLE_SECONDS
from tests.app.http.raw_socket import handshake
from tests.serving import serving
from tests.soak.clients import Ask, http_times

N = 1000
N_ROUNDS = 5
MOST = 1.5
"""Times by which strangers may slow the tokens of others."""
ASK = Ask("Once upon a time", 300, 1, 1.0, False)
BEGUN = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "
HALF_A_BODY = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{"
DRIP_SECONDS = 0.1


@pytest.mark.slow
def test_a_thousand_strangers_do_not_slow_the_tokens_of_others() -> None:
    """Texts alone and texts beside strangers take turns, so that what else the machine does slows
    both."""
    with serving("--model", "tale") as url:
        port = urlsplit(url).port
        assert port is not None
        gaps(port)  # compiles the kernels
        ratios = []
        for _ in range(N_ROUNDS):
            alone = gaps(port)
            with strangers(port) as socks:
                time.sleep(MIN_IDLE_SECONDS)  # until then they keep their places
                n_waiting = sum(map(waits, socks))
                beside = gaps(port)
            assert MAX_CONNECTIONS / 2 < n_waiting <= MAX_CONNECTIONS
            assert len(alone) == len(beside) > ASK.max_tokens / 2
            ratios.append(p95(beside) / p95(alone))
            print(f"p95 {1e3 * p95(alone):.1f} ms, beside strangers {1e3 * p95(beside):.1f} ms")
        print(f"{statistics.median(ratios):.2f} times, of {[f'{r:.2f}' for r in sorted(ratios)]}")
        assert statistics.median(ratios) < MOST


def gaps(port: int) -> list[float]:
    """Return the seconds between the pieces of a text."""
    return [b - a for a, b in itertools.pairwise(http_times(port, ASK))]


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


@contextmanager
def strangers(port: int) -> Iterator[list[socket.socket]]:
    """Open a connection for each of a thousand strangers: a quarter each says nothing, sends a head
    byte by byte, sends half of a body, and opens a page and does not read."""
    with contextlib.ExitStack() as stack:
        socks, ended = [stack.enter_context(stranger(port, i)) for i in range(N)], threading.Event()
        thread = threading.Thread(target=drip, args=(socks[1::4], ended))
        thread.start()
        try:
            yield socks
        finally:
            ended.set()
            thread.join()


def stranger(port: int, number: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    with contextlib.suppress(OSError):  # it was turned away at once
        match number % 4:
            case 1:
                sock.sendall(BEGUN)
            case 2:
                sock.sendall(HALF_A_BODY)
            case 3:
                sock.sendall(handshake(port))
    return sock


def drip(socks: list[socket.socket], ended: threading.Event) -> None:
    while not ended.wait(DRIP_SECONDS):
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.send(b"a")


def waits(sock: socket.socket) -> bool:
    """Return whether the server holds this connection and said nothing yet; one that opened a page
    has an answer."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
