"""Runs that go on after tokens that another engine wrote: every id, text and number is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu.engine.engine import Engine
from gpu.errors import ContextExceeded, InvalidRequest
from gpu.events import Accepted, Done, Event, Prefill, Token, Updated
from gpu.interventions.messages import NO_INTERVENTIONS, Interventions, LayerFactor, Steer
from gpu.load_options import LoadOptions
from gpu.pace import LEAST_PACE, PaceChange
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.interventions.hand import ManualEngine

MODEL = Path(__file__).parents[3] / "app" / "tale" / "model"
PROMPT = "Once upon a time, there was a fox who lived in"
N_TOKENS = 48

PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "seed": 4},
    "drawn": {"temperature": 0.9, "top_p": 0.95, "seed": 5},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.2, "seed": 6},
}
UPDATES = (
    ScheduledUpdate(9, {"temperature": 1.3}),
    ScheduledUpdate(16, interventions=Interventions(mlp=(LayerFactor(1, 0.7),))),
    ScheduledUpdate(30, {"top_k": 12}, capture=True),
)


@pytest.fixture(scope="module", params=[pytest.param("cached", marks=pytest.mark.slow), "uncached"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine with the whole text in its prefix cache, or with none of it."""
    engine = Engine.load(MODEL, LoadOptions(slots=2, prefix_cache=request.param == "cached"))
    yield engine
    engine.close()


def events_of(engine: Engine, request: Request) -> list[Event]:
    run = engine.submit(request)
    events: list[Event] = []
    while not (events and isinstance(events[-1], Done)):
        events.append(run._events.queue.get(timeout=60))
    return events


def tokens_of(events: list[Event]) -> list[Token]:
    return [event for event in events if isinstance(event, Token)]


def facts(token: Token) -> tuple[Any, ...]:
    return (
        token.index, token.id, token.text, token.logprob, token.draw, token.rank, token.n_kept,
        token.mass, token.candidates, token.stats is None,
    )  # fmt: skip


def resumed(request: Request, written: list[Token]) -> Request:
    ids = [*request.ids, *(token.id for token in written)]
    return replace(request, ids=ids, n_written=len(written))


@pytest.mark.ci
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize("updates", [(), UPDATES], ids=["plain", "updated"])
def test_the_rest_of_a_text_is_the_same(
    engine: Engine, params: dict[str, Any], updates: tuple[ScheduledUpdate, ...]
) -> None:
    ids = engine.tokenizer.encode(PROMPT)
    request = Request(ids, SamplingParams(max_tokens=N_TOKENS, **params), updates=updates)
    whole = events_of(engine, request)
    tokens = tokens_of(whole)
    for n in (1, 16, 40):
        rest = events_of(engine, resumed(request, tokens[:n]))
        assert [facts(token) for token in tokens_of(rest)] == [facts(token) for token in tokens[n:]]
        assert not any(isinstance(event, Prefill) for event in rest), "it was told before"
        told = [event.index for event in rest if isinstance(event, Updated)]
        assert told == [update.index for update in updates if update.index > n]
        done, done_before = rest[-1], whole[-1]
        assert isinstance(done, Done)
        assert isinstance(done_before, Done)
        assert (done.reason, done.prompt_tokens, done.completion_tokens) == (
            done_before.reason, done_before.prompt_tokens, done_before.completion_tokens
        )  # fmt: skip


STEERED = Interventions(steer=(Steer(2, "to the sea", 1.5),))


@pytest.mark.parametrize(
    ("n", "updates", "begun_with"),
    [(20, UPDATES, NO_INTERVENTIONS), (0, (ScheduledUpdate(0, {"temperature": 1.3}),), STEERED)],
    ids=["moved", "steered"],
)
def test_a_change_of_pace_brings_no_update_of_a_waiting_run_forward(
    engine: Engine, n: int, updates: tuple[ScheduledUpdate, ...], begun_with: Interventions
) -> None:
    """Those that acted elsewhere act where they did, and others when the run is ready."""
    params = SamplingParams(max_tokens=N_TOKENS, **PARAMS["drawn"])
    ids = engine.tokenizer.encode(PROMPT)
    request = Request(ids, params, updates=updates, interventions=begun_with)
    whole = tokens_of(events_of(engine, request)) if n else []
    have_slots = [engine.submit(Request([i], params, pace=LEAST_PACE)) for i in (5, 6)]
    waiting = engine.submit(resumed(request, whole[:n]))
    waiting.update(pace=PaceChange(None))  # before what steers is computed
    for run in have_slots:
        run.cancel()
    rest = list(waiting)
    whole = whole or tokens_of(events_of(engine, request))
    assert [facts(token) for token in rest] == [facts(token) for token in whole[n:]]


def test_the_prompt_is_that_of_the_request(engine: Engine) -> None:
    ids = engine.tokenizer.encode(PROMPT)
    params = SamplingParams(temperature=0, max_tokens=4)
    accepted = events_of(engine, Request([*ids, 5, 6], params, n_written=2))[0]
    assert isinstance(accepted, Accepted)
    assert [token.id for token in accepted.prompt] == ids


@pytest.fixture
def speller(tmp_path: Path) -> Iterator[Engine]:
    """An engine that writes this text byte by byte after a prompt of one token, then 0s."""
    data = "Grüße, und dann ENDE davon".encode()
    runner = ScriptedRunner(lambda ids: data[len(ids) - 1] if len(ids) <= len(data) else 0)
    engine = Engine(lambda: runner, byte_tokenizer(tmp_path))
    yield engine
    engine.close()


def test_characters_and_stop_strings_may_span_both_engines(speller: Engine) -> None:
    request = Request([1], SamplingParams(max_tokens=40, stop=("ENDE",)))
    whole = tokens_of(events_of(speller, request))
    text = "".join(token.text for token in whole)
    assert text == "Grüße, und dann "
    for n in range(1, len(text)):
        rest = tokens_of(events_of(speller, resumed(request, whole[:n])))
        assert "".join(token.text for token in [*whole[:n], *rest]) == text


@pytest.mark.parametrize("n", [-1, 3, 4])
def test_a_run_needs_a_prompt_and_a_token_to_write(speller: Engine, n: int) -> None:
    with pytest.raises(InvalidRequest, match="n_written must be from 0 to 2") as refusal:
        speller.submit(Request([1, 2, 3], SamplingParams(), n_written=n))
    assert refusal.value.param == "n_written"
    with pytest.raises(InvalidRequest, match="from 0 to 1"):
        speller.submit(Request([1, 2, 3], SamplingParams(max_tokens=2), n_written=2))
    longer = ScheduledUpdate(1, {"max_tokens": 9})
    run = speller.submit(
        Request([1, 2, 3], SamplingParams(max_tokens=2), False, (longer,), n_written=2)
    )
    assert len(list(run)) > 0


def test_prompt_and_written_tokens_must_fit_the_context(speller: Engine) -> None:
    with pytest.raises(ContextExceeded):
        speller.submit(Request([1] * 64, SamplingParams(), n_written=60))


def test_what_changes_while_a_moved_run_waits_stays(tmp_path: Path) -> None:
    """The updates that acted elsewhere are in force before; they came back when it got a slot."""
    one = ManualEngine(ScriptedRunner(n_slots=1), byte_tokenizer(tmp_path))
    first = one.start([9], 8)
    one.advance()
    updates = (ScheduledUpdate(1, {"temperature": 0.5, "max_tokens": 12}, capture=True),)
    moved = one.start([3, *expected([3], 3)], 2, n_written=3, updates=updates)
    assert (moved.text.params.temperature, moved.capture) == (0.5, True)
    moved.update({"temperature": 1.5}, None)
    assert not moved.finished, "its limit was raised before it moved"
    one.finish(first, moved)
    assert moved.text.params.temperature == 1.5
    assert moved.text.n_written == 12
