"""The log of steps: rows, drafts and waiting runs as they were, and nothing while nobody reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.engine.step_builder import Scheduled
from gpu.engine.step_log import WATCH_SECONDS, StepLog
from gpu.events import Accepted, Done, Event, Token
from gpu.inspection.requests import Answer, CacheBlocks, RecentSteps, StepPart
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.step import Step, StepResult
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer
from tests.gpu.engine.test_speculation import repeating


class Events:
    """Events of a run, which a test can wait for."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._done = threading.Event()

    def __call__(self, event: Event) -> None:
        self.all.append(event)
        if isinstance(event, Done):
            self._done.set()

    @property
    def number(self) -> int:
        [accepted] = [event for event in self.all if isinstance(event, Accepted)]
        return accepted.run

    def done(self) -> Done:
        assert self._done.wait(20)
        return next(event for event in self.all if isinstance(event, Done))


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Callable[..., Engine]]:
    engines = []

    def make(*, spec_type: str = "none", **options: Any) -> Engine:
        runner = ScriptedRunner(**{"script": repeating, **options})
        one = Engine(
            lambda: runner,
            byte_tokenizer(tmp_path),
            LoadOptions(spec_type=spec_type),
            name="script",
        )
        engines.append(one)
        return one

    yield make
    for one in engines:
        one.close()


def held(engine: Engine) -> AbstractContextManager[None]:
    runner: Any = engine._thread.runner
    return runner.held()  # type: ignore[no-any-return]


def submit(engine: Engine, prompt: list[int], n: int) -> Events:
    events = Events()
    params = SamplingParams(seed=0, temperature=0.0, max_tokens=n)
    engine.submit(Request(prompt, params), events)
    return events


def steps(engine: Engine, after: int = 0) -> Answer:
    return engine.inspect(RecentSteps(after)).result(20)


def parts_of(answer: Answer, run: int, kind: StepPart) -> list[tuple[int, int]]:
    """Return (rows, accepted drafts) of a run in every step in which it has that part."""
    found = answer["parts"].tolist()
    return [(n, accepted) for number, k, n, accepted in found if (number, k) == (run, kind)]


def test_rows_and_drafts_are_those_of_the_run(engine: Callable[..., Engine]) -> None:
    one = engine(spec_type="ngram")
    steps(one)  # from here on it is recorded
    run = submit(one, [1, 2, 3, 4, 5], 50)
    timings = run.done().timings
    answer = steps(one)
    assert sum(n for n, _ in parts_of(answer, run.number, StepPart.PREFILL)) == timings.prompt_n
    decoded = parts_of(answer, run.number, StepPart.DECODE)
    assert sum(n - 1 for n, _ in decoded) == timings.draft_n > 0
    assert sum(accepted for _, accepted in decoded) == timings.draft_n_accepted > 0
    n_tokens = sum(isinstance(event, Token) for event in run.all)
    # The first token comes from the prompt's last row; steps past the end are discarded.
    assert sum(1 + accepted for _, accepted in decoded) >= n_tokens - 1
    numbers = answer["numbers"].tolist()
    assert numbers == list(range(1, len(numbers) + 1))
    assert answer["n_parts"].sum() == len(answer["parts"])
    assert (answer["ms"] >= 0).all()
    assert steps(one, after=numbers[-1])["numbers"].tolist() == []


def test_a_run_that_waits_is_in_the_steps_of_the_others(engine: Callable[..., Engine]) -> None:
    one = engine(n_slots=1)
    steps(one)
    with held(one):
        first, second = submit(one, [1, 2, 3], 30), submit(one, [4, 5, 6], 5)
    first.done()
    second.done()
    answer = steps(one)
    waited = len(parts_of(answer, second.number, StepPart.WAITING))
    assert 0 < waited <= len(answer["numbers"])
    assert parts_of(answer, first.number, StepPart.WAITING) == []
    assert first.number != second.number


def test_a_preempted_run_is_told_from_one_that_waits(engine: Callable[..., Engine]) -> None:
    """Each may come to 4 blocks, and there are 5."""
    one = engine(n_slots=3, n_blocks=5)
    steps(one)
    with held(one):
        runs = [submit(one, [1] * 10, 50), submit(one, [2] * 10, 50)]
    for run in runs:
        run.done()
    answer = steps(one)
    preempted = [len(parts_of(answer, run.number, StepPart.PREEMPTED)) for run in runs]
    assert preempted[0] == 0
    assert preempted[1] > 0


def test_the_blocks_of_each_run_are_named(engine: Callable[..., Engine]) -> None:
    """Two runs share the first block of their prompt."""
    one = engine(n_slots=2)
    prompt = [7] * 20
    submit(one, prompt, 2).done()
    started = threading.Event()
    numbers: list[int] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Accepted):
            numbers.append(event.run)
        if isinstance(event, Token):
            started.set()

    params = SamplingParams(seed=0, temperature=0.0, max_tokens=200)
    runs = [one.submit(Request([*prompt, i], params), on_event) for i in (8, 9)]
    assert started.wait(20)
    answer = one.inspect(CacheBlocks()).result(20)
    for run in runs:
        run.cancel()
    owned: dict[int, list[int]] = {}
    blocks = iter(answer["run_blocks"].tolist())
    for run, n in zip(answer["runs"].tolist(), answer["n_run_blocks"].tolist(), strict=True):
        owned[run] = [next(blocks) for _ in range(n)]
    assert set(owned) <= set(numbers)
    counts = [sum(block in own for own in owned.values()) for block in range(len(answer["owners"]))]
    assert counts == answer["owners"].tolist()


def test_nothing_is_recorded_while_nobody_reads() -> None:
    now = 100.0
    log = StepLog(lambda: now)
    scheduled = Scheduled(Step(()), (), ())
    result = StepResult(())

    def step() -> None:
        log.submitted(scheduled, ())
        log.collected(scheduled, result, 1.0)

    step()
    assert log.read(0) == []
    step()
    assert [record.number for record in log.read(0)] == [1]
    now += WATCH_SECONDS
    step()
    assert [record.number for record in log.read(0)] == [1]
