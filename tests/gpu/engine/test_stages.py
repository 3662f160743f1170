"""An engine whose model runs in stages writes what one on a single device writes, and gives every
stage texts to work on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.backends import check_options
from gpu.engine.engine import Engine
from gpu.errors import ModelError
from gpu.inspection.requests import (
    AttentionFrom,
    Divergence,
    ForwardPass,
    Knockout,
    LogitLens,
    Losses,
    Question,
)
from gpu.interventions.messages import HeadFactor, Interventions, InterventionSpan, Steer
from gpu.kv.blocks import block_bytes, blocks_for
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.step import FROM_GPU
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.engine.test_interleaving import check, preempt_often
from tests.gpu.engine.traffic import Together, draw_traffic, stats_after_runs, write_alone
from tests.gpu.interventions.hand import ManualEngine
from tests.gpu.models import random_llama

CONTEXT = 80
N_STAGES, N_REQUESTS = 3, 10
BOUNDARY = 2
"""First layer of the second stage: five layers are cut into two, two and one."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return random_llama.folder("derived_head")


@pytest.fixture(scope="module")
def options(folder: Path) -> LoadOptions:
    """Too few blocks for all texts at once."""
    n_bytes = (blocks_for(CONTEXT) + 5) * block_bytes(ModelConfig.from_folder(folder), "f32")
    return LoadOptions(
        dtype="f32", context=CONTEXT, slots=6, queue=N_REQUESTS, kv_memory_bytes=n_bytes
    )


@pytest.fixture(scope="module")
def one(device: Device, folder: Path, options: LoadOptions) -> Iterator[Engine]:
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    runner = WgpuRunner(device, config, checkpoint, options)
    runner._owns_device = False
    engine = Engine(lambda: runner, Tokenizer.load(folder), replace(options, prefix_cache=False))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def staged(folder: Path, options: LoadOptions) -> Iterator[Engine]:
    engine = Engine.load(
        folder, replace(options, pipeline_parallel_size=N_STAGES, spec_type="ngram")
    )
    yield engine
    engine.close()


@pytest.mark.slow
def test_texts_beside_each_other_are_those_of_one_device(
    one: Engine, staged: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With prefixes that are found, drafts, preemptions, changes under way and clients that go
    away."""
    arrivals = draw_traffic(
        random.Random(5), N_REQUESTS, vocab_size=one.config.vocab_size, longest=40, most_tokens=16
    )
    alone = write_alone(one, arrivals)
    preempt_often(monkeypatch, random.Random(5))
    together = Together(staged, arrivals).run()
    check(alone, together)
    stats = stats_after_runs(staged)
    assert stats.used_blocks == stats.n_running == stats.n_waiting == 0
    assert stats.reused_tokens > 0
    assert stats.n_preemptions > 0
    reasons = {written.done.reason for written in together if written.done}
    assert reasons == {"length", "cancelled"}


@pytest.mark.slow
def test_statistics_and_instruments_are_those_of_one_device(one: Engine, staged: Engine) -> None:
    interventions = Interventions(
        heads=(HeadFactor(BOUNDARY, 1, 0.0),), steer=(Steer(BOUNDARY, "a", 4.0),)
    )
    prompt = [5, 9, 100, 7, 31]
    params = SamplingParams(max_tokens=6, seed=3, temperature=0.9, ignore_eos=True)
    request = Request(prompt, params, True, interventions=interventions)
    spans = (InterventionSpan(len(prompt) - 1, interventions),)
    found: list[Any] = []
    for engine in (one, staged):
        tokens = list(engine.submit(request))
        stats = [token.stats for token in tokens]
        layers = [
            (s.residual, s.attention, s.mlp, s.attention_cosine, s.mlp_cosine, s.entropy)
            for of_token in stats
            if of_token is not None
            for s in of_token.layers
        ]
        assert len(layers) == len(tokens) * engine.config.n_layers
        ids = [*prompt, *(token.id for token in tokens)]
        questions: tuple[Question, ...] = (
            LogitLens(ids=ids, position=7, chosen=ids[8], top=5, spans=spans),
            AttentionFrom(ids, 8, spans),
            ForwardPass(ids, 8, BOUNDARY + 1, head=1, spans=spans),
            Losses(ids, rope=False),
            Losses(ids, first=6, spans=spans, knockout=Knockout(1, 4, 1, BOUNDARY + 1, head=1)),
            Divergence(ids, keys="q8", values="q4"),
            Divergence(ids, window=4),
        )
        answers = [engine.inspect(question).result() for question in questions]
        arrays = [array.data for answer in answers for array in answer.arrays]
        found.append((ids, layers, arrays, engine.logits(ids, spans).tobytes()))
    assert found[0] == found[1]


def test_an_engine_says_what_each_stage_has(staged: Engine) -> None:
    info = staged.info
    assert [(s.first_layer, s.n_layers) for s in info.stages] == [(0, 2), (2, 2), (4, 1)]
    assert info.memory.kv_cache == sum(stage.memory.kv_cache for stage in info.stages)
    assert info.device.name.startswith("3 × ")
    assert info.model.n_layers == 5


def test_every_stage_gets_a_share_of_the_texts(tmp_path: Path) -> None:
    """Steps in flight have different texts, and every row has its token."""
    tokenizer = byte_tokenizer(tmp_path)
    runner = ScriptedRunner(n_slots=5, n_blocks=40, n_stages=2)
    hand = ManualEngine(runner, tokenizer)
    runs = [hand.start([i + 1] * 3, 12) for i in range(5)]
    hand.until(lambda: all(run.text.n_written for run in runs))
    n_before = len(runner.steps)
    hand.until(lambda: all(run.text.n_written > 4 for run in runs))
    steps = runner.steps[n_before:]
    assert {len(step.rows) for step in steps[:4]} == {2, 3}
    assert all(row.token != FROM_GPU for step in steps for row in step.rows)
    for step, following in itertools.pairwise(steps[:5]):
        assert not {row.slot for row in step.rows} & {row.slot for row in following.rows}
    for run in runs:
        hand.finish(run)
        assert run.ids[3:] == expected(run.prompt, 12)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pipeline_parallel_size": 0}, "should be 1 or more"),
        ({"pipeline_parallel_size": -2}, "should be 1 or more"),
        ({"backend": "torch"}, "does not go with --backend torch"),
        ({"loras": {"a": Path("a")}}, "does not go with --lora"),
        ({"draft": Path("draft")}, "does not go with --draft"),
    ],
)
def test_what_stages_cannot_do_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    options = replace(LoadOptions(pipeline_parallel_size=2), **changed)
    with pytest.raises(ModelError, match=message):
        check_options(options)
