"""One client cannot fill the queue alone, and every run is counted off when it ends."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import Any

import pytest

from app.engine_client import Run
from app.http.client_limits import ClientLimits, max_runs
from app.ws.sessions import Retention
from gpu import EngineError, PaceChange, QueueFull, Request, SamplingParams
from gpu.events import Done, Event, Timings
from tests.app.conftest import Site, StartSite, wait_ready, wait_until_load_is
from tests.app.page import PATIENCE_S, PageClient
from tests.app.ws.test_sessions import ScriptedEngine

LONG = {"max_tokens": 480}


def outcomes(page: PageClient, ids: list[str]) -> dict[str, str]:
    """Return "accepted" or the code of the error for each generation."""
    found: dict[str, str] = {}
    while len(found) < len(ids):
        message = page.next()
        if message["type"] == "error":
            found[message["id"]] = message["code"]
        elif message["type"] == "event" and message["event"]["type"] == "accepted":
            found[message["id"]] = "accepted"
    return found


def generate(page: PageClient, *ids: str) -> dict[str, str]:
    for id in ids:
        page.send_message("generate", id=id, prompt="Once", params=LONG)
    return outcomes(page, list(ids))


def test_one_session_leaves_half_of_the_queue_to_others(start_site: StartSite) -> None:
    site = start_site(n_slots=1, queue=4, delay=0.05)
    cookie = site.cookie()
    first, tab, other = site.page(cookie=cookie), site.page(cookie=cookie), site.page()
    assert generate(first, "a", "b") == {"a": "accepted", "b": "accepted"}
    assert generate(tab, "c", "d") == {"c": "accepted", "d": "queue_full"}
    error = next(m for m in tab.messages if m["type"] == "error")
    assert "you already have 3 generations running or waiting" in error["message"]
    assert generate(other, "e", "f") == {"e": "accepted", "f": "accepted"}
    tab.stop("c")
    assert generate(tab, "g") == {"g": "accepted"}, "a share is free when its run has ended"


def test_paused_texts_take_no_place_of_their_client(start_site: StartSite) -> None:
    """But they may not all go on beside those that it has begun meanwhile, and have a limit."""
    site = start_site(n_slots=1, queue=2, delay=0.05)
    page = site.page(cookie=site.cookie())
    assert generate(page, "a", "b") == {"a": "accepted", "b": "accepted"}
    for id in ("a", "b"):
        page.send_message("update", id=id, pace=0)
        page.until("updated", id=id)
    assert generate(page, "c", "d", "e") == {"c": "accepted", "d": "accepted", "e": "queue_full"}
    page.send_message("update", id="a", pace=None)
    refusal = page.until("error", id="a")
    assert "you already have 2 generations running or waiting" in refusal["message"]
    page.stop("c")
    page.send_message("update", id="a", pace=None)
    assert page.until("updated", id="a")["pace"] is None
    page.send_message("generate", id="f", prompt="Once", params=LONG, pace=0)
    page.until("accepted", id="f")
    page.send_message("generate", id="g", prompt="Once", params=LONG, pace=0)
    assert "including paused ones" in page.until("error", id="g")["message"]


def test_pages_without_a_cookie_share_the_places_of_their_address(start_site: StartSite) -> None:
    site = start_site(n_slots=1, queue=4, delay=0.05)
    for id in ("a", "b", "c"):
        assert generate(site.page(), id) == {id: "accepted"}
    assert generate(site.page(), "d") == {"d": "queue_full"}
    assert generate(site.page(cookie=site.cookie()), "e") == {"e": "accepted"}


def test_a_program_leaves_half_of_the_queue_to_others(start_site: StartSite) -> None:
    """Beyond that, the error is the same as for a full queue."""
    site = start_site(n_slots=1, queue=4)
    holder, page = site.page(cookie=site.cookie()), site.page(cookie=site.cookie())
    holder.hold_slot("held")
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(complete, site) for _ in range(8)]
        refused = islice(as_completed(asked, PATIENCE_S), 5)
        assert [future.result() for future in refused] == [429] * 5
        wait_until_load_is(site, 1, 3)
        assert generate(page, "a") == {"a": "accepted"}
        page.stop("a")
        holder.stop("held")
        codes = sorted(future.result() for future in asked)
    assert codes == [200] * 3 + [429] * 5
    assert complete(site) == 200


def complete(site: Site) -> int:
    body = json.dumps({"prompt": "Once", "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{site.url}/v1/completions", body)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code if error.headers["Retry-After"] else 0


def test_a_queue_whose_pages_have_gone_is_free_soon(start_site: StartSite) -> None:
    site = start_site(n_slots=1, queue=4, retention=Retention(waiting_seconds=0.3))
    cookies = [site.cookie() for _ in range(4)]
    page, new, *others = [site.page(cookie=cookie) for cookie in cookies]
    page.hold_slot("a")
    for other in others:
        assert generate(other, "b", "c") == {"b": "accepted", "c": "accepted"}
    assert generate(new, "d") == {"d": "queue_full"}
    for other in others:
        other.drop()
    wait_until_load_is(site, 1, 0)
    assert generate(new, "e") == {"e": "accepted"}
    page.send_message("update", id="a", pace=None)
    page.until("updated", id="a")
    page.until("token")
    again = site.page(cookie=cookies[-1])
    again.send_message("resume", id="b")
    assert again.until("done")["reason"] == "cancelled"


# ---- one by one --------------------------------------------------------------------------------


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.start()
    wait_ready(engine)
    return engine


def ended(reason: Any = "length") -> Done:
    return Done(reason, 2, 1, Timings(0, 0, 0, 0, 0, 0, 0, 0, 0, 0))


def submit(
    shares: ClientLimits, engine: ScriptedEngine, heard: list[Event], pace: float | None = None
) -> Run:
    request = Request([1], SamplingParams(), pace=pace)
    return shares.submit("me", engine, request, heard.append)


def fill(shares: ClientLimits, engine: ScriptedEngine) -> list[Run]:
    """Submit runs until another would be refused; return them."""
    limit = max_runs(engine)
    assert limit is not None
    runs = [submit(shares, engine, []) for _ in range(limit)]
    with pytest.raises(QueueFull):
        submit(shares, engine, [])
    return runs


def test_every_end_gives_its_share_back_once(engine: ScriptedEngine) -> None:
    """This includes a refusal, and an end that is reported twice."""
    shares, heard = ClientLimits(), list[Event]()
    limits = engine.require_ready().limits
    most = limits.slots + (limits.queue + 1) // 2
    assert max_runs(engine) == most
    engine.refuse = EngineError("no")
    for _ in range(3 * most):
        with pytest.raises(EngineError, match="no"):
            submit(shares, engine, heard)
    engine.refuse = None
    for _ in range(most):
        submit(shares, engine, heard)
    with pytest.raises(QueueFull):
        submit(shares, engine, heard)
    engine.tells[0](ended())
    engine.tells[0](ended())
    submit(shares, engine, heard)
    with pytest.raises(QueueFull):
        submit(shares, engine, heard)
    for tell in engine.tells:
        tell(ended("error"))
    assert not shares._places
    assert len(heard) == 2 + len(engine.tells)


def test_a_run_that_begins_paused_takes_no_place(engine: ScriptedEngine) -> None:
    shares = ClientLimits()
    paused = submit(shares, engine, [], pace=0)
    first, *_ = fill(shares, engine)
    with pytest.raises(QueueFull, match="you already have"):
        paused.update(pace=PaceChange(None))
    first.update(pace=PaceChange(0))
    paused.update(pace=PaceChange(None))
    with pytest.raises(QueueFull):
        first.update(pace=PaceChange(None))


def test_an_update_that_fails_leaves_the_run_as_it_was(engine: ScriptedEngine) -> None:
    shares = ClientLimits()
    paused = submit(shares, engine, [], pace=0)
    running = submit(shares, engine, [])
    engine.refuse = EngineError("no")
    for run, pace in ((paused, PaceChange(None)), (running, PaceChange(0))):
        with pytest.raises(EngineError, match="no"):
            run.update(pace=pace)
    engine.refuse = None
    assert [place.paused for place in ordered(shares)] == [False, True]
    assert running.update() == running.update(pace=PaceChange(steps=2)) == 3
    assert [place.paused for place in ordered(shares)] == [False, True], "it says nothing of pauses"


def ordered(shares: ClientLimits) -> list[Any]:
    return sorted(shares._places["me"], key=lambda place: place.paused)


def test_an_end_while_it_is_paused_leaves_nothing(engine: ScriptedEngine) -> None:
    shares = ClientLimits()
    run = submit(shares, engine, [], pace=0)
    engine.tells[0](ended())
    fill(shares, engine)
    run.update(pace=PaceChange(None))
    for tell in engine.tells:
        tell(ended())
    assert not shares._places


def test_a_listener_may_submit_again_when_its_run_ends(engine: ScriptedEngine) -> None:
    shares, threads = ClientLimits(), threading.active_count()
    limits = engine.require_ready().limits
    submitted: list[Run] = []

    def again(event: Event) -> None:
        submitted.append(submit(shares, engine, []))

    for _ in range(limits.slots + (limits.queue + 1) // 2):
        shares.submit("me", engine, Request([1], SamplingParams()), again)
    engine.tells[0](ended())
    assert len(submitted) == 1
    assert threading.active_count() == threads
