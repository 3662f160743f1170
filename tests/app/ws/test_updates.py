"""Scheduled changes in `generate`, over the socket and through the engine's process, act or are
refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import StartSite
from tests.app.page import PageClient

IDS = [5, 6, 7]
CHANGES = [
    {"index": 6, "params": {"temperature": 0}},
    {"index": 9, "params": {"temperature": 3.0, "top_k": 9}, "capture": False},
]


def generate(page: PageClient, id: str, **fields: Any) -> dict[str, Any]:
    params = {"temperature": 1.5, "seed": 5, "max_tokens": 24}
    page.send_message("generate", id=id, ids=IDS, params=params, **fields)
    return page.until("done", id=id)


def of_type(page: PageClient, id: str, type: str) -> list[dict[str, Any]]:
    return [m["event"] for m in page.events(id) if m["event"]["type"] == type]


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_scheduled_changes_act_and_are_acknowledged(start_site: StartSite, process: bool) -> None:
    page = start_site(process=process).page()
    generate(page, "plain")
    generate(page, "changed", changes=CHANGES)
    updated = of_type(page, "changed", "updated")
    assert [(u["index"], u["params"]["temperature"], u["capture"]) for u in updated] == [
        (6, 0.0, True),
        (9, 3.0, False),
    ]
    tokens, plain = of_type(page, "changed", "token"), of_type(page, "plain", "token")
    assert [t["id"] for t in tokens[:6]] == [t["id"] for t in plain[:6]]
    assert [t["n_kept"] for t in tokens[6:9]] == [1, 1, 1]
    assert [bool(t["stats"]) for t in tokens] == [True] * 9 + [False] * 15


def test_what_was_changed_live_is_written_again(start_site: StartSite) -> None:
    """A page replays a file this way: with the indexes of `updated` in the next request."""
    page = start_site(delay=0.005).page()
    params = {"temperature": 1.5, "seed": 5, "max_tokens": 40}
    page.send_message("generate", id="live", ids=IDS, params=params)
    page.until("token", index=8)
    page.send_message("update", id="live", params={"temperature": 0.2, "top_k": 3})
    page.until("updated", id="live")
    page.send_message("update", id="live", params={"max_tokens": 60})
    page.until("done", id="live")
    live = of_type(page, "live", "updated")
    fields = ("temperature", "top_k", "max_tokens")
    changes = [
        {"index": u["index"], "params": {name: u["params"][name] for name in fields}} for u in live
    ]
    page.send_message("generate", id="again", ids=IDS, params=params, changes=changes)
    page.until("done", id="again")
    ids = [[t["id"] for t in of_type(page, id, "token")] for id in ("live", "again")]
    assert len(ids[0]) == 60
    assert ids[0] == ids[1]
    assert [u["index"] for u in of_type(page, "again", "updated")] == [u["index"] for u in live]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"index": 1}, "Expected `array`, got `object`"),
        ([{"params": {}}], "missing required field `index`"),
        ([{"index": "1"}], "Expected `int`, got `str`"),
        ([{"index": 1.5}], "Expected `int`, got `float`"),
        ([{"index": 1, "params": {"temperature": "hot"}}], "got `str`"),
        ([{"index": 1, "params": {"top_k": None}}], "got `null`"),
        ([{"index": 1, "at": 2}], "unknown field `at`"),
        ([{"index": -1}], "must be 0 or more"),
        ([{"index": 2}, {"index": 1}], "must be 2 or more"),
        ([{"index": 1, "params": {"seed": 3}}], "seed cannot change"),
        ([{"index": 1, "params": {"heat": 3}}], "heat cannot change"),
        ([{"index": 1, "params": {"top_p": 1.01}}], "top_p must be a number from 0 to 1"),
    ],
)
def test_bad_changes_are_refused_by_name(
    start_site: StartSite, changes: object, words: str
) -> None:
    page = start_site().page()
    page.send_message("generate", id="a", ids=IDS, changes=changes)
    error = page.until("error")
    assert words in error["message"]
    assert error["id"] == "a"
    assert error["param"].startswith("changes")
    generate(page, "a")  # nothing was started under this id
