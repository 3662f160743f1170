"""A step whose output is not a number is run once more, and the text goes on or is kept."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.checks.rig import greedy, poisoned
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.errors import EngineError
from gpu.load_options import LoadOptions
from gpu.pace import PaceChange
from gpu.request import Request
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.step import NonFinite, Row, Step, StepResult
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.models import random_llama, random_models

PLACE = NonFinite(1, "attn.qkv", "qkv", 7, 2, 64)
PENALISED: dict[str, Any] = {"repetition_penalty": 1.2, "frequency_penalty": 0.3}


class FaultyRunner(ScriptedRunner):
    """Runner whose samples are not numbers in the steps that `is_faulty` says; with `lasting`, in
    their second run as well."""

    def __init__(
        self, is_faulty: Callable[[Step], bool], *, lasting: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self._is_faulty, self._lasting = is_faulty, lasting
        self.n_faults = self.n_repeated = 0

    def submit(self, step: Step) -> None:
        if not (step.samples and self._is_faulty(step)):
            super().submit(step)
            return
        self.n_faults += 1
        script, self.script = self.script, lambda ids: 255
        super().submit(step)
        self.script = script
        self._pending[-1] = _spoiled(self._pending[-1])

    def run_checked(self, step: Step, like: Step) -> tuple[StepResult, NonFinite | None]:
        self.n_repeated += 1
        faulty, self._is_faulty = self._is_faulty, lambda step: False
        result, _ = super().run_checked(step, like)
        self._is_faulty = faulty
        return (_spoiled(result), PLACE) if self._lasting else (result, None)


def _spoiled(result: StepResult) -> StepResult:
    return replace(result, samples=tuple(replace(s, logprob=math.nan) for s in result.samples))


def every(n: int) -> Callable[[Step], bool]:
    """Return a function that is true for every n-th step with samples."""
    count = iter(range(1, 1 << 30))
    return lambda step: next(count) % n == 0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def opened(tokenizer: Tokenizer) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def make(runner: ScriptedRunner, **options: Any) -> Engine:
        engines.append(Engine(lambda: runner, tokenizer, LoadOptions(**options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("settings", [{}, PENALISED], ids=["plain", "penalised"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_text_goes_on_after_faults_of_a_moment(
    opened: Callable[..., Engine], n: int, settings: dict[str, Any]
) -> None:
    """With three steps in flight, two runs, and penalties for what was really written."""
    runner = FaultyRunner(every(n), n_slots=2)
    engine = opened(runner)
    params = SamplingParams(max_tokens=20, **settings)
    runs = [engine.generate([p, p + 1, p + 2], params) for p in (3, 90)]
    for first, run in zip((3, 90), runs, strict=True):
        assert [token.id for token in run] == expected([first, first + 1, first + 2], 20)
    assert runner.n_repeated >= runner.n_faults // 3 > 0


def test_drafts_are_verified_again(opened: Callable[..., Engine]) -> None:
    runner = FaultyRunner(every(2), script=lambda ids: 1 + len(ids) % 5)
    run = opened(runner, spec_type="ngram").generate([1, 2] * 5, SamplingParams(max_tokens=30))
    assert [token.id for token in run] == expected([1, 2] * 5, 30, lambda ids: 1 + len(ids) % 5)
    assert any(sample.n_drafts for step in runner.steps for sample in step.samples)
    assert runner.n_repeated


def test_what_a_paused_text_would_write_is_drawn_again(opened: Callable[..., Engine]) -> None:
    runner = FaultyRunner(every(2))
    run = opened(runner).submit(Request([5, 6], SamplingParams(max_tokens=9), pace=0.0))
    tokens = iter(run)
    for id in expected([5, 6], 5):
        run.update(pace=PaceChange(steps=1))
        assert next(tokens).id == id
    assert runner.n_repeated
    run.cancel()


def test_a_lasting_fault_ends_the_text_with_its_place(
    opened: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    runner = FaultyRunner(lambda step: step.rows[-1].position == 24, lasting=True)
    engine = opened(runner)
    run, written = engine.generate([1 + i for i in range(20)], SamplingParams(max_tokens=20)), []
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(EngineError, match=r"not a number.*: layer 1, attn\.qkv \(kernel qkv"),
    ):
        written += [token.id for token in run]
    assert run.done is not None
    assert run.done.completion_tokens == 5, "what was written before is kept"
    assert "position 24 was not a number" in caplog.text
    assert runner.n_repeated == 1


def test_nobody_uses_the_cache_of_a_text_that_ended_so(opened: Callable[..., Engine]) -> None:
    prompt = [1 + i for i in range(40)]
    lasting = FaultyRunner(lambda step: step.rows[-1].position == 50, lasting=True)
    engine = opened(lasting)
    run = engine.generate(prompt, SamplingParams(max_tokens=5))
    list(run)
    broken = engine.generate(prompt, SamplingParams(max_tokens=20))
    with pytest.raises(EngineError):
        list(broken)
    assert broken.done is not None
    assert broken.done.timings.cache_n > 0
    again = engine.generate(prompt, SamplingParams(max_tokens=5))
    assert [token.id for token in again] == expected(prompt, 5)
    assert again.done is not None
    assert again.done.timings.cache_n == 0


def test_a_run_whose_settings_changed_meanwhile_is_not_run_again(
    opened: Callable[..., Engine],
) -> None:
    """Its next tokens were submitted with the new ones already: the text ends instead."""
    runner = FaultyRunner(lambda step: step.samples[0].index == 4)
    update = ScheduledUpdate(6, {"temperature": 0.5})
    run = opened(runner).submit(Request([5, 6], SamplingParams(max_tokens=9), updates=(update,)))
    with pytest.raises(EngineError, match="not a number"):
        list(run)
    assert runner.n_repeated == 0


# ---- on the device ------------------------------------------------------------------------------

NAME = "odd36"
PROMPT = [int(id) for id in random_llama.ids(NAME, 12)]


Poke = Callable[[Step], tuple[Tensor, int]]
"""Returns a tensor and the word of it that is to be a NaN during a step."""


class Poked:
    """An engine of a small model whose memory is spoiled when it samples after position `at`: for
    that step only, or from then on with `lasting`."""

    def __init__(self, device: Device) -> None:
        folder = random_llama.folder(NAME)
        options = LoadOptions(dtype="f32", slots=2, context=64)
        self.runner = WgpuRunner(
            device, ModelConfig.from_folder(folder), Checkpoint.open(folder), options
        )
        self.runner.close = lambda: None  # type: ignore[method-assign]  # the device is shared
        self.memory = self.runner._memory
        self._submit, self._at = self.runner.submit, -1
        self.runner.submit = self._poke_and_submit  # type: ignore[method-assign]
        self.engine = Engine(lambda: self.runner, Tokenizer.load(folder), options)

    def spoil(self, at: int, poke: Poke, *, lasting: bool) -> None:
        self._at, self._poke, self._lasting = at, poke, lasting

    def _poke_and_submit(self, step: Step, received: None = None) -> None:
        if not step.samples or step.rows[-1].position != self._at:
            self._submit(step)
            return
        self._at = -1
        tensor, word = self._poke(step)
        words = replace(tensor, shape=(tensor.n_bytes // 4,), dtype="f32")
        before = self.memory.read(words)[word : word + 1]
        self.memory.write(words, poisoned(1), at=4 * word)
        self._submit(step)
        if not self._lasting:
            self.memory.write(words, before, at=4 * word)

    def write(self) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        run = self.engine.generate(PROMPT, params)
        ids = [token.id for token in run]
        assert self._at == -1, "nothing was spoiled"
        return ids


@pytest.fixture(scope="module")
def poked(device: Device) -> Iterator[Poked]:
    one = Poked(device)
    yield one
    one.engine.close()


@pytest.mark.ci
@pytest.mark.parity
def test_a_weight_that_is_wrong_for_a_moment_changes_no_text(
    poked: Poked, caplog: pytest.LogCaptureFixture
) -> None:
    right = poked.write()
    poked.spoil(15, lambda step: (poked.runner.model.norm.gain, 3), lasting=False)
    with caplog.at_level(logging.WARNING):
        assert poked.write() == right
    assert "after position 15 was not a number; run again with checked kernels, it is a number" in (
        caplog.text
    )


@pytest.mark.ci
@pytest.mark.parity
def test_a_weight_that_stays_wrong_is_named(poked: Poked) -> None:
    gain = poked.runner.model.norm.gain
    before = poked.memory.read(gain)
    poked.spoil(15, lambda step: (gain, 3), lasting=True)
    try:
        with pytest.raises(EngineError, match=r": head \(kernel matmul\), position 15: 97 of "):
            poked.write()
    finally:
        poked.memory.write(gain, before)


@pytest.mark.parity
def test_a_cached_key_that_is_wrong_is_named_and_computed_again(poked: Poked) -> None:
    right, pool = poked.write(), poked.runner.pools.keys[1]

    def first_key(step: Step) -> tuple[Tensor, int]:
        block = poked.runner.pools.blocks[0][step.rows[0].slot][0]
        return pool, block * pool.n_bytes // pool.shape[0] // 4

    poked.spoil(17, first_key, lasting=True)
    with pytest.raises(
        EngineError, match=r": layer 1, attn\.attention \(kernel attention\), position 17: 8 of 32"
    ):
        poked.write()
    assert poked.write() == right


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "dtype", "n_rows"),
    [
        ("mixtral", "q4", 3),
        pytest.param("gemma3", "f16", 40, marks=pytest.mark.slow),
        pytest.param("qwen2_moe", "q8", 70, marks=pytest.mark.slow),
        pytest.param("gpt2_inner", "f32", 2, marks=pytest.mark.slow),
    ],
)
def test_a_checked_run_gives_the_same_and_finds_nothing(
    device: Device, name: str, dtype: str, n_rows: int
) -> None:
    """In the plan of a larger step, whose other rows hold what earlier steps left."""
    runner = driving.load(device, random_models.folder(name), dtype)
    ids = random_models.ids(n_rows + 1)
    driving.begin(runner, 0, ids, n_rows + 1)
    every_row = tuple(Row(0, i, int(id)) for i, id in enumerate(ids))
    like = Step(every_row, (greedy(n_rows),), capture=True)
    runner.submit(like)
    whole = runner.collect()
    step = replace(like, rows=every_row[2:], samples=(replace(greedy(n_rows - 2), verifies=True),))
    again, place = runner.run_checked(step, like)
    assert place is None
    assert again.samples == whole.samples
    assert again.captured is not None
    assert whole.captured is not None
    np.testing.assert_array_equal(again.captured.residual, whole.captured.residual[2:])
