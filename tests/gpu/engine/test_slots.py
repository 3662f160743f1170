"""With more runs than a step can sample all of them start, and none waits longer than its share."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu.engine.engine import Engine
from gpu.events import Done, Event, Token
from gpu.load_options import LoadOptions
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.plans.plan_cache import SAMPLING
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.step import Step
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected

MODEL = Path(__file__).parents[3] / "app" / "tale" / "model"
SAMPLES = 8
"""Most samples of a step of the scripted runner."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


class Log:
    """Tokens of several runs, in the order in which they came. The engine stands still at the first
    event until `wait`: then all runs are asked for."""

    def __init__(self, n: int) -> None:
        self.tokens: list[tuple[int, int]] = []  # run, id
        self._left = n
        self._all_asked = threading.Event()
        self._all_done = threading.Event()

    def of(self, run: int) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:
            assert self._all_asked.wait(60)
            if isinstance(event, Token):
                self.tokens.append((run, event.id))
            if isinstance(event, Done):
                assert event.reason == "length", event.message
                self._left -= 1
                if not self._left:
                    self._all_done.set()

        return on_event

    def wait(self, seconds: float) -> None:
        self._all_asked.set()
        assert self._all_done.wait(seconds)

    def ids(self, run: int) -> list[int]:
        return [id for other, id in self.tokens if other == run]

    def longest_wait(self, run: int) -> int:
        """Tokens of others that came between two of the run."""
        places = [i for i, (other, _) in enumerate(self.tokens) if other == run]
        return max(b - a - 1 for a, b in itertools.pairwise(places))


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32])
def test_no_run_waits_longer_than_its_share(tokenizer: Tokenizer, n: int) -> None:
    runner = ScriptedRunner(n_slots=n, context=96, n_blocks=6 * n, max_rows=32)
    engine = Engine(lambda: runner, tokenizer, LoadOptions(queue=2))
    log, n_tokens = Log(n), 40
    prompts = [[i + 1, i + 2, i + 3] for i in range(n)]
    try:
        for i, prompt in enumerate(prompts):
            engine.submit(Request(prompt, SamplingParams(max_tokens=n_tokens)), log.of(i))
        log.wait(30)
    finally:
        engine.close()
    assert [log.ids(i) for i in range(n)] == [expected(prompt, n_tokens) for prompt in prompts]
    share = -(-n // SAMPLES)
    for slot in range(n):
        waits = steps_waited(runner.steps, slot)
        assert waits[0] <= share, f"slot {slot} got its first token after {waits[0]} steps"
        assert max(waits) <= share, f"slot {slot} waited {max(waits)} steps; its share is {share}"


def steps_waited(steps: list[Step], slot: int) -> list[int]:
    """Return, for each token of a slot, the steps since the token before; for the first, since all
    of the prompt but its last row was computed."""
    sampled = [i for i, step in enumerate(steps) if any(s.slot == slot for s in step.samples)]
    rows = [i for i, step in enumerate(steps) if any(r.slot == slot for r in step.rows)]
    return [b - a for a, b in zip([rows[0], *sampled], sampled, strict=False)]


def test_a_new_prompt_gets_its_turn_among_those_that_write(tokenizer: Tokenizer) -> None:
    """One by one beside nine that write all the time: each of them begins at once, and they stop
    nobody."""
    runner = ScriptedRunner(n_slots=12, context=256, n_blocks=200, max_rows=32)
    engine = Engine(lambda: runner, tokenizer, LoadOptions(queue=2))
    log, short, beside = Log(9 + 30), SamplingParams(max_tokens=1), []

    def ask(i: int) -> None:
        """Ask for a short text; the next follows when it is done, on the engine's thread."""
        note = log.of(9 + i)

        def on_event(event: Event) -> None:
            note(event)
            if isinstance(event, Done):
                beside.append(min(len(log.ids(run)) for run in range(9)))
                if i < 29:
                    ask(i + 1)

        engine.submit(Request([100 + i, 7, 8], short), on_event)

    try:
        for i in range(9):
            engine.submit(Request([i + 1], SamplingParams(max_tokens=200)), log.of(i))
        ask(0)
        log.wait(30)
    finally:
        engine.close()
    for i in range(30):
        assert log.ids(9 + i) == expected([100 + i, 7, 8], 1)
    assert beside[-1] < 200, "the nine wrote all the time"
    for slot in range(9):
        assert max(steps_waited(runner.steps, slot)) <= 2


@pytest.mark.parametrize(("max_samples", "max_rows"), [(4, 4), (4, 8), (1, 2), (16, 16)])
def test_prompts_get_rows_where_all_of_a_step_could_write(
    tokenizer: Tokenizer, max_samples: int, max_rows: int
) -> None:
    """A backend whose steps have no more rows than samples, with more runs than either."""
    n = 3 * max_samples
    runner = ScriptedRunner(
        n_slots=n, context=96, n_blocks=6 * n, max_rows=max_rows, max_samples=max_samples
    )
    engine = Engine(lambda: runner, tokenizer, LoadOptions(queue=2))
    log, prompts = Log(n), [[i + 1] * (i % 7 + 1) for i in range(n)]
    try:
        for i, prompt in enumerate(prompts):
            engine.submit(Request(prompt, SamplingParams(max_tokens=50)), log.of(i))
        log.wait(30)
    finally:
        engine.close()
    assert [log.ids(i) for i in range(n)] == [expected(prompt, 50) for prompt in prompts]
    for slot in range(n):
        assert max(steps_waited(runner.steps, slot)[1:]) <= -(-n // min(max_samples, max_rows - 1))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("backend", "dtype", "n", "capture"),
    [
        ("wgpu", "f16", 12, False),
        pytest.param("wgpu", "f16", 12, True, marks=pytest.mark.slow),
        pytest.param("wgpu", "f16", 32, False, marks=pytest.mark.slow),
        pytest.param("torch", "f32", 12, False, marks=pytest.mark.slow),
    ],
)
def test_runs_of_a_model_keep_pace(backend: str, dtype: str, n: int, capture: bool) -> None:
    n_tokens = 40
    engine = Engine.load(MODEL, LoadOptions(backend=backend, dtype=dtype, slots=n, context=64))
    params = [
        SamplingParams(temperature=0.8, max_tokens=n_tokens, ignore_eos=True, seed=i)
        for i in range(n)
    ]
    prompts = [engine.tokenizer.encode(f"Once upon a time {i} foxes") for i in range(n)]
    log = Log(n)
    try:
        for i, prompt in enumerate(prompts):
            engine.submit(Request(prompt, params[i], capture=capture), log.of(i))
        log.wait(300)
        if backend == "wgpu":  # PyTorch's sums depend on how many rows are computed at once
            alone = engine.generate(prompts[-1], params[-1])
            assert [token.id for token in alone] == log.ids(n - 1)
    finally:
        engine.close()
    began = [next(i for i, (other, _) in enumerate(log.tokens) if other == run) for run in range(n)]
    most = n if backend == "torch" else min(n, MAX_SAMPLES)
    assert max(began) <= n * most  # every prompt takes a step, in which so many others write
    for run in range(n):
        assert log.longest_wait(run) < 2 * n


@pytest.mark.parametrize("n_slots", [1, 8, 9, 16, 256])
def test_warm_up_covers_as_many_samples_as_a_step_can_have(device: Device, n_slots: int) -> None:
    runner = driving.load(device, MODEL, dtype="f16", n_slots=n_slots)
    plans = [*runner._plans_to_warm(), *runner._plans_with_interventions()]
    most = max(plan.key.samples for plan in plans if plan.key.kind in SAMPLING)
    assert most == 1 << (min(n_slots, 16) - 1).bit_length()  # more use the same kernels


# ---- what goes wrong before the first request ------------------------------------------------


class NotWarm(ScriptedRunner):
    """Compiling in advance fails at the second kernel."""

    def warm_up(self, *, interventions: bool = False) -> Iterator[None]:
        yield
        raise ValueError("a step of 9 is larger than 8")


def test_a_failing_warm_up_is_reported_once_and_serving_goes_on(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        engine = Engine(NotWarm, tokenizer, LoadOptions(warm_up=True))
        try:
            written = engine.generate([3], SamplingParams(max_tokens=4))
            assert [t.id for t in written] == expected([3], 4)
            while not caplog.records:
                assert engine.failure is None
                time.sleep(0.01)
            assert [t.id for t in engine.generate([5], SamplingParams(max_tokens=4))] == expected(
                [5], 4
            )
        finally:
            engine.close()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "kernels could not be compiled in advance (a step of 9 is larger than 8); the first "
        "requests compile what they need and take longer"
    ]


class Indescribable(ScriptedRunner):
    """Runner that records the thread on which it was asked for its description, and fails to give
    it."""

    asked_on = ""

    @property  # type: ignore[override]
    def dispatches_per_token(self) -> int:
        self.asked_on = threading.current_thread().name
        raise RuntimeError("no kernel for this")

    @dispatches_per_token.setter
    def dispatches_per_token(self, value: int) -> None: ...


def test_a_runner_that_cannot_be_described_is_closed_and_its_error_raised(
    tokenizer: Tokenizer,
) -> None:
    runner = Indescribable()
    with pytest.raises(RuntimeError, match="no kernel for this"):
        Engine(lambda: runner, tokenizer, LoadOptions(warm_up=True))
    assert runner.closed
    assert runner.asked_on == "tokenglass engine"


def test_a_prompt_does_not_wait_until_those_that_write_have_ended(tokenizer: Tokenizer) -> None:
    """Four write, and a step has four rows: without a row kept for it, the fifth's prompt would be
    read when one of them has ended."""
    runner = ScriptedRunner(n_slots=5, context=256, n_blocks=80, max_rows=4, max_samples=4)
    engine = Engine(lambda: runner, tokenizer, LoadOptions(queue=2))
    log, n_tokens = Log(5), 200
    try:
        for i in range(5):
            engine.submit(Request([i + 1, 7], SamplingParams(max_tokens=n_tokens)), log.of(i))
        log.wait(60)
    finally:
        engine.close()
    first = next(at for at, (run, _) in enumerate(log.tokens) if run == 4)
    before = [sum(run == other for run, _ in log.tokens[:first]) for other in range(4)]
    assert max(before) < n_tokens // 2, f"the others wrote {before} tokens before its first"
