"""Requests to the /v1 routes and what they must answer with."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient

from app.engine_client import OnEvent, Run
from gpu import PaceChange, Request
from gpu.pace import LEAST_PACE
from tests.app.conftest import Site

GREEDY = {"temperature": 0}
HELLO = [{"role": "user", "content": "Tell me a story."}]


def complete(client: FlaskClient, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"prompt": "Once", **fields})
    assert response.status_code == 200, response.text
    assert response.json is not None
    return response.json


def chat(client: FlaskClient, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    assert response.json is not None
    return response.json


def chunks(text: str) -> list[dict[str, Any]]:
    """The messages of a stream, which must end with [DONE]."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def hold_next_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Have the site's next run wait after its first token; return what has it go on."""
    runs: list[Run] = []
    submit = site.engine.submit

    def submit_held(request: Request, on_event: OnEvent) -> Run:
        pace = request.pace if runs else LEAST_PACE
        runs.append(submit(msgspec.structs.replace(request, pace=pace), on_event))
        return runs[-1]

    monkeypatch.setattr(site.engine, "submit", submit_held)
    return lambda: runs[0].update(pace=PaceChange(None))


def http_client(site: Site) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", site.port)
