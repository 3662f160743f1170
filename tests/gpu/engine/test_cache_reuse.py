"""Chunks of a prompt that are reused although the text before them changed (`cache_reuse`)."""

from __future__ import annotations

import itertools
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest, ModelError
from gpu.events import Done, Event, MovedChunk, Prefill, Token
from gpu.inspection.requests import InterventionEffect, Losses
from gpu.interventions.messages import HeadFactor, Interventions
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.cache_reuse import find_reusable_chunks
from gpu.kv.prefix_cache import BlockHashes, PrefixCache
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from tests.gpu.engine.conftest import Opened
from tests.gpu.engine.scripted_runner import ScriptedRunner, expected
from tests.gpu.engine.traffic import stats_after_runs
from tests.gpu.models import random_llama, random_models

OTHER = [7] * 21
"""Text before a chunk that is unlike any other."""


def runner_of(**limits: Any) -> ScriptedRunner:
    return ScriptedRunner(**{"context": 256, "n_blocks": 40, **limits})


def write(
    engine: Engine, ids: list[int], n: int = 4, **request: Any
) -> tuple[list[int], list[Event]]:
    """Return the ids that a run writes, and its events."""
    events: list[Event] = []
    ended = threading.Event()

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, Done):
            ended.set()

    engine.submit(Request(ids, SamplingParams(max_tokens=n, temperature=0), **request), note)
    assert ended.wait(60)
    return [event.id for event in events if isinstance(event, Token)], events


def moved_of(events: list[Event]) -> tuple[MovedChunk, ...]:
    moved = next(event.moved for event in reversed(events) if isinstance(event, Prefill))
    return () if isinstance(moved, msgspec.UnsetType) else moved


def text(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 256) for _ in range(n)]


# ---- the search -----------------------------------------------------------------------------


def cache_of(*texts: list[int]) -> PrefixCache:
    """Return a cache of texts, each in blocks of its own, one after the other."""
    cache, block = PrefixCache(), itertools.count()
    for ids in texts:
        hashes = BlockHashes()
        for first in range(0, len(ids), BLOCK_TOKENS):
            cache.insert(next(block), ids, first, min(BLOCK_TOKENS, len(ids) - first), hashes)
    return cache


def test_a_chunk_is_found_from_its_first_token_to_its_last_wherever_it_is() -> None:
    """It begins and ends inside blocks; the places are those of its own tokens."""
    old = text(90)
    cache = cache_of(old)
    prompt = [*OTHER, *old[13:87], 1, 2]
    (chunk,) = find_reusable_chunks(cache, prompt, 0, len(prompt), 1)
    assert (chunk.first, chunk.end, chunk.source, chunk.shift) == (21, 95, 13, 8)
    assert list(chunk.places) == list(range(13, 87))
    assert chunk.blocks == [0, 1, 2, 3, 4, 5]


def test_several_chunks_are_found_in_order_and_the_longest_of_each() -> None:
    a, b = text(64, 1), text(64, 2)
    cache = cache_of([9, *a[:40], *text(7, 3)], a, b)
    prompt = [*OTHER, *b, 5, 5, *a]
    found = find_reusable_chunks(cache, prompt, 0, len(prompt), 1)
    assert [(c.first, c.end, c.source) for c in found] == [(21, 85, 0), (87, 151, 0)]


def test_only_chunks_of_at_least_n_tokens_within_the_limits_are_found() -> None:
    old = text(64)
    cache = cache_of(old)
    prompt = [*OTHER, *old[:40], *OTHER]
    assert not find_reusable_chunks(cache, prompt, 0, len(prompt), 41)
    (whole,) = find_reusable_chunks(cache, prompt, 0, len(prompt), 40)
    assert (whole.first, whole.end) == (21, 61)
    (part,) = find_reusable_chunks(cache, prompt, 25, 58, 20)
    assert (part.first, part.end, part.source) == (25, 58, 4)


def test_31_tokens_in_a_row_are_always_found_and_15_never() -> None:
    old = text(64)
    for first in range(17):
        (chunk,) = find_reusable_chunks(
            cache_of(old), [*OTHER, *old[first : first + 31], 3], 0, 52, 1
        )
        assert (chunk.first, chunk.end) == (21, 52)
        assert not find_reusable_chunks(cache_of(old), [*OTHER, *old[first : first + 15]], 0, 36, 1)


def test_chunks_of_texts_with_another_salt_are_not_found() -> None:
    old, cache = text(64), PrefixCache()
    for block in range(4):
        cache.insert(block, old, BLOCK_TOKENS * block, BLOCK_TOKENS, BlockHashes(salt="mine"))
    for salt, n in (("mine", 1), ("yours", 0), ("", 0)):
        assert len(find_reusable_chunks(cache, [*OTHER, *old], 0, 85, 1, salt)) == n


def test_text_that_repeats_itself_is_searched_once() -> None:
    """Nothing of it is long enough; comparing every place with every other would take minutes."""
    cache = cache_of([5] * 4000)
    assert not find_reusable_chunks(cache, [*OTHER, *[5] * 4000], 0, 4021, 10_000)
    (chunk,) = find_reusable_chunks(cache, [*OTHER, *[5] * 4000], 0, 4021, 3000)
    assert chunk.end - chunk.first >= 3000


def test_what_interventions_computed_is_not_found_and_what_was_moved_is() -> None:
    old = text(40)
    for hashes, found in ((BlockHashes(lambda position: b"steered"), 0), (BlockHashes(), 1)):
        cache = PrefixCache()
        if found:
            hashes.begin_approximate(3)
        for block in range(2):
            cache.insert(block, old, 16 * block, 16, hashes)
        assert len(find_reusable_chunks(cache, [*OTHER, *old], 0, 61, 1)) == found


# ---- the engine -----------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [(None,), (None, 30)])
def test_chunks_after_a_change_are_moved_and_the_rest_is_computed(
    opened: Opened, windows: tuple[int | None, ...]
) -> None:
    runner = runner_of(windows=windows)
    engine = opened(runner)
    a, b = text(64, 1), text(64, 2)
    write(engine, [*a, *b])
    n_before = sum(len(step.rows) for step in runner.steps)
    prompt = [*a[:20], 3, *a[20:], *OTHER, *b, 9]
    ids, events = write(engine, prompt, cache_reuse=32)
    assert ids == expected(prompt, 4)
    assert moved_of(events) == (MovedChunk(21, 65, 20), MovedChunk(86, 150, 64))
    done = events[-1]
    assert isinstance(done, Done)
    timings = done.timings
    assert (timings.cache_n, timings.cache_moved_n) == (20 + 44 + 64, 44 + 64)
    assert timings.prompt_n == len(prompt) - 128 == 23
    n_rows = sum(len(step.rows) for step in runner.steps) - n_before
    assert n_rows == 23 + 3, "the rows of what was not found, and of three written tokens"
    assert [e.done for e in events if isinstance(e, Prefill)] == [21, 81, 86, 151]


@pytest.mark.parametrize("given", [None, 0, 300])
def test_nothing_is_moved_unless_it_is_asked_for(opened: Opened, given: int | None) -> None:
    runner = runner_of()
    engine, a = opened(runner), text(64)
    write(engine, a)
    ids, events = write(engine, [5, *a], cache_reuse=given)
    assert ids == expected([5, *a], 4)
    assert (moved_of(events), runner.n_moved) == ((), 0)


def test_the_server_may_say_so_for_requests_that_do_not(opened: Opened) -> None:
    engine, a = opened(runner_of(), cache_reuse=16), text(64)
    write(engine, a)
    assert not moved_of(write(engine, [4, *a], cache_reuse=0)[1])
    assert moved_of(write(engine, [5, *a])[1]) == (MovedChunk(1, 64, 0),)


@pytest.mark.parametrize("question", [Losses, InterventionEffect])
def test_a_question_finds_the_keys_of_its_own_salt_alone(
    opened: Opened, question: type[Losses | InterventionEffect]
) -> None:
    runner = runner_of()
    engine, ids = opened(runner), text(64)
    write(engine, ids, cache_salt="mine")
    n_rows = []
    for salt in ("mine", "yours", "yours", ""):
        before = sum(len(step.rows) for step in runner.steps)
        engine.inspect(question(ids, first=60, cache_salt=salt)).result(60)
        n_rows.append(sum(len(step.rows) for step in runner.steps) - before)
    assert n_rows == [0, 60, 0, 60]


def test_what_was_moved_is_no_exact_prefix_of_any_prompt(opened: Opened) -> None:
    """The same prompt again finds what was computed before the first moved token, and by chunks
    also what was written after it."""
    engine, a = opened(runner_of()), text(64)
    prompt = [*OTHER, *a, 3]
    write(engine, a)
    ids, _ = write(engine, prompt, n=20, cache_reuse=16)
    after = [*prompt, *ids]
    for cache_reuse, last, moved in ((16, 1, len(after) - 1 - 21), (0, 2, 0)):
        _, events = write(engine, [*after, last], cache_reuse=cache_reuse)
        done = events[-1]
        assert isinstance(done, Done)
        assert done.timings.cache_n - done.timings.cache_moved_n == 21
        assert done.timings.cache_moved_n == moved


def test_the_last_token_is_always_computed(opened: Opened) -> None:
    engine, a = opened(runner_of()), text(64)
    write(engine, a)
    ids, events = write(engine, [5, *a[:48]], cache_reuse=16)
    assert moved_of(events) == (MovedChunk(1, 48, 0),)
    assert ids == expected([5, *a[:48]], 4)


def test_runs_with_interventions_move_nothing(opened: Opened) -> None:
    runner = runner_of()
    engine, a = opened(runner), text(64)
    write(engine, a)
    halved = Interventions(heads=(HeadFactor(0, 0, 0.5),))
    write(engine, [5, *a], cache_reuse=16, interventions=halved)
    assert runner.n_moved == 0


def test_a_full_cache_computes_instead(opened: Opened) -> None:
    """The blocks of the chunk cannot be both source and destination."""
    runner = runner_of(n_blocks=7)
    engine, a = opened(runner), text(70)
    write(engine, a)
    ids, _ = write(engine, [5, *a], cache_reuse=16)
    assert ids == expected([5, *a], 4)
    assert runner.n_moved == 0


@pytest.mark.parametrize("windows", [(None,), (None, 40), (None, 100, 24)])
def test_random_traffic_with_preemptions_writes_what_each_run_writes_alone(
    opened: Opened, windows: tuple[int | None, ...]
) -> None:
    """The scripted runner reads the ids of every text from the cells of its table: each moved token
    must be where its position is, and no other's."""
    rng = random.Random(4)
    n_blocks = 22 if len(windows) == 1 else 15 * len(windows)
    runner = runner_of(n_slots=4, n_blocks=n_blocks, context=160, windows=windows)
    engine = opened(runner, queue=100)
    parts = [text(rng.randrange(17, 50), seed) for seed in range(4)]
    prompts = []
    for _ in range(40):
        ids = [part for _ in range(rng.randrange(1, 4)) for part in [rng.choice(parts)]]
        cut = [[*part[rng.randrange(3) :], *text(rng.randrange(3), rng.random())] for part in ids]  # type: ignore[arg-type]
        prompts.append([*itertools.chain.from_iterable(cut)][:120])
    for at in range(0, len(prompts), 8):
        runs = [
            engine.submit(Request(ids, SamplingParams(max_tokens=30), cache_reuse=16))
            for ids in prompts[at : at + 8]
        ]
        for ids, run in zip(prompts[at : at + 8], runs, strict=True):
            assert [token.id for token in run] == expected(ids, 30)[: 160 - len(ids)]
    stats = stats_after_runs(engine)
    assert runner.n_moved > 200 * len(windows)
    assert stats.n_preemptions > 0
    assert stats.used_blocks == 0


def test_bad_values_are_refused_by_name(opened: Opened) -> None:
    engine = opened(runner_of())
    with pytest.raises(InvalidRequest, match="cache_reuse must be 0") as refused:
        engine.submit(Request([1], cache_reuse=-1))
    assert refused.value.param == "cache_reuse"
    with pytest.raises(InvalidRequest, match="the prefix cache is off"):
        opened(runner_of(), prefix_cache=False).submit(Request([1], cache_reuse=16))


@pytest.mark.parametrize(
    ("name", "why"),
    [("gpt2", "gpt2 models add a learned vector"), ("mistral", "have a sliding window")],
)
def test_models_that_cannot_shift_are_named(name: str, why: str) -> None:
    folder = random_models.folder(name)
    with pytest.raises(ModelError, match=why):
        Engine.load(folder, LoadOptions(cache_reuse=64))


# ---- numbers --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer: its keys and values depend on a token and its position alone, so that
    moved ones are those that would be computed, up to rounding."""
    shape = random_llama.Shape(
        "one", n_heads=4, n_kv_heads=2, head_dim=16, hidden_size=64, intermediate_size=96,
        vocab_size=300, n_layers=1, rope=random_llama.LLAMA3,
    )  # fmt: skip
    return random_llama.write(tmp_path_factory.mktemp("one"), shape)


@pytest.mark.ci
@pytest.mark.parametrize("backend", ["wgpu", "torch"])
@pytest.mark.parametrize(
    "kv_dtype",
    ["f16", "rotated4", *(pytest.param(kv, marks=pytest.mark.slow) for kv in ("f32", "q8"))],
)
def test_in_one_layer_moved_tokens_are_those_that_would_be_computed(
    one_layer: Path, backend: str, kv_dtype: str
) -> None:
    if backend == "torch" and kv_dtype not in ("f32", "f16"):
        pytest.skip("PyTorch stores floats only")
    options = LoadOptions(dtype="f32", kv_dtype=kv_dtype, backend=backend, slots=2)
    engine = Engine.load(one_layer, options)
    try:
        a = [300 - id for id in text(100)]
        prompt = [*OTHER[:13], *a, 5]
        write(engine, a)
        found = tokens_of(engine, prompt, 32)
        exact = tokens_of(engine, prompt, 0)
    finally:
        engine.close()
    assert found[1] == (MovedChunk(13, 113, 0),)
    error = {"f32": 2e-5, "f16": 5e-3, "q8": 0.05, "rotated4": 0.8}[kv_dtype]
    np.testing.assert_allclose(found[0], exact[0], atol=error)


def tokens_of(
    engine: Engine, ids: list[int], cache_reuse: int
) -> tuple[list[float], tuple[MovedChunk, ...]]:
    """Return the log-probabilities of what a run writes, and what was moved."""
    _, events = write(engine, ids, n=4, cache_reuse=cache_reuse)
    return [e.logprob for e in events if isinstance(e, Token)], moved_of(events)
