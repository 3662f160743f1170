"""Interventions over the socket act in `generate`, `update` and scheduled changes, or are
refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.app.conftest import StartSite
from tests.app.fake_options import ENDLESS
from tests.app.fake_run import FakeRun
from tests.app.page import PATIENCE_S, PageClient

IDS = [5, 6, 7]
HEAD_OFF = {"heads": [{"layer": 0, "head": 3, "factor": 0.0}]}
STEERED = {"steer": [{"layer": 4, "toward": "a", "strength": 1.5, "away": "b"}]}
PATCHED = {"patch": [{"layer": 1, "position": 2, "prompt": "a b", "token": 0}]}


def updated(page: PageClient, id: str) -> list[dict[str, Any]]:
    return [m["event"] for m in page.events(id) if m["event"]["type"] == "updated"]


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_interventions_are_acknowledged_in_full_and_only_if_sent(
    start_site: StartSite, process: bool
) -> None:
    page = start_site(process=process, context=ENDLESS).page()
    page.send_message(
        "generate", id="a", ids=IDS, params={"max_tokens": ENDLESS}, reach=STEERED | PATCHED
    )
    page.until("token")
    for fields in (
        {"reach": HEAD_OFF | PATCHED},
        {"params": {"temperature": 0.5}},
        {"reach": {}},
    ):
        before = len(updated(page, "a"))
        page.send_message("update", id="a", **fields)
        while len(updated(page, "a")) == before:
            page.until("updated", id="a")
    page.send_message("stop", id="a")
    page.until("done", id="a")
    told = updated(page, "a")
    assert [event.get("reach") for event in told] == [HEAD_OFF | PATCHED, None, {}]
    assert "reach" not in told[1]


def test_scheduled_changes_are_acknowledged_like_live_ones(start_site: StartSite) -> None:
    page = start_site().page()
    changes = [{"index": 3, "reach": HEAD_OFF}, {"index": 5, "params": {"top_k": 5}}]
    page.send_message("generate", id="a", ids=IDS, params={"max_tokens": 12}, changes=changes)
    page.until("done", id="a")
    told = updated(page, "a")
    assert [(event["index"], event.get("reach")) for event in told] == [(3, HEAD_OFF), (5, None)]


BAD: list[tuple[object, str, str]] = [
    (5, "reach", "got `int`"),
    ({"head": []}, "reach", "unknown field `head`"),
    ({"heads": [{"layer": 0, "head": 0}]}, "reach.heads", "missing required field `factor`"),
    ({"heads": [{"layer": 0, "head": 0, "factor": None}]}, "reach.heads", "got `null`"),
    ({"heads": [{"layer": 8, "head": 0, "factor": 0}]}, "reach.heads", "layer must be"),
    ({"heads": [{"layer": 0, "head": 8, "factor": 0}]}, "reach.heads", "head must be"),
    ({"mlp": [{"layer": 0, "factor": 9}]}, "reach.mlp", "factor must be a number from -8 to 8"),
    ({"steer": [{"layer": 0, "toward": "a", "strength": 17}]}, "reach.steer", "strength must be"),
    (
        {"steer": [{"layer": 0, "toward": "a " * 300, "strength": 1}]},
        "reach.steer",
        "toward must have 1 to 256 tokens",
    ),
    (
        {"patch": [{"layer": 0, "position": 0, "prompt": "a", "token": 900}]},
        "reach.patch",
        "token must be from 0 to",
    ),
]


@pytest.mark.parametrize(("bad", "param", "words"), BAD)
def test_impossible_interventions_are_refused_and_change_nothing(
    start_site: StartSite, bad: object, param: str, words: str
) -> None:
    page = start_site(context=ENDLESS).page()
    page.send_message("generate", id="bad", ids=IDS, reach=bad)
    refused = page.until("error", id="bad")
    assert words in refused["message"]
    assert refused["param"].startswith(param)
    params = {"max_tokens": ENDLESS}
    page.send_message("generate", id="bad", ids=IDS, params=params)  # nothing had begun
    page.until("token")
    page.send_message("update", id="bad", reach=bad, params={"temperature": 0.25})
    refused = page.until("error", id="bad")
    assert words in refused["message"]
    page.send_message("stop", id="bad")
    page.until("done", id="bad")
    assert updated(page, "bad") == []


def test_a_patch_outside_of_the_prompt_is_refused(start_site: StartSite) -> None:
    page = start_site().page()
    outside = {"patch": [PATCHED["patch"][0] | {"position": len(IDS)}]}
    page.send_message("generate", id="a", ids=IDS, reach=outside)
    refused = page.until("error", id="a")
    assert refused["code"] == "invalid_request"
    assert refused["param"] == "reach.patch"
    assert "position must be from 0 to 2" in refused["message"]


def test_a_run_is_stopped_while_its_update_is_computed(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_compute, update = threading.Event(), FakeRun.update

    def update_late(self: FakeRun, **changes: Any) -> int:
        if changes["interventions"] is not None:
            assert may_compute.wait(PATIENCE_S)
        return update(self, **changes)

    monkeypatch.setattr(FakeRun, "update", update_late)
    page = start_site(context=ENDLESS).page()
    page.send_message("generate", id="a", ids=IDS, params={"max_tokens": ENDLESS})
    page.until("token")
    page.send_message("update", id="a", reach=HEAD_OFF)
    page.send_message("update", id="a", params={"top_k": 5})
    page.send_message("stop", id="a")
    assert page.until("done", id="a")["reason"] == "cancelled"
    may_compute.set()
    page.send_message("generate", id="b", ids=IDS, params={"max_tokens": ENDLESS})
    page.send_message("update", id="b", params={"top_k": 6})
    page.until("updated", id="b")
    page.send_message("stop", id="b")
    page.until("done", id="b")
    assert [message for message in page.messages if message["type"] == "error"] == []


def test_refused_interventions_do_not_discard_settings_merged_with_them(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ws.incoming.UPDATE_SECONDS", 0.5)  # all but the first are merged
    page = start_site(delay=0.01).page()
    page.send_message("generate", id="a", ids=IDS, params={"max_tokens": 400})
    page.until("token")
    for fields in (
        {"params": {"temperature": 0.5}},
        {"params": {"top_k": 5}},
        {"reach": HEAD_OFF},
        {"reach": {"mlp": [{"layer": 99, "factor": 0.0}]}},
    ):
        page.send_message("update", id="a", **fields)
    assert page.until("error", id="a")["param"] == "reach.mlp"
    page.send_message("stop", id="a")
    page.until("done", id="a")
    told = [(event["params"]["top_k"], event.get("reach")) for event in updated(page, "a")]
    assert told[1:] == [(5, None), (5, HEAD_OFF)]
