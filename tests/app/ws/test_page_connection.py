"""The WebSocket, with a real server and a real socket."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from typing import Any

import pytest
from simple_websocket import ConnectionClosed
from simple_websocket import ConnectionError as HandshakeFailed
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Request, TextMessage
from wsproto.frame_protocol import CloseReason

from app.protocol.messages import MESSAGE_BYTES
from app.ws.send_queue import STATS_BACKLOG
from app.ws.sessions import Retention
from tests.app.conftest import Site, StartSite
from tests.app.fake_options import ENDLESS, IN_FLIGHT
from tests.app.fake_tokenizer import STORY
from tests.app.page import LateReader, PageClient, wait_until

N_SLOW = 400
"""Number of tokens whose statistics exceed the socket's buffers."""
GREEDY = {"temperature": 0}


def assert_whole(page: PageClient, id: str) -> None:
    """Fail unless every message and every token came exactly once and in order."""
    seqs = [m["seq"] for m in page.events(id)]
    assert seqs == list(range(1, len(seqs) + 1))
    indexes = [m["event"]["index"] for m in page.events(id) if m["event"]["type"] == "token"]
    assert indexes == list(range(len(indexes)))


def test_hello_comes_first_and_names_the_model(site: Site) -> None:
    page = site.page()
    hello = page.messages[0]
    assert hello["type"] == "hello"
    assert hello["model"]["name"] == "fake-story"
    assert hello["model"]["chat"] is True
    assert hello["limits"]["message_bytes"] == MESSAGE_BYTES
    assert (
        hello["limits"]["kv_block_bytes"] * hello["limits"]["kv_blocks"]
        == (hello["memory"]["kv_cache"])
    )
    assert page.messages[1] == {
        "type": "status",
        "state": "ready",
        "message": "ready",
        "progress": None,
        "retry_seconds": None,
    }


def test_a_page_that_comes_early_sees_the_loading(start_site: StartSite) -> None:
    site = start_site(load_seconds=0.5, wait=False)
    page = PageClient(site.port)
    page.send_message("generate", id="early", prompt="Once")
    assert page.until("error")["code"] == "unavailable"
    page.until("status", state="ready")
    loading = [m for m in page.messages if m.get("state") == "loading"]
    assert [m["progress"] for m in loading] == sorted(m["progress"] for m in loading)
    assert [m["type"] for m in page.messages][-2:] == ["hello", "status"]


def test_a_model_that_cannot_be_loaded_is_reported(start_site: StartSite) -> None:
    site = start_site(fail="weights.safetensors: truncated", wait=False)
    page = PageClient(site.port)
    assert page.until("status", state="failed")["message"] == "weights.safetensors: truncated"


def test_a_generation_from_start_to_end(site: Site) -> None:
    page = site.page()
    page.send_message("generate", id="a", prompt="Once upon", params={**GREEDY, "max_tokens": 30})
    done = page.until("done")
    assert (done["reason"], done["completion_tokens"]) == ("length", 30)
    assert_whole(page, "a")
    kinds = [m["event"]["type"] for m in page.events("a")]
    assert kinds[:2] == ["accepted", "prefill"]
    assert kinds.count("token") == 30
    assert STORY.startswith(page.text("a"))


def test_statistics_come_only_when_asked_for(site: Site) -> None:
    page = site.page()
    for id, capture in (("with", True), ("without", False)):
        page.send_message(
            "generate", id=id, prompt="Once", capture=capture, params={"max_tokens": 3}
        )
        page.until("done", id=id)
        stats = [m["event"]["stats"] for m in page.events(id) if m["event"]["type"] == "token"]
        assert [bool(s) for s in stats] == [capture] * 3
        prefill = next(m["event"] for m in page.events(id) if m["event"]["type"] == "prefill")
        assert len(prefill["stats"]) == (prefill["total"] if capture else 0)


def test_an_update_is_acknowledged_with_the_first_token_it_acts_on(start_site: StartSite) -> None:
    site = start_site(delay=0.01)
    page = site.page()
    page.send_message(
        "generate", id="a", prompt="Once", params={"max_tokens": 60, "temperature": 2.0}
    )
    page.until("token", index=5)
    page.send_message("update", id="a", params=GREEDY)
    updated = page.until("updated")
    assert updated["params"]["temperature"] == 0
    assert 5 < updated["index"] <= 5 + 30
    page.until("done")
    for message in page.events("a"):
        event = message["event"]
        if event["type"] == "token" and event["index"] >= updated["index"] + IN_FLIGHT:
            assert event["rank"] == 0
            assert event["n_kept"] == 1
    assert_whole(page, "a")


def test_an_update_switches_statistics_on(start_site: StartSite) -> None:
    page = start_site(delay=0.01).page()
    page.send_message("generate", id="a", prompt="Once", capture=False, params={"max_tokens": 60})
    assert page.until("token", index=3)["stats"] is None
    page.send_message("update", id="a", capture=True)
    assert page.until("updated")["capture"] is True
    page.until("done")
    last = [m["event"] for m in page.events("a") if m["event"]["type"] == "token"][-1]
    assert last["stats"] is not None


def test_a_slider_that_is_dragged_ends_at_its_last_value(start_site: StartSite) -> None:
    page = start_site(delay=0.01).page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 400, "top_k": 3})
    page.until("token", index=0)
    for step in range(1, 201):
        page.send_message(
            "update", id="a", params={"temperature": step / 100, "min_p": step / 1000}
        )
    page.send_message("update", id="a", params={"top_p": 0.5})
    updated = page.until("updated", timeout=20)
    while updated["params"]["top_p"] != 0.5:
        updated = page.until("updated", timeout=20)
    params = updated["params"]
    assert (params["temperature"], params["min_p"], params["top_k"]) == (2.0, 0.2, 3)
    acknowledged = [m for m in page.messages if m.get("event", {}).get("type") == "updated"]
    assert len(acknowledged) < 201, "updates were not merged"
    assert page.messages[-1]["type"] != "error"


def test_a_bad_update_is_refused_and_changes_nothing(start_site: StartSite) -> None:
    page = start_site(delay=0.01).page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 100})
    page.until("token", index=0)
    page.send_message("update", id="a", params={"temperature": 0.5})
    page.send_message("update", id="a", params={"temperature": 99})
    page.send_message("update", id="a", params={"top_k": 5})
    seen: dict[str, Any] = {}
    while not ("error" in seen and seen.get("updated", {}).get("params", {}).get("top_k") == 5):
        message = page.next()
        kind = message.get("event", message)["type"]
        seen[kind] = message.get("event", message)
    assert (seen["error"]["param"], seen["error"]["id"]) == ("temperature", "a")
    assert seen["updated"]["params"]["temperature"] == 0.5
    page.send_message("stop", id="a")
    assert page.until("done")["reason"] == "cancelled"


def test_stop_keeps_what_was_written(start_site: StartSite) -> None:
    page = start_site(delay=0.01).page()
    page.send_message("generate", id="a", prompt="Once", params={**GREEDY, "max_tokens": 400})
    page.until("token", index=4)
    page.send_message("stop", id="a")
    done = page.until("done")
    assert done["reason"] == "cancelled"
    assert 5 <= done["completion_tokens"] < 100
    assert_whole(page, "a")
    assert STORY.startswith(page.text("a"))


BAD_MESSAGES = {
    "not json": "hello",
    "truncated": '{"type":"generate","id":"b","prom',
    "empty": "",
    "array": "[]",
    "null": "null",
    "no type": '{"id":"b"}',
    "unknown type": '{"type":"explode"}',
    "type of the server": '{"type":"hello","version":1}',
    "unknown field": '{"type":"stop","id":"b","force":true}',
    "wrong type": '{"type":"generate","id":"b","prompt":5}',
    "text for a number": '{"type":"generate","id":"b","prompt":"a","params":{"top_p":"1"}}',
    "NaN": '{"type":"generate","id":"b","prompt":"a","params":{"temperature":NaN}}',
    "infinity": '{"type":"generate","id":"b","prompt":"a","params":{"temperature":1e999}}',
    "id with a slash": '{"type":"generate","id":"../b","prompt":"a"}',
    "id too long": json.dumps({"type": "generate", "id": "b" * 65, "prompt": "a"}),
    "deep": '{"type":"generate","id":"b","prompt":"a","params":' + "[" * 5000,
    "half a character": '{"type":"generate","id":"b","prompt":"\\ud83d"}',
    "binary": b'{"type":"stop","id":"a"}',
    "too large": json.dumps({"type": "generate", "id": "b", "prompt": "x" * MESSAGE_BYTES}),
    "too large in bytes": json.dumps(
        {"type": "generate", "id": "b", "prompt": "é" * (MESSAGE_BYTES // 2)},
        ensure_ascii=False,
    ),
}


@pytest.mark.parametrize("bad", BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
def test_a_bad_message_is_answered_and_all_else_goes_on(site: Site, bad: str | bytes) -> None:
    page = site.page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 20})
    page.send(bad)
    page.send_message("count", request=7, prompt="Once")
    page.until("counted", request=7)
    page.until("done", id="a") if not _has(page, "done") else None
    errors = [m for m in page.messages if m["type"] == "error"]
    assert [e["code"] for e in errors] == ["bad_message"]
    assert len(errors[0]["message"]) > 20
    assert_whole(page, "a")


def _has(page: PageClient, kind: str) -> bool:
    return any(m.get("event", {}).get("type") == kind for m in page.messages)


INVALID = "invalid_request"
USER = {"role": "user", "content": "a"}
BAD_REQUESTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "negative temperature": (
        {"prompt": "a", "params": {"temperature": -1}},
        INVALID,
        "temperature",
    ),
    "huge seed": ({"prompt": "a", "params": {"seed": 2**64}}, INVALID, "seed"),
    "no tokens": ({"prompt": "a", "params": {"max_tokens": 0}}, INVALID, "max_tokens"),
    "empty stop": ({"prompt": "a", "params": {"stop": [""]}}, INVALID, "stop"),
    "no prompt": ({}, INVALID, "prompt"),
    "two prompts": ({"prompt": "a", "ids": [1]}, INVALID, "prompt"),
    "no ids": ({"ids": []}, INVALID, "ids"),
    "what was before, without ids": (
        {"prompt": "a", "reached": [{"first": 0, "reach": {}}]},
        INVALID,
        "reached",
    ),
    "what was before, too late": (
        {"ids": [1, 2], "reached": [{"first": 1, "reach": {}}]},
        INVALID,
        "reached",
    ),
    "what was before, of another model": (
        {"ids": [1, 2], "reached": [{"first": 0, "reach": {"mlp": [{"layer": 99, "factor": 0}]}}]},
        INVALID,
        "reached.mlp",
    ),
    "id outside the vocabulary": ({"ids": [1, 10**6]}, INVALID, "prompt"),
    "negative id": ({"ids": [-1]}, INVALID, "prompt"),
    "no messages": ({"messages": []}, INVALID, "messages"),
    "continue a user": ({"messages": [USER], "continue_final": True}, INVALID, "messages"),
    "continue a prompt": ({"prompt": "a", "continue_final": True}, INVALID, "continue_final"),
    "too long": ({"prompt": "🦊" * 200}, "context_exceeded", ""),
    "truncate a prompt": ({"prompt": "a", "truncation": "auto"}, INVALID, "truncation"),
    "truncate ids": ({"ids": [1], "truncation": "auto"}, INVALID, "truncation"),
    "unknown truncation": (
        {"messages": [USER], "truncation": "middle"},
        "bad_message",
        "truncation",
    ),
    "a message that is too long": (
        {"messages": [{**USER, "content": "🦊" * 200}], "truncation": "auto"},
        "context_exceeded",
        "",
    ),
}


@pytest.mark.parametrize(("fields", "code", "param"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_bad_request_names_the_field(
    site: Site, fields: dict[str, Any], code: str, param: str
) -> None:
    page = site.page()
    page.send_message("generate", id="a", **fields)
    error = page.until("error")
    assert (error["code"], error["param"], error["id"]) == (code, param, "a")
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 2})
    assert page.until("done")["reason"] == "length", "the id of a refused request is free again"


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(site: Site) -> None:
    page = site.page()
    turn = [{"role": "user", "content": "🦊" * 30}, {"role": "assistant", "content": "🦊" * 10}]
    messages = [{"role": "system", "content": "Hi"}, *turn, *turn, *turn, *turn, USER]
    params = {"max_tokens": 3}
    page.send_message("generate", id="a", messages=messages, params=params)
    assert page.until("error")["code"] == "context_exceeded", "unless asked, nothing is left out"
    page.send_message("generate", id="a", messages=messages, params=params, truncation="auto")
    accepted = page.until("accepted", id="a")
    assert accepted["dropped"] == [1, 2, 3, 4]
    rest = [messages[0], *messages[5:]]
    page.send_message("generate", id="b", messages=rest, params=params, truncation="auto")
    whole = page.until("accepted", id="b")
    assert (whole["prompt"], whole["dropped"]) == (accepted["prompt"], [])


def test_an_id_is_used_once(start_site: StartSite) -> None:
    page = start_site(delay=0.01).page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 30})
    page.send_message("generate", id="a", prompt="Twice")
    error = page.until("error")
    assert (error["code"], error["param"]) == ("invalid_request", "id")
    page.until("done")
    assert_whole(page, "a")


def test_count_is_what_generate_counts(site: Site) -> None:
    page = site.page()
    messages = [{"role": "user", "content": "A café, please 🦊"}]
    page.send_message("count", request=1, prompt="Once upon a time")
    page.send_message("count", request=2, messages=messages)
    counted = [page.until("counted")["tokens"] for _ in range(2)]
    page.send_message("generate", id="a", prompt="Once upon a time", params={"max_tokens": 1})
    page.send_message("generate", id="b", messages=messages, params={"max_tokens": 1})
    done = {m["id"]: m["prompt_tokens"] for m in (page.until("done"), page.until("done"))}
    assert [done["a"], done["b"]] == counted


def test_a_lost_connection_resumes_without_loss_or_repeat(start_site: StartSite) -> None:
    site = start_site(delay=0.005)
    cookie = site.cookie()
    page = site.page(cookie=cookie)
    page.send_message("generate", id="a", prompt="Once", params={**GREEDY, "max_tokens": 120})
    for index in (20, 50, 80):
        page.until("token", index=index)
        page.drop()
        before = list(page.events("a"))
        time.sleep(0.05)
        page = site.page(cookie=cookie)
        page.messages[:0] = before
        page.send_message("resume", id="a", after=before[-1]["seq"])
    assert page.until("done")["completion_tokens"] == 120
    assert_whole(page, "a")
    assert STORY.startswith(page.text("a"))


def test_a_reloaded_page_gets_a_finished_generation_again(site: Site) -> None:
    cookie = site.cookie()
    page = site.page(cookie=cookie)
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 20})
    page.until("done")
    again = site.page(cookie=cookie)
    again.send_message("resume", id="a")
    again.until("done")
    assert list(again.events("a")) == list(page.events("a"))


@pytest.mark.parametrize("after", [-1, 10**9])
def test_resume_after_a_message_that_was_never_sent_is_refused(site: Site, after: int) -> None:
    page = site.page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 2})
    page.until("done")
    page.send_message("resume", id="a", after=after)
    assert page.until("error")["param"] == "after"


def test_two_tabs_of_one_browser_follow_the_same_generation(start_site: StartSite) -> None:
    site = start_site(delay=0.01)
    cookie = site.cookie()
    first, second = site.page(cookie=cookie), site.page(cookie=cookie)
    first.send_message("generate", id="a", prompt="Once", params={"max_tokens": 40})
    first.until("token", index=3)
    second.send_message("resume", id="a")
    second.send_message("generate", id="b", prompt="Once", params={"max_tokens": 10})
    first.until("done", id="a")
    second.until("done", id="a")
    assert_whole(first, "a")
    assert_whole(second, "a")
    assert list(first.events("a")) == list(second.events("a"))
    assert not list(first.events("b")), "a tab gets only what it started or asked for"


@pytest.mark.parametrize("type", ["stop", "update", "resume"])
def test_another_browser_cannot_touch_a_generation(start_site: StartSite, type: str) -> None:
    site = start_site(delay=0.01)
    owner, stranger = site.page(cookie=site.cookie()), site.page(cookie=site.cookie())
    owner.send_message("generate", id="a", prompt="Once", params={"max_tokens": 30})
    owner.until("token", index=0)
    stranger.send_message(type, id="a")
    assert stranger.until("error")["code"] == "unknown_generation"
    assert owner.until("done")["reason"] == "length"
    assert not list(stranger.events("a"))


def test_without_a_cookie_a_generation_is_its_connections_alone(site: Site) -> None:
    page, other = site.page(), site.page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 3})
    page.until("done")
    other.send_message("resume", id="a")
    assert other.until("error")["code"] == "unknown_generation"


def test_a_forged_cookie_gives_no_session(site: Site) -> None:
    cookie = site.cookie()
    page = site.page(cookie=cookie)
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 3})
    page.until("done")
    forged = site.page(cookie=cookie[:-1] + ("0" if cookie[-1] != "0" else "1"))
    forged.send_message("resume", id="a")
    assert forged.until("error")["code"] == "unknown_generation"


def test_a_page_that_stays_away_lets_its_generation_go(start_site: StartSite) -> None:
    site = start_site(context=ENDLESS, retention=Retention(away_seconds=0.2))
    cookie = site.cookie()
    page = site.page(cookie=cookie)
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": ENDLESS})
    page.until("token", index=1)
    page.drop()
    wait_until(lambda: all(run.finished_at for run in _runs(site)))
    again = site.page(cookie=cookie)
    again.send_message("resume", id="a")
    done = again.until("done")
    assert done["reason"] == "cancelled"
    assert done["completion_tokens"] > 2


def test_a_page_that_comes_back_in_time_keeps_its_generation(start_site: StartSite) -> None:
    site = start_site(delay=0.02, retention=Retention(away_seconds=1.5))
    cookie = site.cookie()
    page = site.page(cookie=cookie)
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 110})
    page.until("token", index=1)
    page.drop()
    time.sleep(0.1)
    again = site.page(cookie=cookie)
    again.send_message("resume", id="a")
    assert again.until("done")["reason"] == "length"
    assert_whole(again, "a")


def test_a_slow_page_loses_statistics_and_never_text(start_site: StartSite) -> None:
    site = start_site(delay=0.0, n_layers=32, n_heads=32, context=1024)
    page = PageClient(site.port, thread_class=LateReader)
    site.pages.append(page)
    page.send_message("generate", id="slow", prompt="Once", params={**GREEDY, "max_tokens": N_SLOW})
    fast = site.page()
    fast.send_message("generate", id="fast", prompt="Once", params={"max_tokens": 50})
    fast.until("done", timeout=30)
    deadline = time.monotonic() + 40
    while not all(run.finished_at for run in _runs(site)) and time.monotonic() < deadline:
        time.sleep(0.05)
    page.thread.start_reading()
    page.until("done", timeout=30)
    assert_whole(page, "slow")
    tokens = [m["event"] for m in page.events("slow") if m["event"]["type"] == "token"]
    assert len(tokens) == N_SLOW
    bare = [token["index"] for token in tokens if token["stats"] is None]
    assert bare, "the page was never behind; the test proves nothing"
    assert max(bare) < N_SLOW - STATS_BACKLOG + 1, "statistics come again once it has caught up"


def _runs(site: Site) -> list[Any]:
    return list(site.app.extensions["tokenglass_sessions"]._generations.values())


def test_requests_beyond_the_slots_wait_and_know_their_place(start_site: StartSite) -> None:
    page = start_site(n_slots=1, queue=4, context=ENDLESS).page()
    for id, n in (("a", ENDLESS), ("b", 40), ("c", 40)):
        page.send_message("generate", id=id, prompt="Once", params={"max_tokens": n})
    page.send_message("generate", id="d", prompt="Once")
    assert page.until("error", id="d")["code"] == "queue_full"
    page.send_message("stop", id="a")
    for id in ("a", "b", "c"):
        page.until("done", id=id, timeout=20)
    positions = {
        id: [m["event"]["position"] for m in page.events(id) if "position" in m["event"]]
        for id in ("a", "b", "c")
    }
    assert positions == {"a": [0], "b": [1, 0], "c": [2, 1, 0]}


def test_nothing_follows_the_last_frame(start_site: StartSite) -> None:
    """Not the page that flask-sock answers a request with, which browsers take for a broken frame.
    The server may also end the line without one, when it was writing."""
    port = start_site(delay=0.001).port
    n_closed = 0
    for id in ("a", "b", "c", "d"):
        ws = WSConnection(ConnectionType.CLIENT)
        origin = [(b"Origin", f"http://127.0.0.1:{port}".encode())]
        told = json.dumps({"type": "generate", "id": id, "prompt": "Once", "params": GREEDY})
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(ws.send(Request(f"127.0.0.1:{port}", "/ws", extra_headers=origin)))
            _read(sock, ws, AcceptConnection)
            sock.sendall(ws.send(TextMessage(told)))
            assert _read(sock, ws, TextMessage, least=500)
            sock.sendall(ws.send(CloseConnection(3001, "cut")))
            n_closed += _read(sock, ws, CloseConnection)
            assert sock.recv(200) == b""
    assert n_closed


def _read(sock: socket.socket, ws: WSConnection, kind: type[Event], least: int = 1) -> bool:
    """Read byte by byte, so that nothing after them is lost, until `least` events of a kind came
    (in text every byte is an event). False if the connection ended before."""
    while least > 0:
        byte = sock.recv(1)
        if not byte:
            return False
        ws.receive_data(byte)
        least -= sum(isinstance(event, kind) for event in ws.events())
    return True


def test_a_flood_that_is_not_read_is_cut_off(site: Site) -> None:
    page = PageClient(site.port, thread_class=LateReader)
    site.pages.append(page)
    deadline = time.monotonic() + 15
    with pytest.raises((ConnectionClosed, OSError)):  # noqa: PT012
        while time.monotonic() < deadline:
            page.send("{")
    other = site.page()
    other.send_message("generate", id="a", prompt="Once", params={"max_tokens": 2})
    other.until("done")


def test_pages_beyond_the_limit_are_refused(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ws.page_connection.MAX_PAGES", 2)
    site = start_site()
    first, _ = site.page(), site.page(cookie=site.cookie())
    assert _closed_at_once(site) == CloseReason.TRY_AGAIN_LATER
    first.drop()
    deadline = time.monotonic() + 5
    while _closed_at_once(site) is not None:
        assert time.monotonic() < deadline, "a page that left still counts"
        time.sleep(0.05)


def test_one_browser_leaves_some_of_the_pages_to_others(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ws.page_connection.MAX_PAGES", 4)
    site = start_site()
    for _ in range(3):
        site.page()
    assert _closed_at_once(site) == CloseReason.TRY_AGAIN_LATER
    assert site.page(cookie=site.cookie()).messages


def _closed_at_once(site: Site) -> int | None:
    """Return the code with which the server closes a new connection; None if it greets it."""
    while True:
        with suppress(HandshakeFailed):  # its close came in one piece with the handshake
            page = PageClient(site.port)
            try:
                page.until("hello", timeout=5)
            except ConnectionClosed as closed:
                return int(closed.reason)
            page.drop()
            return None
