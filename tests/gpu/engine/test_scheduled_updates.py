"""A run with live changes and the same run with scheduled ones give the same ids and `updated`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest
from gpu.events import Accepted, Done, Event, Prefill, Token, Updated
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.request import Request
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import LIVE, SamplingParams
from gpu.scheduled_updates import ScheduledUpdate, check_updates
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.models import random_llama

NAME = "derived_head"


class Written:
    """A run's events; `wait` until a token was read, or until the end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._grown = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._grown:
            self.events.append(event)
            self._grown.notify()

    def wait(self, index: int | None = None) -> Written:
        def enough() -> bool:
            if index is None:
                return any(isinstance(event, Done) for event in self.events)
            return len(self.ids) > index

        with self._grown:
            assert self._grown.wait_for(enough, 60)
        return self

    @property
    def ids(self) -> list[int]:
        return [event.id for event in self.events if isinstance(event, Token)]

    @property
    def updated(self) -> list[Updated]:
        return [event for event in self.events if isinstance(event, Updated)]


def written_with(
    engine: Engine, request: Request, changes: Mapping[int, dict[str, Any]]
) -> tuple[Written, list[int]]:
    """Write a text, asking for `changes` after their tokens; return it, and the tokens that they
    act from. They are asked for on the engine's thread: another one may be late, and the text at
    its end."""
    written, submitted = Written(), threading.Event()
    asked: list[Future[int]] = []

    def on_event(event: Event) -> None:
        written(event)
        assert submitted.wait(60)
        if isinstance(event, Token) and event.index in changes:
            asked.append(run.start_update(**changes[event.index]))

    run = engine.submit(request, on_event)
    submitted.set()
    return written.wait(), [future.result(20) for future in asked]


def updates_of(written: Written) -> tuple[ScheduledUpdate, ...]:
    """Return the updates behind `written` as a replay file has them: each with all settings."""
    return tuple(
        ScheduledUpdate(
            event.index, {name: getattr(event.params, name) for name in LIVE}, event.capture
        )
        for event in written.updated
    )


# ---- on both runners -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["wgpu-f16", "torch-f32"])
def runner(request: pytest.FixtureRequest, device: Device) -> Iterator[Runner]:
    backend, dtype = request.param.split("-")
    folder = random_llama.folder(NAME)
    if backend == "torch":
        torch = TorchRunner.load(folder, LoadOptions(dtype=dtype, slots=2))
        yield torch
        torch.close()
    else:
        config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
        yield WgpuRunner(device, config, checkpoint, LoadOptions(dtype=dtype, slots=2))


@pytest.fixture
def engine(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(runner, "close", lambda: None)
    tokenizer = Tokenizer.load(random_llama.folder(NAME))
    opened = Engine(
        lambda: runner, tokenizer, LoadOptions(prefix_cache=isinstance(runner, WgpuRunner))
    )
    yield opened
    opened.close()


def test_scheduled_updates_write_what_live_changes_wrote(engine: Engine) -> None:
    prompt = [int(id) for id in random_llama.ids(NAME, 20)]
    params = SamplingParams(temperature=0.3, seed=2**60 + 7, max_tokens=30, ignore_eos=True)
    changes: dict[int, dict[str, Any]] = {
        3: {"temperature": 2.5, "top_p": 0.99},
        9: {"capture": True, "repetition_penalty": 1.6},
        14: {"max_tokens": 60, "top_k": 40},
        25: {"capture": False, "temperature": 0.0},
    }
    live, _ = written_with(engine, Request(prompt, params), changes)
    assert len(live.ids) == 60
    assert len(live.updated) == 4

    again = Written()
    engine.submit(Request(prompt, params, updates=updates_of(live)), again)
    assert again.wait().ids == live.ids
    assert again.updated == live.updated

    plain = Written()
    engine.submit(Request(prompt, params), plain)
    assert plain.wait().ids != live.ids[:30], "the changes of this test change nothing"


def test_a_token_has_statistics_if_it_was_drawn_while_its_run_captured(engine: Engine) -> None:
    """Of the run that captures beside it, whose steps it is in, it has none; of its own all, also
    those on their way when the setting changes."""
    prompt = [int(id) for id in random_llama.ids(NAME, 20)]
    params = SamplingParams(seed=3, max_tokens=12, ignore_eos=True)
    updates = (ScheduledUpdate(3, capture=True), ScheduledUpdate(6, capture=False))
    both = Written(), Written()
    engine.submit(Request(prompt[:9], params, capture=True), both[0])
    engine.submit(Request(prompt, params, updates=updates), both[1])
    tokens = [event for event in both[1].wait().events if isinstance(event, Token)]
    assert [event.index for event in tokens if event.stats is not None] == [3, 4, 5]
    assert all(e.stats is not None for e in both[0].wait().events if isinstance(e, Token))


# ---- when they act ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def write(tokenizer: Tokenizer) -> Iterator[Any]:
    """`write(runner, prompt, params, …)`: a run on a fresh engine, to its end."""
    engines: list[Engine] = []

    def start(
        runner: ScriptedRunner, prompt: list[int], params: SamplingParams, **options: Any
    ) -> Written:
        engines.append(Engine(lambda: runner, tokenizer))
        written = Written()
        engines[-1].submit(Request(prompt, params, **options), written)
        return written.wait()

    yield start
    for engine in engines:
        engine.close()


def settings(runner: ScriptedRunner) -> dict[int, tuple[float, int]]:
    """index of a sample → the temperature and top_k that it was submitted with"""
    return {
        sample.index: (sample.temperature, sample.top_k)
        for step in runner.steps
        for sample in step.samples
    }


def test_each_change_acts_on_exactly_the_token_it_names(write: Any) -> None:
    runner = ScriptedRunner()
    updates = (
        ScheduledUpdate(0, {"temperature": 0.5}),
        ScheduledUpdate(4, {"temperature": 1.5}),
        ScheduledUpdate(4, {"top_k": 7}),
        ScheduledUpdate(5, {"top_k": 0}),
    )
    params = SamplingParams(temperature=1.0, max_tokens=8)
    written = write(runner, [9, 8], params, updates=updates)
    assert written.ids == expected([9, 8], 8)
    drawn = settings(runner)
    assert [drawn[i] for i in range(8)] == [(0.5, 0)] * 4 + [(1.5, 7)] + [(1.5, 0)] * 3
    assert [event.index for event in written.updated] == [0, 4, 4, 5]
    assert isinstance(written.events[0], Accepted)
    assert written.events[0].params.temperature == 1.0
    assert [type(event) for event in written.events[1:3]] == [Updated, Prefill]


def test_capture_changes_with_the_token_it_names(write: Any) -> None:
    runner = ScriptedRunner()
    updates = (ScheduledUpdate(3, capture=True), ScheduledUpdate(5, capture=False))
    write(runner, [9, 8], SamplingParams(max_tokens=8), updates=updates)
    captured = [step.capture for step in runner.steps if step.samples]
    assert captured[:8] == [False] * 3 + [True] * 2 + [False] * 3


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_a_limit_is_raised_when_all_tokens_below_it_are_on_their_way(
    write: Any, in_flight: int
) -> None:
    runner = ScriptedRunner()
    runner.in_flight = in_flight
    updates = (ScheduledUpdate(5, {"max_tokens": 12}),)
    written = write(runner, [9], SamplingParams(max_tokens=5), updates=updates)
    assert written.ids == expected([9], 12)
    assert [event.index for event in written.updated] == [5]


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_a_limit_lowered_below_what_was_written_ends_the_run(write: Any, in_flight: int) -> None:
    """After the tokens before the change, of which some are on their way."""
    runner = ScriptedRunner()
    runner.in_flight = in_flight
    updates = (ScheduledUpdate(10, {"max_tokens": 2}),)
    written = write(runner, [9], SamplingParams(max_tokens=40), updates=updates)
    done = written.events[-1]
    assert isinstance(done, Done)
    assert done.reason == "length"
    assert written.ids == expected([9], 10)


def test_changes_past_the_end_never_act(write: Any) -> None:
    updates = (ScheduledUpdate(500, {"temperature": 0.1}),)
    written = write(ScriptedRunner(), [9], SamplingParams(max_tokens=4), updates=updates)
    assert written.ids == expected([9], 4)
    assert written.updated == []


def test_updates_of_a_preempted_run_act_at_their_tokens(tokenizer: Tokenizer) -> None:
    """Together the runs outgrow the cache; the second is preempted before its update acts."""
    runner = ScriptedRunner(n_slots=2, n_blocks=4)
    engine = Engine(lambda: runner, tokenizer)
    first, second = Written(), Written()
    params = SamplingParams(max_tokens=50)
    updates = (ScheduledUpdate(35, {"max_tokens": 40}),)
    with runner.held():
        engine.submit(Request([1], params), first)
        engine.submit(Request([2], params, updates=updates), second)
    assert first.wait().ids == expected([1], 50)
    assert second.wait().ids == expected([2], 40)
    assert [update.index for update in second.updated] == [35]
    engine.close()


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([ScheduledUpdate(-1)], "must be 0 or more.* got -1"),
        ([ScheduledUpdate(True)], "must be an integer, but got True"),
        ([ScheduledUpdate(3), ScheduledUpdate(2)], "change 2 .*must be 3 or more.* got 2"),
        ([ScheduledUpdate(3, {"temperature": 11.0})], "temperature must be a number from 0 to 10"),
        ([ScheduledUpdate(3, {"temperature": float("nan")})], "temperature must be"),
        ([ScheduledUpdate(3, {"top_k": 1.5})], "top_k must be an integer"),
        ([ScheduledUpdate(3, {"seed": 4})], "seed cannot change"),
        ([ScheduledUpdate(3, {"max_tokens": 0})], "max_tokens must be an integer from 1"),
    ],
)
def test_bad_scheduled_updates_are_refused(changes: list[ScheduledUpdate], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        check_updates(changes, SamplingParams())
    assert refusal.value.param == "changes"


def test_refused_scheduled_updates_start_nothing(tokenizer: Tokenizer) -> None:
    engine = Engine(ScriptedRunner, tokenizer, LoadOptions(queue=0))
    for _ in range(5):
        with pytest.raises(InvalidRequest):
            engine.submit(
                Request([1], SamplingParams(max_tokens=2), updates=(ScheduledUpdate(-1),))
            )
    run = engine.generate([1], SamplingParams(max_tokens=2))
    assert [token.id for token in run] == expected([1], 2)
    engine.close()
