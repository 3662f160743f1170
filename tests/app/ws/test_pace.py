"""The pace of a generation, over the socket and through the engine's process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import StartSite
from tests.app.page import PageClient

IDS = [5, 6, 7]
PARAMS = {"temperature": 1.5, "seed": 5, "max_tokens": 12}


def start(page: PageClient, id: str, **fields: Any) -> None:
    page.send_message("generate", id=id, ids=IDS, params=PARAMS, **fields)


def written(page: PageClient, id: str) -> list[int]:
    return [m["event"]["id"] for m in page.events(id) if m["event"]["type"] == "token"]


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_a_text_is_written_press_by_press(start_site: StartSite, process: bool) -> None:
    page = start_site(process=process).page()
    start(page, "plain")
    page.until("done", id="plain")
    start(page, "paused", pace=0)
    page.until("preview", id="paused", index=0)
    page.send_message("update", id="paused", steps=1)
    page.until("token", index=0)
    shown = page.until("preview", id="paused", index=1)["event"]
    page.send_message("update", id="paused", params={"temperature": 0.0})
    page.until("updated", id="paused", index=1)
    shown = page.until("preview", id="paused", index=1)["event"]
    assert shown["n_kept"] == 1
    page.send_message("update", id="paused", params={"temperature": 1.5})
    shown = page.until("preview", id="paused", index=1)["event"]
    page.send_message("update", id="paused", steps=1)
    token = page.until("token", index=1)["event"]
    assert [token[name] for name in ("candidates", "mass")] == [
        shown[name] for name in ("candidates", "mass")
    ]
    assert token["times"]["paced"] > 0
    page.send_message("update", id="paused", pace=500)
    told = page.until("updated", id="paused", pace=500.0)["event"]
    assert told["index"] == 2
    page.send_message("update", id="paused", pace=None)
    page.until("updated", id="paused", pace=None)
    done = page.until("done", id="paused")["event"]
    times = [m["event"]["times"] for m in page.events("paused") if m["event"]["type"] == "token"]
    waited = [each.get("paced", 0.0) for each in times]
    assert done["timings"]["paced_ms"] == pytest.approx(sum(waited))
    work = [each["interval"] - paced for each, paced in zip(times, waited, strict=True)]
    assert done["timings"]["predicted_ms"] == pytest.approx(sum(work[1:]))
    assert written(page, "paused") == written(page, "plain")


@pytest.mark.parametrize("pace", [-1, 0.001, 1e300])
def test_a_pace_out_of_range_is_refused(start_site: StartSite, pace: float) -> None:
    page = start_site().page()
    start(page, "a", pace=pace)
    assert page.until("error", id="a")["param"] == "pace"
    start(page, "b", pace=0)
    page.until("preview", id="b")
    page.send_message("update", id="b", pace=pace)
    assert page.until("error", id="b")["param"] == "pace"


def test_only_a_paused_text_is_stepped(start_site: StartSite) -> None:
    page = start_site(delay=0.02).page()
    start(page, "a")
    page.send_message("update", id="a", steps=1)
    error = page.until("error", id="a")
    assert (error["param"], "not paused" in error["message"]) == ("steps", True)
    page.until("done", id="a")
