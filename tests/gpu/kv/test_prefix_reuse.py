"""Reuse of cached prefixes gives the same as computing them: the same bits on a GPU; on the CPU
equal up to rounding, as PyTorch sums products of few rows in another order than of many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint
from gpu.checks.rig import greedy
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.engine.kv_copies import submit_copies
from gpu.engine.scheduler import Scheduler
from gpu.events import Done, Event, Prefill, Queued, Token, TokenStats
from gpu.kv.blocks import block_bytes, blocks_for
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.request import Request
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.step import Floats, Row, Step
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_llama
from tests.gpu.runners.test_wgpu_runner import live_objects

NAME = "derived_head"
N_BLOCKS = 24
SMALL = 8  # blocks of the longest text


@pytest.fixture(scope="module", params=["wgpu-f16", "torch-f32"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runner(kind: str, device: Device) -> Iterator[Runner]:
    """One runner per kind: compiling takes longer than the tests."""
    backend, dtype = kind.split("-")
    folder = random_llama.folder(NAME)
    config = ModelConfig.from_folder(folder)
    room: dict[str, Any] = {
        "dtype": dtype,
        "slots": 3,
        "context": 16 * SMALL,
        "kv_memory_bytes": N_BLOCKS * block_bytes(config, FORMATS[dtype].kv),
        "kv_offload_bytes": N_BLOCKS * block_bytes(config, FORMATS[dtype].kv),
    }
    if backend == "torch":
        torch = TorchRunner.load(folder, LoadOptions(**room))
        yield torch
        torch.close()
    else:
        yield WgpuRunner(device, config, Checkpoint.open(folder), LoadOptions(**room))


@pytest.fixture
def use(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Yield an engine on the runner with an empty cache."""
    tokenizer = Tokenizer.load(random_llama.folder(NAME))
    monkeypatch.setattr(runner, "close", lambda: None)
    whole = runner.limits

    @contextmanager
    def opened(
        *, prefix_cache: bool, n_blocks: int = N_BLOCKS, n_host_blocks: int = 0
    ) -> Iterator[Engine]:
        n_blocks = min(n_blocks, whole.n_blocks)
        runner.limits = replace(whole, n_blocks=n_blocks, n_host_blocks=n_host_blocks)
        engine = Engine(lambda: runner, tokenizer, LoadOptions(prefix_cache=prefix_cache))
        yield engine
        engine.close()
        runner.limits = whole

    return opened


def prompt_of(n: int, seed: int = 0) -> list[int]:
    return [int(id) for id in random_llama.ids(NAME, n, seed=seed)]


def params(n: int, seed: int | None = None) -> SamplingParams:
    """Return parameters, greedy without a seed."""
    if seed is None:
        return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
    return SamplingParams(
        temperature=0.9,
        top_p=0.95,
        repetition_penalty=1.2,
        seed=seed,
        max_tokens=n,
        ignore_eos=True,
    )


class Written:
    """A run's events; waits for its end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.some = threading.Event()
        self._done = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Token) and event.index >= 3:
            self.some.set()
        if isinstance(event, Done):
            self._done.set()

    def wait(self) -> Written:
        self._done.wait()
        return self

    @property
    def tokens(self) -> list[Token]:
        return [event for event in self.events if isinstance(event, Token)]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def reused(self) -> int:
        return max(event.reused for event in self.events if isinstance(event, Prefill))


def write(engine: Engine, ids: list[int], wanted: SamplingParams, capture: bool = False) -> Written:
    written = Written()
    engine.submit(Request(ids, wanted, capture=capture), written)
    return written.wait()


def timeless(token: Token) -> list[Any]:
    """Return a token without its times, which differ between runs."""
    stats = token.stats
    kept = msgspec.structs.replace(token, times=None, stats=None)  # type: ignore[arg-type]
    return [kept, None if stats is None else numbers(stats)]


def numbers(stats: TokenStats) -> list[float]:
    layers = [
        (s.residual, s.attention, s.mlp, s.attention_cosine, s.mlp_cosine, *s.entropy)
        for s in stats.layers
    ]
    return [stats.embedding, *(value for layer in layers for value in layer)]


def assert_same(kind: str, some: list[Token], others: list[Token]) -> None:
    assert [token.id for token in some] == [token.id for token in others]
    if kind.startswith("wgpu"):
        assert [timeless(token) for token in some] == [timeless(token) for token in others]
        return
    for a, b in zip(some, others, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
        assert a.n_kept == b.n_kept
        if a.stats is not None and b.stats is not None:
            assert numbers(a.stats) == pytest.approx(numbers(b.stats), rel=1e-4, abs=1e-4)


def conversation(engine: Engine, capture: bool) -> list[Written]:
    """Return a prompt, its continuation, the next turn, a branch inside a block, an edited turn, a
    prompt of full blocks, and the first prompt again with another seed."""
    prompt = prompt_of(40)
    written: list[Written] = []

    def more(ids: list[int], wanted: SamplingParams) -> list[int]:
        written.append(write(engine, ids, wanted, capture))
        return ids + written[-1].ids

    text = more(prompt, params(21))
    text = more(text, params(9))
    text = more([*text, *prompt_of(13, seed=5)], params(9, seed=3))
    more([*prompt[:25], *prompt_of(4, seed=6)], params(9))
    more([*text[:50], *prompt_of(9, seed=7)], params(9, seed=8))
    more(prompt[:32], params(9))
    more(prompt, params(21, seed=9))
    return written


@pytest.mark.ci
@pytest.mark.parametrize(
    "capture",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["plain", "captured"],
)
def test_a_conversation_is_the_same_with_and_without_the_cache(
    kind: str, use: Callable[..., Any], capture: bool
) -> None:
    """Every token, with its candidates and statistics."""
    with use(prefix_cache=False) as engine:
        fresh = conversation(engine, capture)
    with use(prefix_cache=True) as engine:
        found = conversation(engine, capture)
    for some, others in zip(found, fresh, strict=True):
        assert_same(kind, some.tokens, others.tokens)
    assert [run.reused for run in fresh] == [0] * 7
    assert [run.reused for run in found] == [0, 60, 69, 25, 50, 31, 39]


@pytest.mark.ci
@pytest.mark.parametrize("prefix_cache", [False, True], ids=["computed", "found"])
def test_a_run_on_the_prefix_of_another_writes_the_same_rest(
    kind: str, use: Callable[..., Any], prefix_cache: bool
) -> None:
    """Penalties see the same tokens, and draws continue where those of the beginning end."""
    prompt, wanted = prompt_of(21), params(30, seed=4)
    with use(prefix_cache=prefix_cache) as engine:
        whole = write(engine, prompt, wanted, capture=True)
        for n in (1, 7, 12, 29):
            rest = msgspec.structs.replace(wanted, first_index=n, max_tokens=30 - n)
            again = write(engine, prompt + whole.ids[:n], rest, capture=True)
            moved = [msgspec.structs.replace(t, index=t.index + n) for t in again.tokens]
            assert_same(kind, moved, whole.tokens[n:])
            assert again.reused == (20 + n if prefix_cache else 0)
        other = msgspec.structs.replace(wanted, first_index=6, max_tokens=23)
        assert write(engine, prompt + whole.ids[:7], other).ids != whole.ids[7:]


@pytest.mark.ci
def test_cancelling_one_run_leaves_those_that_share_its_prompt(
    kind: str, use: Callable[..., Any]
) -> None:
    prompt, branch = prompt_of(45), [*prompt_of(40), *prompt_of(5, seed=9)]
    settings = [params(60, seed=seed) for seed in (1, 2, 3)]
    with use(prefix_cache=True) as engine:
        written = [Written() for _ in settings]
        runs = [
            engine.submit(Request(prompt, wanted), sink)
            for wanted, sink in zip(settings, written, strict=True)
        ]
        assert written[0].some.wait(60)
        runs[0].cancel()
        late = write(engine, branch, params(20))
        for sink in written:
            sink.wait()
    assert (written[0].reused, late.reused) == (0, 40)
    # Who comes while the first run writes in the last block of its prompt finds those before it.
    assert {sink.reused for sink in written[1:]} <= {32, 44}
    with use(prefix_cache=False) as engine:
        for wanted, sink in zip(settings[1:], written[1:], strict=True):
            assert_same(kind, sink.tokens, write(engine, prompt, wanted).tokens)
        assert_same(kind, late.tokens, write(engine, branch, params(20)).tokens)


def test_a_text_is_the_same_when_the_cache_is_full(kind: str, use: Callable[..., Any]) -> None:
    """Few blocks, enough for texts of three and four: most reused texts were partly evicted."""
    texts = [prompt_of(n, seed=n) for n in (37, 30, 45)]
    texts += [texts[2], *texts, [*texts[0][:20], *texts[1][:9]]]
    with use(prefix_cache=True, n_blocks=SMALL) as engine:
        found = [write(engine, text, params(11)) for text in texts]
    with use(prefix_cache=False, n_blocks=SMALL) as engine:
        for text, run in zip(texts, found, strict=True):
            assert_same(kind, run.tokens, write(engine, text, params(11)).tokens)
    reused = [run.reused for run in found]
    assert reused[:4] == [0, 0, 0, 44]
    assert 0 < sum(reused[4:]) < sum(len(text) - 1 for text in texts[4:])


@pytest.mark.parametrize("n_host_blocks", [3, N_BLOCKS])
def test_a_text_is_the_same_when_its_beginning_was_in_host_memory(
    kind: str, use: Callable[..., Any], n_host_blocks: int
) -> None:
    """Greedy and seeded, with more texts than the cache has blocks for, each written twice."""
    texts = [prompt_of(n, seed=n) for n in (37, 30, 45, 70)]
    order = [0, 1, 2, 3, 2, 0, 3, 1]
    asked = [(texts[i], params(6, seed=at if at % 2 else None)) for at, i in enumerate(order)]
    with use(prefix_cache=True, n_blocks=SMALL, n_host_blocks=n_host_blocks) as engine:
        found = [write(engine, ids, wanted) for ids, wanted in asked]
        stats = engine.stats
    assert stats.loaded_tokens > 0
    assert stats.stored_bytes >= stats.used_host_blocks * engine.info.limits.block_bytes > 0
    if n_host_blocks == N_BLOCKS:
        for (ids, _), run in zip(asked[4:], found[4:], strict=True):
            assert run.reused >= (len(ids) - 1) // 16 * 16
    with use(prefix_cache=False, n_blocks=SMALL) as engine:
        for (ids, wanted), run in zip(asked, found, strict=True):
            assert_same(kind, run.tokens, write(engine, ids, wanted).tokens)


@pytest.mark.ci
@pytest.mark.parametrize("prefix_cache", [False, True], ids=["computed", "found"])
def test_runs_that_give_way_to_each_other_write_what_each_would_alone(
    kind: str, use: Callable[..., Any], prefix_cache: bool
) -> None:
    """Nine runs of up to 8 blocks each in a cache of 9, three at a time (five under torch, which is
    slower); every token with its candidates and statistics."""
    asked = [
        (prompt_of(5 + 7 * (i % 3), seed=i % 4), params(90, seed=i if i % 3 else None))
        for i in range(5 if kind.startswith("torch") else 9)
    ]
    with use(prefix_cache=prefix_cache, n_blocks=SMALL + 1) as engine:
        written = [Written() for _ in asked]
        for (ids, wanted), sink in zip(asked, written, strict=True):
            engine.submit(Request(ids, wanted, capture=True), sink)
        for sink in written:
            sink.wait()
    paused = [sum(isinstance(e, Queued) and e.position > 0 for e in w.events) for w in written[:3]]
    assert any(paused), "runs that had begun gave way"
    with use(prefix_cache=False) as engine:
        for (ids, wanted), sink in zip(asked, written, strict=True):
            assert_same(kind, sink.tokens, write(engine, ids, wanted, capture=True).tokens)


# ---- without the engine ----------------------------------------------------------------------


def logits_of(runner: Runner, slot: int, ids: list[int], first: int) -> Floats:
    """Return the logits after each of ids[first:], a few rows at a time."""
    n, parts = runner.limits.max_samples, []
    for at in range(first, len(ids), n):
        part = ids[at : at + n]
        rows = tuple(Row(slot, at + i, id) for i, id in enumerate(part))
        parts.append(runner.logits(Step(rows, tuple(greedy(i, slot) for i in range(len(part))))))
    return np.concatenate(parts)


@pytest.mark.parametrize("n_shared", [16, 31, 32, 40, 63])
def test_logits_after_a_cached_prefix_equal_those_of_a_computed_one(
    kind: str, runner: Runner, n_shared: int
) -> None:
    """The prefix lies in borrowed blocks of the inspection slot, while another text continues in
    its own."""
    scheduler = Scheduler(runner.limits)
    first, other = prompt_of(64), [*prompt_of(64)[:n_shared], *prompt_of(20, seed=4)]
    for ids, n_found in ((first, 0), (other, n_shared)):
        borrowed = scheduler.borrow(ids)
        assert borrowed is not None
        assert borrowed.n_reused == n_found
        assert bool(borrowed.copies) == (n_found % 16 > 0)
        submit_copies(runner, borrowed.copies)
        runner.set_blocks(borrowed.slot, borrowed.tables[0])
        got = logits_of(runner, borrowed.slot, ids, n_found)
        scheduler.give_back(borrowed, len(ids))
    fresh_blocks = [b for b in range(N_BLOCKS) if scheduler.kv.pool.cached(b) is None]
    runner.set_blocks(0, fresh_blocks[: blocks_for(len(other))])
    fresh = logits_of(runner, 0, other, 0)[n_shared:]
    if kind.startswith("wgpu"):
        assert np.array_equal(got.view(np.uint32), fresh.view(np.uint32))
    else:
        assert np.abs(got - fresh).max() <= 1e-5 * np.abs(fresh).max()


def test_a_block_is_copied_in_submission_order(runner: Runner) -> None:
    """Steps submitted before the copy are in it, those after are not: exactly, everywhere."""
    ids, later = prompt_of(16), prompt_of(16, seed=1)
    driving.begin(runner, 0, ids, 16, [3])
    whole = tuple(Row(0, i, id) for i, id in enumerate(ids))
    runner.submit(Step(whole, (greedy(15),)))
    runner.copy_block(3, 7)
    runner.submit(Step(tuple(Row(0, i, id) for i, id in enumerate(later)), (greedy(15),)))
    runner.collect()
    runner.collect()
    row = Step((Row(0, 16, 5),), (greedy(0),))
    got = {}
    for block in (3, 7):
        runner.set_blocks(0, [block, 9])
        got[block] = runner.logits(row)
    for block, text in ((3, later), (7, ids)):
        driving.begin(runner, 0, text, 17, [20, 21])
        driving.prefill(runner, text)
        assert np.array_equal(runner.logits(row), got[block])
    assert not np.array_equal(got[3], got[7])


def test_a_block_is_stored_and_loaded_in_submission_order(runner: Runner) -> None:
    """Steps submitted before a block is stored are in it, those after are not; the place is then
    used again, and what was loaded stays."""
    ids, later = prompt_of(16), prompt_of(16, seed=1)
    driving.begin(runner, 0, ids, 16, [3])
    for text in (ids, later):
        runner.submit(Step(tuple(Row(0, i, id) for i, id in enumerate(text)), (greedy(15),)))
        if text is ids:
            runner.store_block(3, 5)
    runner.load_block(5, 7)
    runner.store_block(3, 5)
    runner.load_block(5, 8)
    runner.collect()
    runner.collect()
    row = Step((Row(0, 16, 5),), (greedy(0),))
    got = {}
    for block in (7, 8):
        runner.set_blocks(0, [block, 9])
        got[block] = runner.logits(row)
    for block, text in ((7, ids), (8, later)):
        driving.begin(runner, 0, text, 17, [20, 21])
        driving.prefill(runner, text)
        assert np.array_equal(runner.logits(row), got[block])
    assert not np.array_equal(got[7], got[8])


@pytest.mark.parametrize("kind", ["wgpu-f16"], indirect=True)
def test_copying_blocks_allocates_nothing_permanent(runner: Runner) -> None:
    runner.copy_block(0, 1)
    runner.store_block(0, 1)
    runner.load_block(1, 2)
    driving.generate(runner, prompt_of(5), 3)
    before = live_objects()
    for i in range(50):
        runner.copy_block(i % N_BLOCKS, (i + 1) % N_BLOCKS)
        runner.store_block(i % N_BLOCKS, i % 7)
        runner.load_block(i % 7, i % N_BLOCKS)
    driving.generate(runner, prompt_of(5), 3)
    assert live_objects() == before
