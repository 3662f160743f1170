"""Prompts that arrive together share a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu.engine.sequence import Sequence
from gpu.kv.prefix_cache import BlockHashes
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer
from tests.gpu.interventions.hand import ManualEngine


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Callable[..., ManualEngine]:
    def make(**options: Any) -> ManualEngine:
        engine = ManualEngine(ScriptedRunner(**options), tokenizer)
        engine.scheduler.chunk_rows = lambda prompts, decoding, most: most  # type: ignore[method-assign]
        return engine

    return make


def rows_by_slot(hand: ManualEngine, step: int) -> dict[int, int]:
    slots = [row.slot for row in hand.runner.steps[step].rows]
    return {slot: slots.count(slot) for slot in slots}


def test_prompts_fill_a_step_in_order(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=4, n_blocks=40, max_rows=32)
    runs = [one.start([i + 1] * 12, 3) for i in range(4)]
    one.advance()
    assert rows_by_slot(one, 0) == {runs[0].slot: 12, runs[1].slot: 12, runs[2].slot: 8}
    assert len(one.runner.steps[0].samples) == 2
    one.advance()
    assert rows_by_slot(one, 1) == {
        runs[0].slot: 1, runs[1].slot: 1, runs[2].slot: 4, runs[3].slot: 12,
    }  # fmt: skip
    one.finish(*runs)


def test_a_prompt_waits_for_the_prefix_that_another_computes(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(n_slots=3, n_blocks=40, max_rows=64)
    shared = [5] * 20
    first, second = one.start([*shared, 1, 2], 3), one.start([*shared, 3, 4], 3)
    other = one.start([9] * 22, 3)
    one.advance()
    assert rows_by_slot(one, 0) == {first.slot: 22, other.slot: 22}
    one.advance()
    assert second.prefill.n_reused == 20
    one.finish(first, second, other)


def test_prompts_wait_for_no_prefix_that_they_cannot_find(
    hand: Callable[..., ManualEngine],
) -> None:
    """That of a client with another salt, or of a text with other interventions."""
    one = hand(n_slots=3, n_blocks=40, max_rows=96)
    ids = [5] * 22
    runs = [one.start(ids, 3, cache_salt=salt) for salt in ("a", "b", "a")]
    runs[2].block_hashes = BlockHashes(lambda position: b"a head off", "a")
    one.advance()
    assert rows_by_slot(one, 0) == {run.slot: 22 for run in runs}
    one.finish(*runs)


def test_all_that_waited_for_a_prefix_read_on_together(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=4, n_blocks=40, max_rows=96)
    first, *rest = [one.start([*[5] * 20, *[i] * 12], 3) for i in range(4)]
    one.advance()
    assert rows_by_slot(one, 0) == {first.slot: 32}
    one.advance()
    assert rows_by_slot(one, 1) == {first.slot: 1, **{run.slot: 12 for run in rest}}
    one.finish(first, *rest)


def test_no_step_samples_more_than_it_can(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=6, n_blocks=40, max_rows=64, max_samples=3)
    runs = [one.start([i + 1] * 4, 6) for i in range(6)]
    one.finish(*runs)
    assert max(len(step.samples) for step in one.runner.steps) == 3
    assert one.runner.steps[0].samples


def run_with_clock(
    one: ManualEngine, runs: list[Sequence], until: Callable[[Sequence], bool]
) -> list[float]:
    """Advance until `until` holds for all `runs`, with two steps in flight, on a device on which a
    step takes 2 ms and 0.3 for every row; return the times of the steps."""
    times: list[float] = []

    def read() -> None:
        scheduled = one.in_flight[0]
        times.append(2.0 + 0.3 * len(scheduled.step.rows))
        one.scheduler.learn(scheduled, times[-1])
        one.collect()

    while not all(until(run) for run in runs):
        if len(one.in_flight) == 2 or not one.advance():
            read()
    while one.in_flight:
        read()
    return times


@pytest.fixture
def timed(tokenizer: Tokenizer) -> ManualEngine:
    """An engine that knows what steps of every size take."""
    runner = ScriptedRunner(n_slots=16, context=400, n_blocks=500, max_rows=128, max_samples=16)
    one = ManualEngine(runner, tokenizer, prefix_cache=False)
    for n in (1, 2, 4, 8, 16):
        for _ in range(3):
            runs = [one.start([i + 1] * 32, 8) for i in range(n)]
            run_with_clock(one, runs, lambda run: run.finished)
    return one


def test_sixteen_prompts_that_come_together_all_write_after_six_steps(timed: ManualEngine) -> None:
    runs = [timed.start([i + 1] * 32, 30) for i in range(16)]
    times = run_with_clock(timed, runs, lambda run: not run.prefilling)
    assert len(times) <= 6, "512 rows of prompts are four full steps"


def test_prompts_that_come_later_leave_a_run_that_writes_its_time(timed: ManualEngine) -> None:
    decoding = [timed.start([i + 1] * 32, 200) for i in range(8)]
    run_with_clock(timed, decoding, lambda run: run.text.n_written > 20)
    alone = 2.0 + 0.3 * 8
    later = [timed.start([i + 1] * 32, 1) for i in range(3)]
    times = run_with_clock(timed, later, lambda run: not run.prefilling)
    assert sorted(times)[int(0.9 * len(times))] <= 2 * alone
