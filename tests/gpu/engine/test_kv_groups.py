"""Models that alternate layers with and without a sliding window free blocks in those that have
one, and write the same."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.events import Event, Prefill
from gpu.info import KvGroupInfo
from gpu.inspection.requests import AttentionFrom, Beam, Divergence, Losses, Question
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer
from tests.gpu.engine.traffic import stats_after_runs
from tests.gpu.interventions.hand import ManualEngine, branch
from tests.gpu.models import random_models

WINDOW, ROWS, CONTEXT = 40, 16, 800
HELD = blocks_for(WINDOW + ROWS) + 1
Hand = Callable[..., ManualEngine]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Hand:
    def make(**options: Any) -> ManualEngine:
        limits = {"context": CONTEXT, "max_rows": ROWS, "windows": (None, WINDOW), **options}
        return ManualEngine(ScriptedRunner(**limits), tokenizer)

    return make


def test_only_groups_that_read_all_grow_over_ten_windows(hand: Hand) -> None:
    one = hand(n_slots=1, n_blocks=blocks_for(11 * WINDOW) + HELD)
    run = one.start([1] * 5, 10 * WINDOW)
    held = set()
    while not run.finished:
        one.until(lambda n=run.text.n_written: run.finished or run.text.n_written > n)
        one.check_owners()
        if run.tables:
            full, windowed = (len(table.owned) for table in run.tables)
            assert full == len(run.tables[0].blocks)
            held.add(windowed)
    assert max(held) <= blocks_for(WINDOW) + 1
    assert one.scheduler.n_preemptions == 0


def test_the_map_of_blocks_names_the_owners_of_every_group(hand: Hand) -> None:
    one = hand(n_slots=1, n_blocks=80)
    run = one.start([1] * 5, 200)
    one.until(lambda: run.text.n_written == 100)
    state = one.scheduler.kv_state()
    ((number, blocks),) = state.tables
    assert number == run.number
    firsts = [state.first[block] for block in blocks]
    assert all(state.owners[block] == 1 for block in blocks)
    n_full = len(run.tables[0].blocks)
    assert firsts[:n_full] == [i * BLOCK_TOKENS for i in range(n_full)]
    assert min(firsts[n_full:]) > 100 - WINDOW - BLOCK_TOKENS
    assert len(firsts) < 2 * n_full
    assert [state.groups[block] for block in blocks[:n_full]] == [0] * n_full
    assert {state.groups[block] for block in blocks[n_full:]} == {1}
    assert len(state.groups) == one.scheduler.kv.pool.n_blocks
    free = [state.groups[b] for b, n in enumerate(state.n_found) if not n and not state.owners[b]]
    assert set(free) == {-1}
    one.finish(run)
    cached = one.scheduler.kv_state()
    assert [cached.groups[block] for block in blocks] == [state.groups[block] for block in blocks]


def test_a_model_without_groups_says_nothing_of_them(hand: Hand) -> None:
    one = hand(n_slots=1, n_blocks=80, windows=(None,))
    one.run([1] * 40, 2)
    assert one.scheduler.kv_state().groups == ()
    assert [event.reused_blocks for event in prefills(one, [1] * 40)] == [msgspec.UNSET]


def test_a_window_in_all_layers_is_a_group_too(hand: Hand) -> None:
    one = hand(n_slots=1, n_blocks=80, windows=(WINDOW,))
    text = one.run([1 + i % 50 for i in range(160)], 2).ids
    assert set(one.scheduler.kv_state().groups) == {0, -1}
    (found,) = prefills(one, text[:161])
    n_window = 160 // BLOCK_TOKENS - (160 + 1 - WINDOW) // BLOCK_TOKENS
    assert (found.reused, found.reused_blocks) == (160, n_window)


@pytest.mark.ci
@pytest.mark.parametrize("backend", ["wgpu", "torch"])
def test_an_engine_tells_of_a_window_in_all_layers(backend: Any) -> None:
    options = LoadOptions(dtype="f32", backend=backend, slots=1)
    engine = Engine.load(random_models.folder("mistral"), options)
    try:
        assert engine.info.limits.kv_groups == (KvGroupInfo(2, 7),)
        params = SamplingParams(seed=3, max_tokens=20, ignore_eos=True)
        token = list(engine.generate([1 + i for i in range(40)], params))[-1]
        assert token.kv_blocks == blocks_for(59) - (59 - 7) // BLOCK_TOKENS
    finally:
        engine.close()


def prefills(one: ManualEngine, prompt: list[int]) -> list[Prefill]:
    """Run a prompt for one token; return its events."""
    heard: list[Event] = []
    run = one.start(prompt, 1)
    run.text.events.send = heard.append
    one.finish(run)
    return [event for event in heard if isinstance(event, Prefill)]


def test_a_run_says_how_many_blocks_it_found_in_all_groups(hand: Hand) -> None:
    """Of the layers that read everything all of them, of the others those of the window."""
    one = hand(n_slots=1, n_blocks=80)
    text = one.run([1 + i % 50 for i in range(160)], 2).ids
    assert [event.reused_blocks for event in prefills(one, [7] * 20)] == [0, 0]
    found = prefills(one, text[:161])
    n_full = 160 // BLOCK_TOKENS
    n_window = n_full - (160 + 1 - WINDOW) // BLOCK_TOKENS
    assert [(event.reused, event.reused_blocks) for event in found] == [(160, n_full + n_window)]


def evict_group(one: ManualEngine, group: int) -> None:
    """Overwrite the cached blocks of a group, as others would that need them."""
    pool = one.scheduler.kv.pool
    blocks = [b for b in range(pool.n_blocks) if pool.group_of(b) == group]
    assert blocks
    for block in blocks:
        pool._evictable.move_to_end(block, last=False)
    taken = pool.allocate(len(pool._uncached) + len(blocks))
    assert taken is not None
    pool.free(taken)


@pytest.mark.parametrize("group", [0, 1])
def test_a_prefix_of_which_a_group_lost_its_blocks_is_computed_again(
    hand: Hand, group: int
) -> None:
    one = hand(n_slots=1, n_blocks=80)
    run = one.run([1 + i % 50 for i in range(200)], 10)
    evict_group(one, group)
    again = one.run(run.ids[:205], 5)
    assert again.prefill.n_reused == 0
    assert one.run(run.ids[:205], 5).prefill.n_reused > 190


def test_a_prefix_is_found_without_what_its_window_left(hand: Hand) -> None:
    """The blocks behind the window are the first that others overwrite."""
    one = hand(n_slots=1, n_blocks=blocks_for(400) + HELD + 5)
    run = one.run([1 + i % 50 for i in range(350)], 10)
    pool = one.scheduler.kv.pool
    taken = pool.allocate(len(pool._uncached) + 4)
    assert taken is not None
    pool.free(taken)
    assert one.run(run.ids[:355], 5).prefill.n_reused >= 352


def test_blocks_behind_the_window_go_before_those_of_other_texts(hand: Hand) -> None:
    one = hand(n_slots=1, n_blocks=2 * blocks_for(100) + blocks_for(600) + HELD)
    short = one.run([1 + i % 50 for i in range(90)], 5)
    one.run([7] * 5, 500)
    assert one.scheduler.kv.pool.n_evicted > 0
    assert one.run(short.ids[:92], 3).prefill.n_reused > 85


@pytest.mark.parametrize(
    ("seed", "windows", "n_host_blocks"),
    [(0, (None, 40), 0), (1, (None, 40, 40), 6), (2, (None, 100, 24), 0), (3, (90, 20), 12)],
)
def test_runs_interleaved_in_any_way_write_what_each_would_alone(
    hand: Hand, seed: int, windows: tuple[int | None, ...], n_host_blocks: int
) -> None:
    draw = random.Random(seed)
    n_blocks = len(windows) * 18
    one = hand(
        n_slots=3, n_blocks=n_blocks, n_host_blocks=n_host_blocks, windows=windows, context=280
    )
    scheduler = one.scheduler
    for _ in range(300):
        action, runs = draw.random(), [*scheduler.active, *scheduler.waiting]
        if action < 0.1 and len(scheduler.waiting) < 3:
            one.start(branch(draw, one.texts)[:200], draw.randint(1, 80))
        elif action < 0.12 and runs:
            one.cancel(draw.choice(runs))
        elif action < 0.14 and scheduler.active:
            scheduler._preempt(draw.choice(scheduler.active))
        elif action < 0.2:
            text = branch(draw, one.texts)[:200]
            one.recompute(text, draw.randrange(len(text)), keep=draw.random() < 0.8)
        elif len(one.in_flight) < one.runner.in_flight and draw.random() < 0.6:
            one.advance()
        elif one.in_flight:
            one.collect()
        if draw.random() < 0.1:
            one.settle()
            one.check(draw)
    one.finish(*scheduler.active, *scheduler.waiting)
    assert set(scheduler.kv_state().owners) == {0}
    assert scheduler.kv.n_reused > 0


# ---- real models ------------------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[
        ("gemma2", "f32"),
        pytest.param(("gemma2_uncapped", "q8q4"), marks=pytest.mark.slow),
        pytest.param(("gemma3", "f16"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def both(
    request: pytest.FixtureRequest, device: Device, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Engine]]:
    """A model that alternates windows with full layers: with groups, and with one table."""
    name, kv_dtype = request.param
    folder = tmp_path_factory.mktemp(name) / name
    shutil.copytree(random_models.folder(name), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": 9}), "utf-8")
    made = []
    for hybrid in (True, False):
        options = LoadOptions(
            dtype="f32", kv_dtype=kv_dtype, slots=2, hybrid_kv_cache=hybrid, queue=8
        )
        runner = WgpuRunner(
            device, ModelConfig.from_folder(folder), Checkpoint.open(folder), options
        )
        runner.close = lambda: None  # type: ignore[method-assign]
        made.append(Engine(lambda runner=runner: runner, Tokenizer.load(folder), options))
    yield made[0], made[1]
    for engine in made:
        engine.close()


@pytest.mark.ci
def test_a_model_with_groups_writes_the_same_ids_over_ten_windows(
    both: tuple[Engine, Engine],
) -> None:
    rng = np.random.default_rng(0)
    shared = rng.integers(3, 300, 60).tolist()
    prompts = [rng.integers(3, 300, 3).tolist(), shared, [*shared[:45], 5]]
    params = SamplingParams(seed=3, max_tokens=66, ignore_eos=True)
    found = []
    for engine in both:
        runs = [engine.generate(ids, params) for ids in prompts]
        found.append([[(token.id, token.logprob) for token in run] for run in runs])
    grouped, plain = both
    assert found[0] == found[1]
    assert grouped._limits.windows[0] is None
    assert min(window or CONTEXT for window in grouped._limits.windows) == 9
    assert plain._limits.windows == (None,)
    assert grouped.stats.reused_tokens == plain.stats.reused_tokens > 0
    assert stats_after_runs(grouped).used_blocks == 0


IDS = np.random.default_rng(1).integers(3, 300, 120).tolist()


@pytest.mark.parametrize(
    "question",
    [
        Losses(IDS),
        AttentionFrom(IDS, 117),
        Beam(IDS[:90], width=3, depth=4),
        Divergence(IDS, window=0),
        Divergence(IDS, window=5),
    ],
    ids=["Losses", "AttentionFrom", "Beam", "without windows", "other window"],
)
def test_questions_about_a_long_text_have_the_same_answers(
    both: tuple[Engine, Engine], question: Question
) -> None:
    first, second = (engine.inspect(question).result() for engine in both)
    assert [array.name for array in first.arrays] == [array.name for array in second.arrays]
    for ours, theirs in zip(first.arrays, second.arrays, strict=True):
        if ours.name != "blocks":  # of a group of layers, or of all
            assert ours == theirs, ours.name


def test_a_text_takes_less_memory_in_groups(both: tuple[Engine, Engine]) -> None:
    """The same bytes hold more tokens, and the tokens tell how many blocks they take."""
    grouped, plain = (engine.info for engine in both)
    n = len(both[0]._limits.windows)
    assert grouped.limits.block_bytes * n >= plain.limits.block_bytes
    params = SamplingParams(seed=3, max_tokens=20, ignore_eos=True)
    last = [list(engine.generate(IDS[:100], params))[-1].kv_blocks for engine in both]
    assert last[1] == blocks_for(119)
    windows = [window or CONTEXT for window in both[0]._limits.windows]
    assert last[0] == sum(
        blocks_for(119) - max(0, 119 - window) // BLOCK_TOKENS for window in windows
    )
    assert last[0] * grouped.limits.block_bytes < 0.7 * last[1] * plain.limits.block_bytes
