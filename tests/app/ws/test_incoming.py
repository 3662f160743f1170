"""Messages of the page are read or refused, and updates of a slider are merged."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from app.protocol.messages import MESSAGE_BYTES, UPDATE_SECONDS, SamplingUpdate, Stop, Update
from app.ws import incoming as inbox
from app.ws.incoming import (
    BadMessageError,
    UpdateMerger,
    decode,
    given_settings,
    merge,
)
from gpu import Interventions, InvalidRequest, LayerFactor, PaceChange

pytestmark = pytest.mark.smoke


class Clock:
    """Clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(inbox, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('"pace":"fast"', "Expected `float | null`, got `str`"),
        ('"pace":NaN', "invalid"),
        ('"pace":true', "Expected `float | null`, got `bool`"),
        ('"steps":1.5', "Expected `int`, got `float`"),
        ('"steps":null', "Expected `int`, got `null`"),
    ],
)
def test_a_pace_that_is_none_is_refused(fields: str, words: str) -> None:
    with pytest.raises(BadMessageError, match="(?i)" + re.escape(words)):
        decode(f'{{"type":"update","id":"a",{fields}}}')


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"pace": -1.0}, "pace"),
        ({"pace": 1e308}, "pace"),
        ({"pace": 0.001}, "pace"),
        ({"steps": -1}, "steps"),
        ({"steps": 10**6}, "steps"),
    ],
)
def test_a_pace_out_of_range_is_merged_with_none(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        UpdateMerger().add(Update("a", **fields))
    assert error.value.param == param


def test_presses_add_up_and_the_last_pace_counts() -> None:
    press = Update("a", steps=1)
    assert merge([press, press, update(temperature=0.5)]).pace_change == PaceChange(steps=2)
    assert merge([Update("a", pace=0.0), press]).pace_change == PaceChange(0.0, 1)
    assert merge([press, Update("a", pace=None)]).pace_change == PaceChange(None)
    assert merge([update(temperature=0.5)]).pace_change is None


def update(id: str = "a", capture: bool | None = None, **changes: Any) -> Update:
    return Update(id, SamplingUpdate(**changes), capture)


def test_a_message_of_exactly_the_greatest_size_is_read() -> None:
    empty = json.dumps({"type": "generate", "id": "a", "prompt": ""})
    room = MESSAGE_BYTES - len(empty)
    fits = json.dumps({"type": "generate", "id": "a", "prompt": "x" * room})
    assert len(fits) == MESSAGE_BYTES
    decode(fits)
    with pytest.raises(BadMessageError, match=f"{MESSAGE_BYTES} bytes at most"):
        decode(fits + " ")


def test_a_bad_message_says_where_and_for_whom() -> None:
    with pytest.raises(BadMessageError) as error:
        decode('{"type":"update","id":"a-1","params":{"top_k":"many"}}')
    assert (error.value.id, error.value.param) == ("a-1", "top_k")
    with pytest.raises(BadMessageError) as error:
        decode('{"type":"stop","id":"<script>","x":1}')
    assert error.value.id == ""


@pytest.mark.parametrize("id", ["", "a b", "a/b", "é", "a\n", "x" * 65])
def test_ids_have_only_plain_characters(id: str) -> None:
    with pytest.raises(BadMessageError) as error:
        decode(json.dumps({"type": "stop", "id": id}))
    assert error.value.param == "id"


def test_the_first_update_is_due_at_once(clock: Clock) -> None:
    pending = UpdateMerger()
    assert pending.seconds_left() is None
    pending.add(update(temperature=0.5))
    assert pending.seconds_left() == 0
    assert [given_settings(u) for u in map(merge, pending.due(None))] == [{"temperature": 0.5}]
    assert pending.due(None) == []


def test_updates_that_follow_soon_are_merged(clock: Clock) -> None:
    pending = UpdateMerger()
    pending.add(update(temperature=0.1))
    pending.due(None)
    pending.add(update(temperature=0.2, top_k=5, capture=True))
    pending.add(update(temperature=0.3))
    pending.add(update(id="b", top_p=0.5))
    assert pending.due(update()) == []
    assert pending.seconds_left() == pytest.approx(UPDATE_SECONDS)
    clock.now += UPDATE_SECONDS
    first, second = map(merge, pending.due(None))
    assert (given_settings(first), first.capture) == ({"temperature": 0.3, "top_k": 5}, True)
    assert (second.id, given_settings(second)) == ("b", {"top_p": 0.5})


def test_a_message_of_another_kind_overtakes_no_update(clock: Clock) -> None:
    pending = UpdateMerger()
    pending.add(update(temperature=0.1))
    pending.due(None)
    pending.add(update(temperature=0.2))
    assert [given_settings(u) for u in map(merge, pending.due(Stop("a")))] == [{"temperature": 0.2}]


def test_zero_is_a_value(clock: Clock) -> None:
    assert given_settings(update(temperature=0.0, top_k=0)) == {"temperature": 0.0, "top_k": 0}


def test_a_value_out_of_range_is_not_merged(clock: Clock) -> None:
    pending = UpdateMerger()
    pending.add(update(top_k=5))
    with pytest.raises(InvalidRequest):
        pending.add(update(top_p=2.0))
    assert [given_settings(u) for u in map(merge, pending.due(None))] == [{"top_k": 5}]


def test_merged_updates_keep_the_latest_interventions(clock: Clock) -> None:
    off, back = Interventions(mlp=(LayerFactor(0, 0.0),)), Interventions()
    pending = UpdateMerger()
    pending.add(Update("a", interventions=off))
    pending.add(update(temperature=0.2))
    pending.add(Update("b", interventions=off))
    pending.add(Update("b", interventions=back))
    assert [(u.id, given_settings(u), u.interventions) for u in map(merge, pending.due(None))] == [
        ("a", {"temperature": 0.2}, off),
        ("b", {}, back),
    ]
