"""The port of a stage's process beside strangers: the engine is always accepted, nobody else is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpu.errors import DeviceError
from gpu.runners.stage_connection import StageConnection
from gpu.runners.stage_listener import MAX_STRANGERS, StageListener


@pytest.fixture
def listener() -> Iterator[StageListener]:
    listener = StageListener("127.0.0.1")
    yield listener
    listener.close()


def stranger(listener: StageListener) -> socket.socket:
    """Return a connection that has been asked for the key, and says nothing."""
    sock = socket.create_connection((listener.address.host, listener.address.port), timeout=60)
    assert sock.recv(1)
    return sock


def check_engine(listener: StageListener) -> None:
    engine = StageConnection.connect("stage", listener.address)
    engine.send(b"a step")
    accepted = listener.accept()
    assert accepted.receive() == b"a step"
    accepted.hang_up()
    engine.close()


def test_a_stranger_who_says_nothing_keeps_nobody_waiting(listener: StageListener) -> None:
    with stranger(listener):
        check_engine(listener)


def test_a_stranger_who_stops_within_the_answer_keeps_nobody_waiting(
    listener: StageListener,
) -> None:
    with stranger(listener) as sock:
        sock.sendall(b"\0")
        check_engine(listener)


def test_the_oldest_stranger_gives_way(listener: StageListener) -> None:
    strangers = [stranger(listener) for _ in range(MAX_STRANGERS + 1)]
    while strangers[0].recv(1024):
        pass  # what it was asked, then the end
    check_engine(listener)
    for sock in strangers:
        sock.close()


def test_another_key_is_not_accepted(listener: StageListener) -> None:
    with pytest.raises(DeviceError, match="cannot be reached"):
        StageConnection.connect("stage", replace(listener.address, key=b"another"))
    check_engine(listener)


def test_a_closed_listener_accepts_nobody(listener: StageListener) -> None:
    listener.close()
    for _ in range(2):
        with pytest.raises(DeviceError, match="the engine has ended"):
            listener.accept()
    with pytest.raises(DeviceError, match="cannot be reached"):
        StageConnection.connect("stage", listener.address)
