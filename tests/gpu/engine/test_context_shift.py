"""Context shift: texts go on when the context is full; the first tokens stay, the oldest leave."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gpu.engine.engine import Engine
from gpu.errors import ContextExceeded, InvalidRequest
from gpu.events import Accepted, Done, Event, Token
from gpu.kv.context_shift import ContextShift, context_shift_moves
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from tests.gpu.engine.conftest import Opened
from tests.gpu.engine.scripted_runner import ScriptedRunner
from tests.gpu.engine.traffic import stats_after_runs
from tests.gpu.models import random_llama, random_models

CONTEXT = 128
SINKS = 4


def runner_of(**limits: Any) -> ScriptedRunner:
    return ScriptedRunner(seen, **{"context": CONTEXT, "n_blocks": 20, **limits})


def seen(ids: list[int]) -> int:
    """Return a token that depends on every id in the cache, none of them 0."""
    return 1 + sum((i + 1) * id for i, id in enumerate(ids)) % 255


def in_cache(ids: list[int], context: int = CONTEXT) -> list[int]:
    """Return the ids that are in the cache when the last of `ids` is computed."""
    left = ContextShift(context, SINKS).n_left(len(ids) - 1)
    return [*ids[:SINKS], *ids[SINKS + left :]] if left else ids


def expected(prompt: list[int], n: int, context: int = CONTEXT) -> list[int]:
    """Return what a run writes that sees only what is in the cache."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(seen(in_cache(ids, context)))
    return ids[len(prompt) :]


def write(engine: Engine, ids: list[int], n: int, **request: Any) -> tuple[list[int], list[Event]]:
    events: list[Event] = []
    ended = threading.Event()

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, Done):
            ended.set()

    params = SamplingParams(max_tokens=n, temperature=0)
    engine.submit(Request(ids, params, **{"n_keep": SINKS, **request}), note)
    assert ended.wait(60)
    return [event.id for event in events if isinstance(event, Token)], events


def text(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 256) for _ in range(n)]


@pytest.mark.parametrize(("context", "n_keep"), [(64, 0), (128, 4), (1000, 4), (1024, 100)])
def test_positions_follow_each_other_and_the_first_tokens_stay(context: int, n_keep: int) -> None:
    shift = ContextShift(context, n_keep)
    held = list(range(n_keep))
    for index in range(5 * context):
        if len(held) == context:
            del held[n_keep : n_keep + shift.n_drop]
        if index >= n_keep:
            held.append(index)
        assert shift.position(index) == (len(held) - 1 if index >= n_keep else index)
        assert shift.n_left(index) == (held[n_keep] - n_keep if index >= n_keep else 0)


@pytest.mark.parametrize(("context", "n_keep"), [(64, 0), (128, 4), (200, 16), (1000, 37)])
def test_every_token_that_stays_is_moved_once_and_every_block_is_given_back(
    context: int, n_keep: int
) -> None:
    shift = ContextShift(context, n_keep)
    steps, unread = context_shift_moves(shift)
    moves = [move for step in steps for move in step.moves]
    stay = [*range(n_keep), *range(n_keep + shift.n_drop, context)]
    assert [(source, at) for source, at, _ in moves] == [*zip(stay, range(len(stay)), strict=True)]
    assert all(shift == at - source for source, at, shift in moves)
    given_back = [*unread, *(block for step in steps for block in step.consumed)]
    assert sorted(given_back) == list(range(-(-context // 16)))
    for i, step in enumerate(steps):  # nothing that was given back is read later
        later = {source // 16 for after in steps[i + 1 :] for source, _, _ in after.moves}
        assert later.isdisjoint(step.consumed)


@pytest.mark.parametrize("n_prompt", [10, CONTEXT - 1, CONTEXT, 5 * CONTEXT + 3])
def test_a_text_goes_on_over_ten_times_the_context(opened: Opened, n_prompt: int) -> None:
    """Every token depends on all ids in the cache: those that left must be gone, the others must
    be where their position is."""
    runner = runner_of()
    engine = opened(runner)
    prompt = text(n_prompt)
    ids, events = write(engine, prompt, 10 * CONTEXT)
    assert ids == expected(prompt, 10 * CONTEXT)
    done = events[-1]
    assert isinstance(done, Done)
    assert done.reason == "length"
    assert max(len(table) for tables in runner.tables.values() for table in tables) <= CONTEXT // 16
    assert stats_after_runs(engine).used_blocks == 0
    shift = ContextShift(CONTEXT, SINKS)
    for event in events:
        if isinstance(event, Token):
            left = shift.n_left(n_prompt + event.index - 1)
            assert event.slid == (left or msgspec.UNSET)
            assert event.kv_blocks <= CONTEXT // 16


def test_without_it_a_full_context_ends_the_text_and_refuses_a_prompt(opened: Opened) -> None:
    engine = opened(runner_of())
    _, events = write(engine, text(CONTEXT - 5), 50, n_keep=None)
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.reason, done.completion_tokens) == ("context", 6)
    with pytest.raises(ContextExceeded):
        engine.submit(Request(text(CONTEXT)))


GROUPS = ((None,), (None, 40), (None, 40, 96), (None, 100), (None, None, 20))
"""Windows of the groups of layers: with 40 what leaves has left the window before, with 100 the
first tokens come into it."""


@pytest.mark.parametrize("windows", GROUPS)
def test_a_cache_that_holds_one_context_is_enough(
    opened: Opened, windows: tuple[int | None, ...]
) -> None:
    n_blocks = CONTEXT // 16 * len(windows)
    engine = opened(runner_of(n_blocks=n_blocks, n_slots=1, windows=windows))
    prompt = text(300)
    assert write(engine, prompt, 300)[0] == expected(prompt, 300)
    beginning = [*prompt[:100], 7]
    assert write(engine, beginning, 3)[0] == expected(beginning, 3), "its blocks hold other text"


@pytest.mark.parametrize(("n_blocks", "context"), [(16, 128), (15, 112), (13, 96), (8, 0)])
def test_a_text_slides_earlier_where_the_cache_holds_no_whole_context_of_each_group(
    opened: Opened, n_blocks: int, context: int
) -> None:
    """A text that does not slide frees what has left the window, and needs fewer blocks."""
    engine = opened(runner_of(n_blocks=n_blocks, n_slots=1, windows=(None, 100)))
    prompt = text(150)
    if not context:
        with pytest.raises(InvalidRequest, match="too small to slide"):
            write(engine, prompt, 1)
        return
    ids, events = write(engine, prompt, 300)
    assert ids == expected(prompt, 300, context)
    accepted = events[0]
    assert isinstance(accepted, Accepted)
    assert accepted.context == context


def test_a_shifted_text_is_no_prefix_of_another_prompt_and_its_beginning_is(opened: Opened) -> None:
    engine = opened(runner_of())
    prompt = text(2 * CONTEXT)
    write(engine, prompt, 3)
    ids, events = write(engine, prompt, 3)
    assert ids == expected(prompt, 3)
    done = events[-1]
    assert isinstance(done, Done)
    assert done.timings.cache_n <= CONTEXT


@pytest.mark.parametrize(
    ("spec_type", "windows"), [("none", GROUPS[0]), *(("ngram", windows) for windows in GROUPS)]
)
def test_streams_that_shift_side_by_side_write_what_each_writes_alone(
    opened: Opened, spec_type: str, windows: tuple[int | None, ...]
) -> None:
    """Also if they are preempted: a text read again is shifted at the same places."""
    n_blocks = 22 if len(windows) == 1 else 11 * len(windows)
    runner = runner_of(n_slots=4, n_blocks=n_blocks, windows=windows)
    engine = opened(runner, queue=20, spec_type=spec_type)
    prompts = [text(random.Random(i).randrange(5, 300), i) for i in range(8)]
    runs = [
        engine.submit(Request(ids, SamplingParams(max_tokens=200, temperature=0), n_keep=SINKS))
        for ids in prompts
    ]
    for ids, run in zip(prompts, runs, strict=True):
        assert [token.id for token in run] == expected(ids, 200)
    assert engine.stats.n_preemptions > 0
    assert stats_after_runs(engine).used_blocks == 0


@pytest.mark.parametrize(("n_keep", "why"), [(-1, "-1 tokens stay"), (65, "65 tokens stay")])
def test_a_context_that_is_too_short_is_refused(opened: Opened, n_keep: int, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        opened(runner_of()).submit(Request([1], n_keep=n_keep))
    assert refused.value.param == "truncation"


def test_models_that_cannot_slide_are_named() -> None:
    engine = Engine.load(random_models.folder("gpt2"), LoadOptions(dtype="f32"))
    try:
        with pytest.raises(InvalidRequest, match="gpt2 models add a learned vector"):
            engine.submit(Request([1], n_keep=4))
    finally:
        engine.close()


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer, whose keys depend on a token and its position alone."""
    shape = random_llama.Shape(
        "one", n_heads=4, n_kv_heads=2, head_dim=16, hidden_size=64, intermediate_size=96,
        vocab_size=300, n_layers=1, context=CONTEXT,
    )  # fmt: skip
    return random_llama.write(tmp_path_factory.mktemp("one"), shape)


@pytest.mark.ci
@pytest.mark.parametrize("backend", ["wgpu", "torch"])
def test_in_one_layer_a_text_that_slid_is_as_if_what_left_had_never_been(
    one_layer: Path, backend: str
) -> None:
    engine = Engine.load(one_layer, LoadOptions(dtype="f32", backend=backend, slots=2))
    try:
        ids = text(2 * CONTEXT + 9)
        _, events = write(engine, ids, 4)
        found = [(e.id, e.logprob) for e in events if isinstance(e, Token)]
        _, events = write(engine, in_cache(ids), 4, n_keep=None)
        exact = [(e.id, e.logprob) for e in events if isinstance(e, Token)]
    finally:
        engine.close()
    assert [id for id, _ in found] == [id for id, _ in exact]
    np.testing.assert_allclose([p for _, p in found], [p for _, p in exact], atol=2e-4)
