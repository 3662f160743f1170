"""Blocks that have left the sliding window of every layer are free for others."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.engine.inspector import question_blocks
from gpu.inspection.requests import Divergence, Losses
from gpu.kv.blocks import blocks_for
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer
from tests.gpu.interventions.hand import ManualEngine, branch
from tests.gpu.models import random_llama

WINDOW, ROWS = 40, 16
HELD = blocks_for(WINDOW + ROWS) + 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Callable[..., ManualEngine]:
    def make(**options: Any) -> ManualEngine:
        runner = ScriptedRunner(context=800, windows=(WINDOW,), max_rows=ROWS, **options)
        return ManualEngine(runner, tokenizer)

    return make


def test_memory_stays_flat_over_ten_windows(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=1, n_blocks=HELD)
    run = one.start([1] * 5, 10 * WINDOW)
    held = set()
    while not run.finished:
        one.until(lambda n=run.text.n_written: run.finished or run.text.n_written > n)
        one.check_owners()
        held.add(len(run.owned_blocks))
    assert max(held) <= blocks_for(WINDOW) + 1
    assert one.scheduler.n_preemptions == 0


def test_a_prompt_of_many_windows_needs_no_more_blocks(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=2, n_blocks=2 * HELD)
    runs = [one.start([i + 1] * (9 * WINDOW), 20) for i in range(2)]
    one.finish(*runs)
    assert one.scheduler.n_preemptions == 0
    assert set(one.scheduler.kv_state().owners) == {0}


def test_a_borrower_that_reads_all_has_every_block(hand: Callable[..., ManualEngine]) -> None:
    one, n = hand(n_slots=1, n_blocks=40), 10 * WINDOW
    kv, question = one.scheduler.kv, Divergence([1] * n, window=0)
    for all_read, held in ((False, HELD), (True, blocks_for(n))):
        borrowed = one.scheduler.borrow([1] * n, all_read=all_read)
        assert borrowed is not None
        assert len(set(borrowed.tables[0])) == len(borrowed.owned[0]) == held
        assert kv.most_blocks(n, all_read=all_read) == held
        one.scheduler.give_back(borrowed)
    assert question_blocks(question, kv.most_blocks) == blocks_for(n)
    assert question_blocks(Losses([1] * n), kv.most_blocks) == HELD


def test_the_state_names_the_place_of_blocks_in_their_text(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(n_slots=1, n_blocks=40)
    run = one.start([1] * 5, 200)
    one.until(lambda: run.text.n_written == 100)
    state = one.scheduler.kv_state()
    firsts = [first for first, owners in zip(state.first, state.owners, strict=True) if owners]
    assert min(firsts) >= 100 + 5 - 2 * WINDOW
    one.finish(run)


@pytest.mark.parametrize(
    ("seed", "n_host_blocks"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 6), (5, 80)]
)
def test_runs_interleaved_in_any_way_write_what_each_would_alone(
    hand: Callable[..., ManualEngine], seed: int, n_host_blocks: int
) -> None:
    draw = random.Random(seed)
    one = hand(n_slots=3, n_blocks=2 * HELD, n_host_blocks=n_host_blocks)
    scheduler = one.scheduler
    for _ in range(400):
        action, runs = draw.random(), [*scheduler.active, *scheduler.waiting]
        if action < 0.1 and len(scheduler.waiting) < 3:
            one.start(branch(draw, one.texts), draw.randint(1, 120))
        elif action < 0.12 and runs:
            one.cancel(draw.choice(runs))
        elif action < 0.14 and scheduler.active:
            scheduler._preempt(draw.choice(scheduler.active))
        elif len(one.in_flight) < one.runner.in_flight and draw.random() < 0.6:
            one.advance()
        elif one.in_flight:
            one.collect()
        one.check_owners()
    one.finish(*scheduler.active, *scheduler.waiting)
    assert set(scheduler.kv_state().owners) == {0}


@pytest.mark.ci
def test_a_model_with_windows_writes_the_same_with_little_memory(
    device: Device, tmp_path: Path
) -> None:
    """Runs of ten windows; the KV cache holds one of each, or the whole texts."""
    folder = tmp_path / "mistral"
    shutil.copytree(random_llama.folder("long_context"), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"model_type": "mistral", "sliding_window": WINDOW}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    options = LoadOptions(dtype="f32", slots=2, context=10 * WINDOW)
    runner = WgpuRunner(device, ModelConfig.from_folder(folder), Checkpoint.open(folder), options)
    whole = runner.limits
    assert whole.windows == (WINDOW,)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 300, n).tolist() for n in (3, 4 * WINDOW + 9)]
    params = SamplingParams(seed=3, max_tokens=5 * WINDOW, ignore_eos=True)
    found = []
    for limits in (
        replace(whole, n_blocks=2 * HELD, max_rows=ROWS),
        replace(whole, windows=(None,)),
    ):
        runner.limits = limits
        runner.close = lambda: None  # type: ignore[method-assign]
        engine = Engine(lambda: runner, Tokenizer.load(folder), replace(options, warm_up=False))
        try:
            runs = [engine.generate(ids, params) for ids in prompts]
            found.append([[token.id for token in run] for run in runs])
        finally:
            engine.close()
    assert found[0] == found[1]
