"""Penalties and biases of whole runs: each token is the one that vLLM's formula chooses, on both
backends, however the run is cut, interrupted or scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest
from gpu.inspection.requests import Waterfall
from gpu.kv.blocks import block_bytes
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.request import Request
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams, TokenBias
from gpu.scheduled_updates import ScheduledUpdate
from gpu.step import Floats
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama

NAME = "odd100_tied"
N = 40
PROMPT = [int(id) for id in random_llama.ids(NAME, 12)]
BIASES = (TokenBias(PROMPT[0], 4.0), TokenBias(114, -100.0), TokenBias(3, 6.0))
PENALISED: dict[str, Any] = {
    "temperature": 0.0,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.25,
    "logit_bias": BIASES,
}


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def engine(request: pytest.FixtureRequest, device: Device) -> Iterator[Engine]:
    """Two slots, and a cache that is too small for two runs."""
    folder = random_llama.folder(NAME)
    config = ModelConfig.from_folder(folder)
    options = LoadOptions(
        dtype="f32", slots=2, context=64, kv_memory_bytes=6 * block_bytes(config, "f32")
    )
    made: list[WgpuRunner | TorchRunner] = []

    def make() -> WgpuRunner | TorchRunner:
        on_torch = request.param == "torch"
        made.append(
            TorchRunner.load(folder, options)
            if on_torch
            else WgpuRunner(device, config, Checkpoint.open(folder), options)
        )
        if not on_torch:  # the device is shared
            made[0].close = lambda: None  # type: ignore[method-assign]
        return made[0]

    one = Engine(make, Tokenizer.load(folder), options)
    yield one
    one.close()


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=N, ignore_eos=True, seed=1, **{**PENALISED, **changes})


def write(engine: Engine, ids: list[int], *updates: ScheduledUpdate, **changes: Any) -> list[int]:
    run = engine.submit(Request(ids, params(**changes), updates=updates))
    written = [token.id for token in run]
    assert run.done is not None
    assert run.done.reason == "length"
    return written


def vllm_logits(logits: Floats, prompt: list[int], output: list[int], p: SamplingParams) -> Floats:
    """`vllm.model_executor.layers.utils.apply_penalties` for one sequence, after `logit_bias`."""
    logits = logits.astype(np.float64)
    for each in p.logit_bias:
        logits[each.id] += each.bias
    vocab = np.arange(len(logits))
    counts = (vocab[:, None] == np.array(output, np.int64)[None, :]).sum(1)
    in_either = np.isin(vocab, prompt) | (counts > 0)
    penalties = np.where(in_either, p.repetition_penalty, 1.0)
    logits = logits * np.where(logits > 0, 1.0 / penalties, penalties)
    logits = logits - p.frequency_penalty * counts
    return logits - p.presence_penalty * (counts > 0)


def check_formula(engine: Engine, written: list[int], settings: list[SamplingParams]) -> None:
    """Check that each token has the largest logit by the formula; `settings`: those of each."""
    raw = engine.logits(PROMPT + written)
    for i, (id, wanted) in enumerate(zip(written, settings, strict=True)):
        logits = vllm_logits(raw[len(PROMPT) + i - 1], PROMPT, written[:i], wanted)
        assert logits[id] >= logits.max() - 1e-4, f"token {i} is {id}, not {logits.argmax()}"


@pytest.mark.slow
def test_every_token_is_the_one_of_the_formula(engine: Engine) -> None:
    written = write(engine, PROMPT)
    check_formula(engine, written, [params()] * N)
    assert write(engine, PROMPT) == written, "the slot remembers an earlier run"
    for without in ("frequency_penalty", "presence_penalty", "logit_bias"):
        neutral = getattr(SamplingParams(), without)
        assert write(engine, PROMPT, **{without: neutral}) != written, f"{without} does nothing"


@pytest.mark.ci
def test_a_slot_gets_the_biases_of_its_next_run(engine: Engine) -> None:
    for id in (5, 290):
        forced = (TokenBias(id, 100.0),)
        assert write(engine, PROMPT, logit_bias=forced, frequency_penalty=0.0) == [id] * N


def test_penalties_that_are_switched_on_late_count_all_that_was_written(engine: Engine) -> None:
    off = {"frequency_penalty": 0.0, "presence_penalty": 0.0}
    on = {name: PENALISED[name] for name in off}
    written = write(engine, PROMPT, ScheduledUpdate(N // 2, on), **off)
    before, after = params(**off), params()
    check_formula(engine, written, [before] * (N // 2) + [after] * (N - N // 2))
    assert written != write(engine, PROMPT, **off)


def test_a_continued_run_counts_what_the_first_one_wrote(engine: Engine) -> None:
    whole = write(engine, PROMPT)
    for n in (1, N // 2):
        rest = engine.generate(
            PROMPT + whole[:n],
            SamplingParams(max_tokens=N - n, ignore_eos=True, first_index=n, **PENALISED),
        )
        assert [token.id for token in rest] == whole[n:]


def test_a_run_that_goes_on_elsewhere_counts_what_it_wrote_there(engine: Engine) -> None:
    whole, n = write(engine, PROMPT), N // 2
    rest = engine.submit(Request(PROMPT + whole[:n], params(), n_written=n))
    assert [token.id for token in rest] == whole[n:]


def test_runs_beside_each_other_count_their_own_tokens(engine: Engine) -> None:
    """The cache has no room for both, so that one is preempted and resumes."""
    other = PROMPT[::-1]
    wanted = [write(engine, ids, frequency_penalty=f) for ids, f in ((PROMPT, 0.5), (other, 1.5))]
    before = engine.stats.n_preemptions
    runs = [
        engine.submit(Request(ids, params(frequency_penalty=f)))
        for ids, f in ((PROMPT, 0.5), (other, 1.5))
    ]
    assert [[token.id for token in run] for run in runs] == wanted
    assert engine.stats.n_preemptions > before


def test_the_waterfall_chooses_what_the_run_wrote(engine: Engine) -> None:
    drawn = {"temperature": 0.8, "top_p": 0.9}
    written = write(engine, PROMPT, **drawn)
    for i in (0, 1, N - 1):
        at = len(PROMPT) + i
        ids = PROMPT + written[:i]
        question = Waterfall(ids, at - 1, params(**drawn), index=i)
        answer = engine.inspect(question).result()
        assert answer.info["chosen"] == written[i]
        shown = list(answer["ids"])
        assert [written[:i].count(id) for id in shown] == list(answer["written"])


def test_a_bias_of_a_token_that_there_is_not_is_refused(engine: Engine) -> None:
    vocab_size = engine.info.model.vocab_size
    bad = params(logit_bias=(TokenBias(vocab_size, 1.0),))
    message = f"logit_bias names token {vocab_size}, but ids go from 0 to {vocab_size - 1}"
    with pytest.raises(InvalidRequest, match=message) as refused:
        engine.submit(Request(PROMPT, bad))
    assert refused.value.param == "logit_bias"
    with pytest.raises(InvalidRequest, match=message):
        engine.inspect(Waterfall(PROMPT, 3, bad, index=0)).result()
