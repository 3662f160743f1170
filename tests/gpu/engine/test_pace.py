"""A run writes the same at any pace, by any number of presses, and holds up nobody in a pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import UNSET

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest, QueueFull
from gpu.events import Done, Event, Preview, Queued, Token, Updated
from gpu.load_options import LoadOptions
from gpu.pace import LEAST_PACE, MOST_STEPS, PaceChange, RunPace
from gpu.places import ENDED_IN_PAUSE
from gpu.pytorch.runner import TorchRunner
from gpu.request import Request
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.webgpu.device import Device
from tests.gpu.engine.conftest import Opened
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.models import random_llama

PAUSED, PRESS, RUN = PaceChange(0.0), PaceChange(steps=1), PaceChange(None)


class Paced:
    """A run and its events; `wait` until enough of them came. `then` gets each of them, on the
    engine's thread."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.events: list[Event] = []
        self._grown = threading.Condition()
        self.then: Callable[[Event], object] = lambda event: None
        self.run = engine.submit(request, self._take)

    def _take(self, event: Event) -> None:
        self.then(event)
        with self._grown:
            self.events.append(event)
            self._grown.notify()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait(self, enough: Callable[[], bool]) -> None:
        with self._grown:
            assert self._grown.wait_for(enough, 60), self.events

    def preview(self, index: int) -> Preview:
        """Wait until the run is paused before token `index`, with a preview by the settings now."""

        def last() -> bool:
            own = [e for e in self.events if isinstance(e, Preview | Token | Updated)]
            return bool(own) and isinstance(own[-1], Preview) and own[-1].index == index

        self.wait(last)
        found: Preview = self.of(Preview)[-1]
        return found

    def press(self, n: int = 1, **changes: Any) -> Token:
        """Have `n` tokens written; return the last of them."""
        before = len(self.ids)
        self.run.update(pace=PaceChange(steps=n), **changes)
        self.wait(lambda: len(self.ids) == before + n or bool(self.of(Done)))
        found: Token = self.of(Token)[-1]
        return found

    def end(self) -> list[int]:
        """Go on as fast as it goes; return the ids of the whole text."""
        self.run.update(pace=RUN)
        return self.ended()

    def ended(self) -> list[int]:
        self.wait(lambda: bool(self.of(Done)))
        return self.ids

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.of(Token)]


def request(n: int, *, pace: float | None = 0.0, prompt: int = 1, **settings: Any) -> Request:
    params = SamplingParams(max_tokens=n, seed=7, **settings)
    return Request([prompt] * 10, params, pace=pace)


# ---- with a model ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["wgpu-f16", "torch-f32"])
def runner(request: pytest.FixtureRequest, device: Device) -> Iterator[Runner]:
    backend, dtype = request.param.split("-")
    folder = random_llama.folder("derived_head")
    if backend == "torch":
        torch = TorchRunner.load(folder, LoadOptions(dtype=dtype, slots=2))
        yield torch
        torch.close()
        return
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    yield WgpuRunner(device, config, checkpoint, LoadOptions(dtype=dtype, slots=2))


@pytest.fixture
def engine(runner: Runner, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(runner, "close", lambda: None)  # it is for all tests of this file
    engine = Engine(lambda: runner, byte_tokenizer(tmp_path), LoadOptions(warm_up=False))
    yield engine
    engine.close()


SETTINGS: dict[str, Any] = {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5}


def test_the_ids_are_the_same_at_any_pace(engine: Engine) -> None:
    """Penalties count what was written, so a preview that was dropped must not have been counted.
    All settings of a text that was written by presses are scheduled ones of the other."""
    paced = Paced(engine, request(14, ignore_eos=True, **SETTINGS))
    paced.preview(0)
    paced.press()
    paced.preview(1)
    for temperature in (0.3, 2.0, 0.0, 1.5):
        paced.run.update(temperature=temperature)
    paced.preview(1)
    paced.press(3)

    def pause(event: Event) -> None:
        if isinstance(event, Token) and event.index == 6:
            paced.run.start_update(pace=PAUSED, top_k=5)

    paced.then = pause
    paced.run.update(pace=PaceChange(500.0))
    paced.preview(7)
    paced.run.update(top_k=0, frequency_penalty=1.0)
    written = paced.end()
    updates = tuple(
        ScheduledUpdate(one.index, {name: getattr(one.params, name) for name in
                        ("temperature", "top_k", "frequency_penalty")})
        for one in paced.of(Updated)
    )  # fmt: skip
    plain = Request([1] * 10, request(14, ignore_eos=True, **SETTINGS).params, updates=updates)
    assert written == Paced(engine, plain).ended()
    assert len(written) == 14


def test_a_token_is_drawn_from_what_was_previewed(engine: Engine) -> None:
    paced = Paced(engine, request(8, ignore_eos=True, temperature=2.0))
    first = paced.preview(0)
    paced.run.update(temperature=0.5, top_k=3)
    second = paced.preview(0)
    assert second.n_kept == 3 < first.n_kept
    token = paced.press()
    assert (token.candidates, token.n_kept, token.mass) == (
        second.candidates,
        second.n_kept,
        second.mass,
    )
    assert token.id in {one.id for one in second.candidates if not one.cut}
    paced.run.cancel()


def test_a_setting_changed_in_a_pause_acts_on_the_next_token(engine: Engine) -> None:
    """Changed before the press, and in one message with it: greedy takes the first candidate."""
    paced = Paced(engine, request(12, ignore_eos=True, temperature=2.0))
    for index in range(4):
        likeliest = paced.preview(index).candidates[0].id
        assert paced.run.update(temperature=0.0) == index
        assert paced.press().id == likeliest
        paced.run.update(temperature=2.0)
    likeliest = paced.preview(4).candidates[0].id
    assert paced.press(temperature=0.0).id == likeliest
    assert [one.index for one in paced.of(Updated)] == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    paced.run.cancel()


def test_a_watermark_that_is_switched_off_in_a_pause_marks_no_token(engine: Engine) -> None:
    """The preview that was drawn with it is drawn again without."""
    paced = Paced(engine, request(8, ignore_eos=True, watermark_bias=4.0))
    paced.preview(0)
    assert paced.press().watermark
    paced.preview(1)
    paced.run.update(watermark_bias=0.0)
    paced.preview(1)
    assert paced.press().watermark is UNSET
    paced.preview(2)
    paced.run.update(watermark_bias=4.0)
    paced.preview(2)
    assert paced.press().watermark
    paced.run.cancel()


# ---- with a script ---------------------------------------------------------------------------


def test_others_run_on_while_one_is_paused(opened: Opened) -> None:
    engine = opened(ScriptedRunner())
    paused = Paced(engine, request(20))
    paused.preview(0)
    for prompt in (2, 3):
        other = Paced(engine, request(20, pace=None, prompt=prompt))
        assert other.ended() == expected([prompt] * 10, 20)
    assert paused.ids == []
    assert paused.press(5).index == 4
    assert paused.end() == expected([1] * 10, 20)
    assert not paused.of(Queued), "there was a slot for each"


def test_a_paused_run_gives_its_slot_to_those_that_wait(opened: Opened) -> None:
    engine = opened(ScriptedRunner(n_slots=1))
    paused = Paced(engine, request(20))
    paused.preview(0)
    paused.press(4)
    paused.preview(4)
    stats = engine.stats
    assert (stats.n_running, stats.n_waiting, stats.n_paused) == (0, 0, 1)
    other = Paced(engine, request(20, pace=None, prompt=2))
    assert other.ended() == expected([2] * 10, 20)
    assert engine.stats.n_preemptions == 1
    paused.wait(lambda: len(paused.of(Preview)) == 3)  # it has its slot back
    assert [queued.position for queued in paused.of(Queued)] == [1, 0]
    assert paused.end() == expected([1] * 10, 20)


def test_a_paused_run_gives_its_blocks_back(opened: Opened) -> None:
    """Of 5 blocks the paused run, which came first, has 2; the other comes to need 4."""
    engine = opened(ScriptedRunner(n_blocks=5))
    paused = Paced(engine, request(30))
    paused.preview(0)
    paused.press(12)
    paused.preview(12)
    other = Paced(engine, request(50, pace=None, prompt=2))
    assert other.ended() == expected([2] * 10, 50)
    assert engine.stats.n_preemptions == 1
    assert paused.end() == expected([1] * 10, 30)


def test_a_paused_run_gives_its_blocks_to_a_question(opened: Opened) -> None:
    """Of 5 blocks the paused run has 2, and the question needs 4; it has them back afterwards."""
    engine = opened(ScriptedRunner(n_blocks=5))
    paused = Paced(engine, request(30))
    paused.preview(0)
    paused.press(12)
    paused.preview(12)
    n_previews = len(paused.of(Preview))
    assert engine.logits([2] * 60).shape[0] == 60
    assert engine.stats.n_preemptions == 1
    paused.wait(lambda: len(paused.of(Preview)) == n_previews + 1)
    assert paused.end() == expected([1] * 10, 30)


def test_paused_runs_take_no_place_of_the_others(opened: Opened) -> None:
    """Two may run or wait, and two be paused; of three paused ones the first ends."""
    engine = opened(ScriptedRunner(n_slots=1), queue=1)
    paused = [Paced(engine, request(50, prompt=prompt)) for prompt in (2, 3)]
    running = Paced(engine, request(50, pace=LEAST_PACE))
    running.run.update(pace=PAUSED)
    others = [Paced(engine, request(50, pace=LEAST_PACE, prompt=p)) for p in (4, 5)]
    with pytest.raises(QueueFull, match="2 requests are running or waiting"):
        engine.submit(request(20))
    assert paused[0].ended() == []
    done = paused[0].of(Done)[0]
    assert (done.reason, done.message) == ("cancelled", ENDED_IN_PAUSE)
    for one, prompt in zip((*others, paused[1], running), (4, 5, 3, 1), strict=True):
        assert one.end() == expected([prompt] * 10, 50)
    assert len(paused[1].of(Done)) == 1


def test_a_run_without_a_slot_is_stepped_in_its_turn(opened: Opened) -> None:
    """It is pressed while another has the only slot: it follows that one, before a later one."""
    engine = opened(ScriptedRunner(n_slots=1))
    paused = Paced(engine, request(20))
    paused.preview(0)
    others = [Paced(engine, request(40, pace=LEAST_PACE, prompt=prompt)) for prompt in (2, 3)]
    others[0].wait(lambda: bool(others[0].ids))
    paused.run.update(pace=PaceChange(steps=2))
    others[0].run.update(pace=RUN)
    paused.wait(lambda: len(paused.ids) == 2)  # once the later one has the slot, it has it for long
    others[1].run.update(pace=RUN)
    assert paused.end() == expected([1] * 10, 20)
    assert [other.ended() for other in others] == [expected([p] * 10, 40) for p in (2, 3)]


def test_a_paced_run_has_one_step_in_flight_and_no_drafts(opened: Opened) -> None:
    runner = ScriptedRunner(lambda ids: 1 + len(ids) % 2)
    engine = opened(runner, spec_type="ngram")
    paced = Paced(engine, request(30, pace=500.0))
    assert paced.ended() == expected([1] * 10, 30, runner.script)
    assert [len(step.rows) for step in runner.steps[1:]] == [1] * 29
    assert all(token.draft is None for token in paced.of(Token))


def test_waiting_is_no_work(opened: Opened) -> None:
    engine = opened(ScriptedRunner())
    paced = Paced(engine, request(10, pace=50.0))
    paced.ended()
    times = [token.times for token in paced.of(Token)]
    timings = paced.of(Done)[0].timings
    assert times[0].paced == 0
    # A step that comes later than it is due has not waited.
    assert all(0 <= each.paced <= each.interval for each in times[1:])
    assert any(each.paced for each in times[1:])
    assert timings.paced_ms == pytest.approx(sum(each.paced for each in times))
    work = sum(each.interval - each.paced for each in times[1:])
    assert timings.predicted_ms == pytest.approx(work)
    assert timings.tpot_ms == pytest.approx(work / 9)


def test_what_a_person_takes_is_no_work(opened: Opened) -> None:
    engine = opened(ScriptedRunner())
    paused = Paced(engine, request(3))
    for index in range(3):
        paused.preview(index)
        if index == 1:
            paused.run.update(temperature=0.5)
            paused.preview(index)
        threading.Event().wait(0.05)
        paused.press()
    times = [token.times for token in paused.of(Token)]
    timings = paused.of(Done)[0].timings
    assert all(each.interval > each.paced > 40 for each in times)
    assert timings.ttft_ms == pytest.approx(times[0].interval - times[0].paced, abs=1)
    assert timings.prompt_ms <= timings.ttft_ms


@pytest.mark.parametrize("n", [0, 2])
def test_the_pause_in_which_a_run_is_cancelled_is_no_work(opened: Opened, n: int) -> None:
    engine = opened(ScriptedRunner())
    began = time.perf_counter()
    paused = Paced(engine, request(3))
    for index in range(n):
        paused.preview(index)
        paused.press()
    paused.preview(n)
    threading.Event().wait(0.05)
    paused.run.cancel()
    paused.ended()
    ms = (time.perf_counter() - began) * 1e3
    timings = paused.of(Done)[0].timings
    assert timings.paced_ms > 40
    assert timings.ttft_ms + timings.predicted_ms + timings.paced_ms <= ms


def test_a_text_ends_in_a_pause_as_at_full_speed(opened: Opened) -> None:
    engine = opened(ScriptedRunner(lambda ids: 0 if len(ids) == 13 else 5))
    paused = Paced(engine, request(20))
    paused.preview(0)
    paused.press(4)
    assert [paused.of(Token)[-1].eos, paused.of(Done)[0].reason] == [True, "eos"]
    shortened = Paced(engine, request(20))
    shortened.preview(0)
    shortened.press(2)
    shortened.run.update(max_tokens=2)
    assert shortened.ended() == [5, 5]
    assert shortened.of(Done)[0].reason == "length"


def test_scheduled_updates_act_where_they_should(opened: Opened) -> None:
    updates = (ScheduledUpdate(0, {"top_k": 3}), ScheduledUpdate(2, {"top_k": 9}))
    engine = opened(ScriptedRunner())
    asked = request(6)
    paused = Paced(engine, Request(asked.ids, asked.params, updates=updates, pace=0.0))
    paused.preview(0)
    paused.press()
    paused.preview(1)
    assert [one.index for one in paused.of(Updated)] == [0], "another may come before token 2"
    paused.run.update(top_p=0.5)
    paused.press()
    paused.preview(2)
    told = [(one.index, one.params.top_k, one.params.top_p) for one in paused.of(Updated)]
    assert told == [(0, 3, 1.0), (1, 3, 0.5), (2, 9, 0.5)]
    assert paused.end() == expected([1] * 10, 6)


@pytest.mark.parametrize("pace", [-1.0, float("nan"), float("inf"), 0.01, 1e6])
def test_a_pace_out_of_range_is_refused(opened: Opened, pace: float) -> None:
    engine = opened(ScriptedRunner())
    with pytest.raises(InvalidRequest, match="pace must be"):
        engine.submit(request(5, pace=pace))
    run = Paced(engine, request(5))
    with pytest.raises(InvalidRequest, match="pace must be"):
        run.run.update(pace=PaceChange(pace))
    assert run.end() == expected([1] * 10, 5)


def test_steps_are_for_paused_runs(opened: Opened) -> None:
    engine = opened(ScriptedRunner())
    run = Paced(engine, request(50, pace=LEAST_PACE))
    with pytest.raises(InvalidRequest, match="not paused"):
        run.run.update(pace=PRESS)
    for steps in (-1, MOST_STEPS + 1):
        with pytest.raises(InvalidRequest, match="steps must be"):
            run.run.update(pace=PaceChange(0.0, steps))
    run.run.update(pace=PaceChange(0.0, 1))
    assert run.end() == expected([1] * 10, 50)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_tokens_are_due_at_even_times() -> None:
    clock = Clock()
    pace = RunPace(10.0, 0, clock)
    due = []
    for late in (0.0, 0.02, 0.0, 0.01, 0.0):
        clock.now = max(clock.now, pace.due_at) + late
        assert pace.is_due
        pace.submitted()
        due.append(round(pace.due_at - 100, 6))
    assert due == [0.1, 0.2, 0.3, 0.4, 0.5], "being late adds up to nothing"
    clock.now += 5
    pace.submitted()
    assert round(pace.due_at - clock.now, 6) == 0.1, "no burst makes up for a long wait"


def test_changes_of_pace_join_to_one() -> None:
    two = PRESS.then(PRESS)
    assert (two.rate, two.steps) == (PRESS.rate, 2)
    assert PAUSED.then(PRESS) == PaceChange(0.0, 1)
    assert PRESS.then(RUN) == RUN
    assert PRESS.then(PAUSED) == PaceChange(0.0, 1)
    assert RUN.then(PAUSED) == PAUSED
