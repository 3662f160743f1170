"""Interventions act in the right steps and wait for what they need, over a scripted runner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.engine.thread import Close
from gpu.errors import EngineClosed, InvalidRequest, QueueFull
from gpu.events import Accepted, Done, Event, Prefill, Updated
from gpu.inspection.requests import Losses
from gpu.interventions.active import ActiveInterventions
from gpu.interventions.messages import (
    NO_INTERVENTIONS,
    Interventions,
    InterventionSpan,
    LayerFactor,
    Patch,
    Steer,
)
from gpu.load_options import LoadOptions
from gpu.pace import LEAST_PACE, PaceChange
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.step import InspectionRequest, InspectionResult, Step
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.engine.test_scheduled_updates import Written

OFF = Interventions(mlp=(LayerFactor(0, 0.0),))
DIGEST = ActiveInterventions(mlp={0: 0.0}).digest

Open = Callable[..., Engine]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def open_engine(tokenizer: Tokenizer) -> Iterator[Open]:
    engines: list[Engine] = []

    def open_(runner: ScriptedRunner, **options: Any) -> Engine:
        engines.append(Engine(lambda: runner, tokenizer, LoadOptions(**options)))
        return engines[-1]

    yield open_
    for engine in engines:
        engine.close()


def steer(text: str, strength: float = 1.0) -> Interventions:
    return Interventions(steer=(Steer(0, text, strength),))


def submit(engine: Engine, prompt: list[int], n: int, **options: Any) -> Written:
    written = Written()
    engine.submit(Request(prompt, SamplingParams(max_tokens=n), **options), written)
    return written


def drawn(runner: ScriptedRunner) -> dict[int, bool]:
    """index of a sample → did its step ask for interventions?"""
    return {s.index: step.interventions for step in runner.steps for s in step.samples}


def test_steps_ask_for_interventions_only_while_they_act(open_engine: Open) -> None:
    runner = ScriptedRunner()
    updates = (
        ScheduledUpdate(3, interventions=OFF),
        ScheduledUpdate(6, interventions=NO_INTERVENTIONS),
    )
    written = submit(open_engine(runner), [9, 8], 9, updates=updates).wait()
    assert written.ids == expected([9, 8], 9)
    assert [drawn(runner)[i] for i in range(9)] == [False] * 3 + [True] * 3 + [False] * 3
    assert [digest for _, _, digest in runner.interventions_set] == [DIGEST, b""]
    assert [(e.index, e.interventions) for e in written.updated] == [
        (3, OFF),
        (6, NO_INTERVENTIONS),
    ]


def test_runs_with_and_without_interventions_share_steps(open_engine: Open) -> None:
    runner = ScriptedRunner()
    engine = open_engine(runner)
    with runner.held():
        first = submit(engine, [9, 8], 20, interventions=OFF)
        second = submit(engine, [7, 6], 30)
    assert first.wait().ids == expected([9, 8], 20)
    assert second.wait().ids == expected([7, 6], 30)
    assert any(step.interventions and len(step.samples) == 2 for step in runner.steps)
    assert not runner.steps[-1].interventions, "nothing asks for interventions after the first run"
    assert {slot for _, slot, _ in runner.interventions_set} == {runner.steps[0].rows[0].slot}


def test_rows_under_different_interventions_are_in_different_steps(open_engine: Open) -> None:
    runner = ScriptedRunner(max_rows=16)
    interventions = Interventions(
        steer=(Steer(0, "up", 1.0),), patch=(Patch(0, 10, "a", 0), Patch(0, 11, "b", 0))
    )
    prompt = [1 + i for i in range(40)]
    engine = open_engine(runner)
    runner_steps = len(runner.steps)
    written = submit(engine, prompt, 3, interventions=interventions).wait()
    slot = runner.interventions_set[0][1]
    chunks = [
        [row.position for row in step.rows if row.slot == slot]
        for step in runner.steps[runner_steps:]
        if step.rows[0].slot == slot
    ]
    ends = [(chunk[0], chunk[-1]) for chunk in chunks[:6]]
    assert ends == [(0, 9), (10, 10), (11, 11), (12, 27), (28, 38), (39, 39)]
    assert written.ids == expected(prompt, 3)
    done = [event.done for event in written.events if isinstance(event, Prefill)]
    assert done == [10, 11, 12, 28, 39, 40]


def test_changing_a_strength_recomputes_nothing(open_engine: Open) -> None:
    runner = ScriptedRunner()
    engine = open_engine(runner)
    written = Written()
    run = engine.submit(Request([9], SamplingParams(max_tokens=50), pace=0.0), written)
    for index, strength in enumerate((0.5, 1.0, 2.0)):
        run.update(interventions=steer("sea", strength), pace=PaceChange(steps=1))
        written.wait(index)
    assert runner.n_inspected == 1
    run.update(interventions=steer("land"), pace=PaceChange(None))
    assert runner.n_inspected == 2
    assert written.wait().ids == expected([9], 50)
    assert len({digest for _, _, digest in runner.interventions_set}) == 4


def test_changes_act_in_the_order_they_were_asked_for(open_engine: Open) -> None:
    """Order is kept even if the first change takes a while to compute and the others need
    nothing."""
    runner = ScriptedRunner()
    written = Written()
    engine = open_engine(runner)
    with runner.held():
        run = engine.submit(Request([9], SamplingParams(max_tokens=60)), written)
        asked: list[Future[int]] = [
            run.start_update(interventions=steer("a text of some pieces, which takes a while")),
            run.start_update(temperature=0.5),
            run.start_update(temperature=-1.0),
            run.start_update(interventions=OFF),
            run.start_update(interventions=NO_INTERVENTIONS),
        ]
    errors = [future.exception(20) for future in asked]
    assert [type(error) for error in errors] == [type(None)] * 2 + [InvalidRequest] + [
        type(None)
    ] * 2
    indexes = [future.result() for future in asked if future.exception() is None]
    assert indexes == sorted(indexes)
    told = written.wait().updated
    assert [event.index for event in told] == indexes
    assert [event.interventions for event in told][2:] == [OFF, NO_INTERVENTIONS]
    assert not runner.steps[-1].interventions


def test_a_run_writes_on_while_interventions_of_another_are_computed(open_engine: Open) -> None:
    runner = ScriptedRunner(n_slots=2)
    engine = open_engine(runner)
    second = Written()
    n_beside: dict[type[Event], int] = {}  # tokens of the first at the first event of each kind

    def on_event(event: Event) -> None:
        n_beside.setdefault(type(event), len(first.ids))
        second(event)

    params = SamplingParams(max_tokens=5)
    with runner.held():
        first = submit(engine, [9], 40)
        engine.submit(Request([7], params, interventions=steer("x" * 60)), on_event)
    second.wait(0)
    written_meanwhile = n_beside[Prefill] - n_beside[Accepted]
    assert written_meanwhile > 2 * runner.in_flight, "more than the steps that were on their way"
    assert first.wait().ids == expected([9], 40)
    assert second.wait().ids == expected([7], 5)


def test_a_run_waits_until_there_is_room_for_its_texts(open_engine: Open) -> None:
    """The others own every block: a change is refused, and one that waits in line starts later."""
    runner = ScriptedRunner(n_slots=3, n_blocks=4)
    engine = open_engine(runner)
    first = Written()
    run = engine.submit(Request([9] * 50, SamplingParams(max_tokens=14), pace=LEAST_PACE), first)
    first.wait(0)
    second = submit(engine, [7], 5, interventions=steer("sea"))
    with pytest.raises(QueueFull, match="no KV cache is free"):
        run.update(interventions=steer("land"))
    run.update(pace=PaceChange(None))
    assert first.wait().ids == expected([9] * 50, 14)
    assert [event.interventions for event in first.updated] == [None], "only the pace changed"
    assert second.wait().ids == expected([7], 5)
    done = second.events[-1]
    assert isinstance(done, Done)
    assert done.reason == "length"


def test_a_change_before_the_start_acts_from_the_last_token_of_the_prompt(
    open_engine: Open,
) -> None:
    """The run is still queued, and its own interventions are not computed yet."""
    runner = ScriptedRunner(n_slots=1)
    engine = open_engine(runner)
    written = Written()
    params = SamplingParams(max_tokens=5)
    with runner.held():
        first = submit(engine, [9], 30)
        run = engine.submit(Request([7] * 20, params, interventions=steer("sea")), written)
        asked = run.start_update(interventions=OFF)
    assert asked.result(20) == 0
    first.wait()
    assert written.wait().ids == expected([7] * 20, 5)
    assert [event.interventions for event in written.updated] == [OFF]
    assert [digest for _, _, digest in runner.interventions_set] == [DIGEST]
    step = runner.steps[runner.interventions_set[0][0]]
    assert [row.position for row in step.rows] == [19]


class CachedBlock(ScriptedRunner):
    """Runner whose first inspection ends when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.looking, self.go = threading.Event(), threading.Event()

    def inspect(self, step: Step, request: InspectionRequest) -> InspectionResult:
        self.looking.set()
        assert self.go.wait(10)
        return super().inspect(step, request)


def test_cancelled_while_its_texts_are_computed(open_engine: Open) -> None:
    runner = CachedBlock()
    engine = open_engine(runner)
    written = Written()
    interventions = Interventions(steer=tuple(Steer(0, f"{i}" * 60, 1.0) for i in range(8)))
    run = engine.submit(
        Request([9], SamplingParams(max_tokens=9), interventions=interventions), written
    )
    behind = submit(
        engine, [8], 20, interventions=steer("sea"), updates=[ScheduledUpdate(5, interventions=OFF)]
    )
    assert runner.looking.wait(10)
    run.cancel()
    runner.go.set()
    done = written.wait().events[-1]
    assert isinstance(done, Done)
    assert done.reason == "cancelled"
    assert behind.wait().ids == expected([8], 20)
    assert runner.n_inspected < 8, "what nobody waits for any more is not computed"
    assert [digest for _, _, digest in runner.interventions_set][1:] == [DIGEST]


def test_changes_under_way_end_with_the_engine(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ScriptedRunner()
    engine, inspect = open_engine(runner), runner.inspect

    def close_and_inspect(step: Step, request: InspectionRequest) -> InspectionResult:
        engine._thread.post(Close())
        return inspect(step, request)

    monkeypatch.setattr(runner, "inspect", close_and_inspect)
    interventions = Interventions(steer=tuple(Steer(0, f"{i}" * 60, 1.0) for i in range(8)))
    with runner.held():
        run = engine.submit(Request([9], SamplingParams(max_tokens=60)), Written())
        asked = [run.start_update(interventions=interventions), run.start_update(temperature=0.5)]
    for future in asked:
        assert isinstance(future.exception(10), EngineClosed)


@pytest.mark.parametrize("warm_up", [False, True])
def test_plans_with_interventions_are_warmed_up_once_before_the_first_run(
    open_engine: Open, warm_up: bool
) -> None:
    runner = ScriptedRunner()
    engine = open_engine(runner, warm_up=warm_up)
    submit(engine, [9], 3).wait()
    assert runner.warmed_interventions == 0
    for _ in range(2):
        submit(engine, [9], 3, interventions=OFF).wait()
    assert runner.warmed_interventions == (3 if warm_up else 0)


def test_a_question_sets_the_interventions_its_tokens_were_computed_with(open_engine: Open) -> None:
    runner = ScriptedRunner()
    engine = open_engine(runner)
    ids = [1 + i for i in range(40)]
    pieces = (
        InterventionSpan(5, OFF),
        InterventionSpan(20, NO_INTERVENTIONS),
        InterventionSpan(30, OFF),
    )
    losses = engine.inspect(Losses(ids, spans=pieces)).result()
    assert losses["logprob"].shape == (39,)
    steps = [
        (step.rows[0].position, step.rows[-1].position, step.interventions) for step in runner.steps
    ]
    for first, last, interventions in steps:
        assert interventions == (5 <= first < 20 or first >= 30)
        assert all(edge <= first or edge > last for edge in (5, 20, 30)), "two settings in a step"
    assert {digest for _, _, digest in runner.interventions_set} == {DIGEST}
    assert {slot for _, slot, _ in runner.interventions_set} == {runner.limits.inspection_slot}


def test_events_of_a_run_without_interventions_do_not_mention_them(open_engine: Open) -> None:
    written = submit(
        open_engine(ScriptedRunner()), [9], 4, updates=[ScheduledUpdate(2, {"top_k": 3})]
    )
    events: list[Event] = written.wait().events
    assert [e.interventions for e in events if isinstance(e, Updated)] == [None]
