"""A connection that breaks at every message, or inside every one: a page that resumes gets each
event of the server exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simple_websocket import ConnectionClosed

from tests.app.conftest import Site
from tests.app.page import PageClient
from tests.app.ws.faulty_line import Direction, Fault, FaultyLine

N_TOKENS = 12
PARAMS = {"max_tokens": N_TOKENS, "temperature": 0}


class Follower:
    """Page that follows generation "a" over many connections."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cookie = site.cookie()
        self.events: list[dict[str, Any]] = []
        self.n_repeated = 0

    def follow(self, *, generate: bool) -> None:
        """Ask for the generation, or for what is missing of it, and take what comes until the line
        breaks or all is there. Raises AssertionError for a gap."""
        page: PageClient = self._site.page(cookie=self._cookie)
        try:
            if generate:
                page.send_message("generate", id="a", prompt="Once", params=PARAMS)
            else:
                page.send_message("resume", id="a", after=len(self.events))
            while not self.is_done:
                self._take(page.next())
        except ConnectionClosed:
            pass
        finally:
            page.drop()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] != "event":
            assert message["type"] != "error", message
            return
        if message["seq"] <= len(self.events):
            self.n_repeated += 1
            return
        assert message["seq"] == len(self.events) + 1, "nothing is left out"
        self.events.append(message["event"])

    @property
    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1]["type"] == "done"


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("text", "") for event in events)


def unbroken(site: Site) -> list[dict[str, Any]]:
    follower = Follower(site)
    follower.follow(generate=True)
    return follower.events


class EveryEvent:
    """Fault of every event but the first of its connection, so that each connection brings one."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._n_passed: dict[int, int] = {}

    def __call__(self, way: Direction, socket: int, frame: bytes) -> Fault:
        if way == "up" or b'"type":"event"' not in frame:
            return "pass"
        n = self._n_passed[socket] = self._n_passed.get(socket, 0) + 1
        return self._fault if n > 1 else "pass"


@pytest.mark.parametrize("fault", ["cut", "inside"])
def test_no_event_is_lost_or_repeated_wherever_the_line_is_cut(site: Site, fault: Fault) -> None:
    with FaultyLine(site.port, EveryEvent(fault)) as line:
        follower = Follower(replace(site, port=line.port))
        follower.follow(generate=True)
        while not follower.is_done:
            follower.follow(generate=False)
    whole = unbroken(site)
    assert text_of(follower.events) == text_of(whole) != ""
    assert [e["type"] for e in follower.events] == [e["type"] for e in whole]
    assert line.n_sockets == len(whole), "each brought one more event"
    assert follower.n_repeated == 0


@pytest.mark.parametrize("fault", ["twice", "bytes"])
def test_frames_that_come_twice_or_in_pieces_change_nothing(site: Site, fault: Fault) -> None:
    with FaultyLine(site.port, EveryEvent(fault)) as line:
        follower = Follower(replace(site, port=line.port))
        follower.follow(generate=True)
    whole = unbroken(site)
    assert text_of(follower.events) == text_of(whole)
    assert line.n_sockets == 1
    assert follower.n_repeated == (len(whole) - 2 if fault == "twice" else 0)


class OfRequest:
    """Fault of the first frame that asks for a generation."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __call__(self, way: Direction, socket: int, frame: bytes) -> Fault:
        if way == "down" or b'"generate"' not in unmasked(frame):
            return "pass"
        fault, self._fault = self._fault, "pass"
        return fault


def unmasked(frame: bytes) -> bytes:
    """Return the content of a short frame of a client."""
    at = 2 + {126: 2, 127: 8}.get(frame[1] & 0x7F, 0)
    mask, content = frame[at : at + 4], frame[at + 4 :]
    return bytes(byte ^ mask[i % 4] for i, byte in enumerate(content))


@pytest.mark.parametrize("fault", ["cut", "inside"])
def test_half_a_request_starts_nothing(site: Site, fault: Fault) -> None:
    with FaultyLine(site.port, OfRequest(fault)) as line:
        follower = Follower(replace(site, port=line.port))
        follower.follow(generate=True)
        assert not follower.events
        with pytest.raises(AssertionError, match="it was never started"):
            follower.follow(generate=False)


def test_a_request_that_comes_twice_is_written_once(site: Site) -> None:
    """The second is refused, as there is one of its name."""
    with FaultyLine(site.port, OfRequest("twice")) as line:
        page = replace(site, port=line.port).page()
        page.send_message("generate", id="a", prompt="Once", params=PARAMS)
        page.until("done")
        page.send_message("count", request=1, prompt="Once")
        page.until("counted")  # the refusal came before this
    (refusal,) = [message for message in page.messages if message["type"] == "error"]
    assert "there is a generation 'a' already" in refusal["message"]
    tokens = [message for message in page.events("a") if message["event"]["type"] == "token"]
    assert len(tokens) == N_TOKENS
