"""Clients that go away while they wait, and clients whose prompt takes long, on real sockets."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest

from tests.app.conftest import Site, StartSite, wait_until_load_is

LONG = {"prompt": "Once", "max_tokens": 480}


def ask(site: Site, route: str = "completions", **fields: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("POST", f"/v1/{route}", json.dumps(fields))
    return connection


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("completions", {**LONG, "stream": True}),
        ("completions", LONG),
        ("responses", {"input": "Hi", "max_output_tokens": 480, "ignore_eos": True}),
    ],
    ids=["stream", "whole", "response"],
)
def test_a_client_that_leaves_frees_its_slot_and_its_place_in_the_queue(
    start_site: StartSite, route: str, body: dict[str, Any]
) -> None:
    site = start_site(delay=0.1, n_slots=1, queue=2)  # 48 seconds for one text
    first = ask(site, route, **body)
    wait_until_load_is(site, 1, 0)
    second = ask(site, route, **body)
    wait_until_load_is(site, 1, 1)
    second.close()
    wait_until_load_is(site, 1, 0)
    first.close()
    wait_until_load_is(site, 0, 0)


@pytest.mark.parametrize(
    ("route", "body"),
    [("completions", LONG), ("embeddings", {"input": ["Once"] * 100})],
    ids=["completion", "embeddings"],
)
def test_a_client_that_closes_only_its_own_side_is_told_so(
    start_site: StartSite, route: str, body: dict[str, Any]
) -> None:
    """As nginx, uvicorn and llama-server do, it counts as gone."""
    site = start_site(delay=0.1)
    connection = ask(site, route, **body)
    connection.sock.shutdown(socket.SHUT_WR)
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    assert (response.status, error["code"]) == (499, "client_closed_request")
    wait_until_load_is(site, 0, 0)


@pytest.mark.parametrize(
    ("route", "body", "first"),
    [
        ("completions", {"prompt": [5] * 480, "max_tokens": 1}, "text_completion"),
        ("responses", {"input": "Once upon a time " * 55, "max_output_tokens": 1}, "text.delta"),
    ],
    ids=["completion", "response"],
)
def test_a_stream_is_kept_alive_while_a_long_prompt_is_read(
    start_site: StartSite,
    monkeypatch: pytest.MonkeyPatch,
    route: str,
    body: dict[str, Any],
    first: str,
) -> None:
    """`first` is in the first chunk that has text. The engine tells of each part of the prompt."""
    monkeypatch.setattr("app.openai.choices.PING_SECONDS", 0.05)
    site = start_site(delay=0.03)  # 15 chunks
    text = ask(site, route, **body, stream=True).getresponse().read().decode()
    assert text[: text.index(first)].count(": still here\n\n") >= 3
