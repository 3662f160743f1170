"""The arithmetic behind the timeline and the files, called in the browser it runs in."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.quick

Call = Callable[..., Any]

MEASURE = """async ([segment, tokens, inFlight]) =>
  (await import("/static/js/look/timeline/spans.js")).measure(segment, tokens, inFlight)"""


def chunk(received: float, passed: float) -> dict[str, Any]:
    times = {"ms": 6.0, "gpuMs": 4.0, "receivedAt": received, "passedAt": passed}
    return {"done": 8, "reused": 0, **times}


def segment(**fields: Any) -> dict[str, Any]:
    known = {"sentAt": 1000.0, "preparedMs": 4.0, "timings": {"queue_ms": 2.0}}
    return {**known, "chunks": [chunk(1033.0, 26.0)], **fields}


def token(interval: float, passed: float, received: float, drawn: float) -> dict[str, Any]:
    times = {"interval": interval, "gpu": 3.0, "encode": 0.5, "wait": 2.0, "read": 0.25}
    return {"times": times, "passedAt": passed, "receivedAt": received, "drawnAt": drawn}


TOKENS = [
    token(10.0, 24.0, 1030.0, 1036.0),
    token(5.0, 28.0, 1033.0, 1036.0),
    token(5.0, 34.0, 1040.0, 1041.0),
]
"""Read 10, 15 and 20 ms after the engine took the request. To the server the second came fastest,
at 28: the engine's zero is 13 ms after the server's. To the page too, at 1033 − 1000 = 33: the
server's zero is 5 ms after sending."""


def test_clocks_are_laid_so_that_the_fastest_message_took_no_time(loaded: Page) -> None:
    measured = loaded.evaluate(MEASURE, [segment(), TOKENS, 1])
    steps = measured["steps"]
    assert measured["live"] is True
    assert [step["at"] for step in steps] == [28.0, 33.0, 38.0]
    assert [step["pipe"] for step in steps] == [1.0, 0.0, 1.0]
    assert [step["socket"] for step in steps] == [1.0, 0.0, 1.0]
    assert [step["page"] for step in steps] == [6.0, 3.0, 1.0]
    assert measured["end"] == 41.0


def test_a_chunk_of_the_prompt_may_be_the_fastest_message(loaded: Page) -> None:
    early = segment(chunks=[chunk(1012.0, 9.0)])
    measured = loaded.evaluate(MEASURE, [early, TOKENS, 1])
    assert measured["steps"][0]["at"] == (1012 - 1000 - 9) + (9 - 2 - 6) + 10


def spans(measured: dict[str, Any], track: str) -> list[tuple[str, float, float]]:
    return [(s["part"], s["from"], s["to"]) for s in measured["spans"] if s["track"] == track]


def test_waiting_is_drawn_apart_from_computing(loaded: Page) -> None:
    """The second token came 505 ms after the first, of which the run waited 500: before its step,
    or after it with a preview. No step is in flight while a run waits."""
    first, *_ = TOKENS
    slow = token(505.0, 528.0, 1533.0, 1536.0)
    slow["times"]["paced"] = 500.0
    later = token(5.0, 534.0, 1540.0, 1541.0)
    measured = loaded.evaluate(MEASURE, [segment(), [first, slow, later], 1])
    assert [step["interval"] for step in measured["steps"]] == [10.0, 5.0, 5.0]
    assert spans(measured, "request")[-4:] == [
        ("first sample", 26.0, 28.0),
        ("waiting", 28.0, 528.0),
        ("decode", 528.0, 533.0),
        ("decode", 533.0, 538.0),
    ]
    assert [at for part, at, _ in spans(measured, "host") if part == "encode"] == [528.0, 533.0]
    slow["previewed"] = True
    measured = loaded.evaluate(MEASURE, [segment(), [first, slow, later], 1])
    assert spans(measured, "request")[-3:-1] == [("decode", 28.0, 33.0), ("waiting", 33.0, 533.0)]
    assert ("decode", 29.75, 32.75) in spans(measured, "GPU")
    assert [step["at"] for step in measured["steps"]] == [28.0, 533.0, 538.0]


def test_every_part_is_where_its_clock_says(loaded: Page) -> None:
    measured = loaded.evaluate(MEASURE, [segment(), TOKENS, 1])
    assert spans(measured, "request") == [
        ("sending", 0, 5),
        ("template", 5, 9),
        ("to the engine", 9, 18),
        ("queue", 18, 20),
        ("prefill", 20, 26),
        ("first sample", 26, 28),
        ("decode", 28, 38),
    ]
    assert spans(measured, "GPU")[0] == ("prefill", 22, 26)
    assert spans(measured, "GPU")[1] == ("decode", 24.75, 27.75)
    host = spans(measured, "host")
    assert host[:2] == [("wait", 25.75, 27.75), ("read", 27.75, 28)]
    assert host[2:5] == [("encode", 28, 28.5), ("wait", 30.75, 32.75), ("read", 32.75, 33)]
    line = spans(measured, "network")
    assert line[:2] == [("pipe", 28, 29), ("socket", 29, 30)]
    assert line[4:] == [("pipe", 38, 39), ("socket", 39, 40)]
    assert spans(measured, "page") == [("draw", 30, 36), ("draw", 33, 36), ("draw", 40, 41)]


def test_steps_in_flight_are_encoded_that_much_earlier(loaded: Page) -> None:
    measured = loaded.evaluate(MEASURE, [segment(), TOKENS, 2])
    encodes = [span for span in spans(measured, "host") if span[0] == "encode"]
    assert encodes == [("encode", 28, 28.5)], "the third step, when the first token was read"


def test_after_a_reload_the_axis_begins_at_the_server(loaded: Page) -> None:
    measured = loaded.evaluate(MEASURE, [segment(sentAt=None), TOKENS, 1])
    assert measured["live"] is False
    assert [step["at"] for step in measured["steps"]] == [23.0, 28.0, 33.0]
    assert [step["pipe"] for step in measured["steps"]] == [1.0, 0.0, 1.0]
    assert {step["socket"] for step in measured["steps"]} == {None}
    assert {part for part, *_ in spans(measured, "network")} == {"pipe"}
    assert spans(measured, "page") == []


def test_nothing_came_yet(loaded: Page) -> None:
    measured = loaded.evaluate(MEASURE, [segment(chunks=[], timings=None, preparedMs=None), [], 1])
    assert (measured["spans"], measured["steps"], measured["end"]) == ([], [], 0)


def test_quantiles_are_values_that_were_measured(call: Call) -> None:
    values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 100]
    for share, expected in [(0, 1), (0.5, 5), (0.51, 6), (0.95, 100), (1, 100)]:
        assert call("look/shared/quantile", "quantile", values, share) == expected


def test_a_histogram_holds_every_value(call: Call) -> None:
    values = sorted([*range(1, 100), 5000])
    bins = call("look/timeline/spans", "histogram", values, 20)
    assert sum(bins["counts"]) == 100
    assert bins["width"] == pytest.approx(1.1 * 99 / 20)
    assert bins["counts"][-1] == 1, "what is beyond goes into the last"
    assert bins["counts"][0] == 5, "1 to 5"


def test_a_step_above_the_roof_is_a_fault_and_not_a_speed(call: Call) -> None:
    found = call("look/plan/roofline", "ofTheRoof", [["prompt", 0.125], ["steps", 1.04]])
    assert found == "prompt 12.5 %, steps 104.0 % of the roof"
    found = call("look/plan/roofline", "ofTheRoof", [["prompt", 0.125], ["steps", 1.76]])
    assert found == "steps above the roof: a fault of the measurement, or a cache"


def test_steps_of_the_roofline_know_their_rows_and_their_context(call: Call) -> None:
    part = {
        "prompt": [{}] * 70,
        "chunks": [
            {"done": 48, "reused": 16, "gpuMs": 4.0},
            {"done": 64, "reused": 16, "gpuMs": None},
            {"done": 70, "reused": 16, "gpuMs": 2.0},
        ],
    }
    found = call("look/plan/roofline", "timedSteps", part, TOKENS)
    assert [(step["rows"], step["context"], step["ms"], step["token"]) for step in found] == [
        (32, 16, 4.0, None),
        (6, 64, 2.0, None),
        (1, 70, 3.0, 1),
        (1, 71, 3.0, 2),
    ]


def test_csv_is_read_back_as_it_was(call: Call) -> None:
    rows = [["plain", 1.5, None], ['with "quotes"', 0, "a,b"], ["line\nbreak", -2, "\r\n"]]
    text = call("look/shared/save", "csv", {"columns": ["a", {"name": "b, c"}, "d"], "rows": rows})
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read[0] == ["a", "b, c", "d"]
    assert read[1:] == [["" if v is None else str(v) for v in row] for row in rows]
