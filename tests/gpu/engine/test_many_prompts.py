"""Prompts that arrive together share a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
        engine.scheduler.chunk_rows = lambda n_writers, n_prompts, most: most  # type: ignore[method-assign]
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
    assert second.n_reused == 20
    one.finish(first, second, other)


def test_no_step_samples_more_than_it_can(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=6, n_blocks=40, max_rows=64, max_samples=3)
    runs = [one.start([i + 1] * 4, 6) for i in range(6)]
    one.finish(*runs)
    assert max(len(step.samples) for step in one.runner.steps) == 3
    assert one.runner.steps[0].samples
