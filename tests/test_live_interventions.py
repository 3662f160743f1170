"""Interventions as the page uses them: over the socket, in the engine's process, on the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.app.page import PageClient
from tests.serving import serving

pytestmark = pytest.mark.parity

PROMPT = "Once upon a time there was a fox who"
STEERED = {
    "mlp": [{"layer": 1, "factor": 0.5}],
    "steer": [{"layer": 2, "toward": "the sea", "away": "the wood", "strength": 1.0}],
    "patch": [{"layer": 1, "position": 4, "prompt": "There lived a bear", "token": 2}],
}
OFF = {"heads": [{"layer": 0, "head": head, "factor": 0} for head in range(2)]}


@pytest.fixture(scope="module")
def player() -> Iterator[PageClient]:
    with serving("--context", "256") as url:
        found = re.search(r":(\d+)/", url)
        assert found
        opened = PageClient(int(found.group(1)))
        opened.until("hello", timeout=60)
        yield opened
        opened.drop()


def write(page: PageClient, id: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the tokens of a generation."""
    params = {"temperature": 0.7, "seed": 11, "max_tokens": 40, "ignore_eos": True}
    page.send_message("generate", id=id, prompt=PROMPT, params=params, **fields)
    page.until("done", id=id, timeout=60)
    return tokens(page, id)


def tokens(page: PageClient, id: str) -> list[dict[str, Any]]:
    return [m["event"] for m in page.events(id) if m["event"]["type"] == "token"]


def event(page: PageClient, id: str, type: str) -> dict[str, Any]:
    found: dict[str, Any] = next(m["event"] for m in page.events(id) if m["event"]["type"] == type)
    return found


@pytest.mark.ci
def test_a_live_change_is_reported_inspected_repeated_and_undone(player: PageClient) -> None:
    plain = write(player, "plain")
    params = {"temperature": 0.7, "seed": 11, "max_tokens": 40, "ignore_eos": True}
    player.send_message("generate", id="live", prompt=PROMPT, params=params, reach=STEERED)
    player.until("token", timeout=60, index=5)
    player.send_message("update", id="live", reach=OFF)
    player.until("done", id="live", timeout=60)
    live = tokens(player, "live")
    updated = event(player, "live", "updated")
    assert updated["reach"] == OFF
    assert [t["id"] for t in live] != [t["id"] for t in plain]

    prompt = [t["id"] for t in event(player, "live", "accepted")["prompt"]]
    ids, last = prompt + [t["id"] for t in live], len(prompt) - 1
    bare = {name: STEERED[name] for name in ("mlp", "patch")}
    reached = [
        {"first": 0, "reach": bare},
        {"first": last, "reach": STEERED},
        {"first": last + updated["index"], "reach": OFF},
    ]
    question = {"kind": "losses", "ids": ids, "first": last, "reached": reached}
    player.send_message("inspect", request=1, question=question)
    answer = player.until("answer", request=1, timeout=60)
    told = [t["logprob"] for t in live]
    np.testing.assert_allclose(answer["arrays"]["logprob"], told, atol=1e-5)

    changes = [{"index": updated["index"], "reach": OFF}]
    again = write(player, "again", reach=STEERED, changes=changes)
    assert [(t["id"], t["logprob"]) for t in again] == [(t["id"], t["logprob"]) for t in live]
    reset = write(player, "reset")
    assert [(t["id"], t["logprob"]) for t in reset] == [(t["id"], t["logprob"]) for t in plain]


@pytest.mark.ci
def test_impossible_interventions_are_refused(player: PageClient) -> None:
    player.send_message(
        "generate", id="bad", prompt=PROMPT, reach={"mlp": [{"layer": 99, "factor": 0}]}
    )
    refused = player.until("error", id="bad")
    assert (refused["code"], refused["param"]) == ("invalid_request", "reach.mlp")
    question = {
        "kind": "attention_from",
        "ids": [1, 2],
        "position": 1,
        "reached": [{"first": 0, "reach": {"heads": [{"layer": 0, "head": 99, "factor": 0}]}}],
    }
    player.send_message("inspect", request=2, question=question)
    refused = player.until("error", request=2)
    assert (refused["code"], refused["param"]) == ("invalid_request", "reached.heads")
