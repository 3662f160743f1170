"""Blocks are found, shared, copied and evicted correctly over whole runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from gpu.kv.blocks import BLOCK_TOKENS
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.interventions.hand import ManualEngine, branch

TEXT = [1 + i % 7 for i in range(100)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Callable[..., ManualEngine]:
    def make(*, prefix_cache: bool = True, **options: Any) -> ManualEngine:
        return ManualEngine(ScriptedRunner(**options), tokenizer, prefix_cache=prefix_cache)

    return make


def n_rows(hand: ManualEngine) -> int:
    return sum(len(step.rows) for step in hand.runner.steps)


def test_all_but_the_last_token_of_a_known_prompt_is_found(
    hand: Callable[..., ManualEngine],
) -> None:
    for n_prompt in (1, 2, 15, 16, 17, 31, 32, 33, 40):
        one = hand()
        first = one.run(TEXT[:n_prompt], 5)
        before = n_rows(one)
        again = one.run(TEXT[:n_prompt], 5)
        assert (first.prefill.n_reused, again.prefill.n_reused) == (0, n_prompt - 1)
        assert n_rows(one) - before == 1 + 4
        assert again.ids == first.ids


def test_the_next_turn_begins_with_all_that_was_written(hand: Callable[..., ManualEngine]) -> None:
    one = hand()
    first = one.run(TEXT[:20], 20)
    second = one.run([*first.ids, 7, 7, 7], 5)
    assert second.prefill.n_reused == 39, "the last token written was never fed"
    assert len(one.runner.copied) == 1


def test_an_edited_turn_is_computed_from_the_edit_on(hand: Callable[..., ManualEngine]) -> None:
    one = hand()
    first = one.run(TEXT[:20], 20)
    edited = [*first.ids[:25], 250, *first.ids[26:]]
    assert one.run(edited, 5).prefill.n_reused == 25
    assert one.run(edited, 5).prefill.n_reused == len(edited) - 1
    assert one.run(first.ids, 5).prefill.n_reused == 39, "the branch left the first text as it was"


def test_tokens_past_a_stop_are_not_found(hand: Callable[..., ManualEngine]) -> None:
    """Steps submitted ahead computed these tokens, but they are not part of the text."""
    one = hand()
    sequence = one.start(TEXT[:20], 30)
    one.until(lambda: sequence.text.n_written == 2)
    while len(one.in_flight) < one.runner.in_flight:
        one.advance()
    one.cancel(sequence)
    assert (sequence.decoding.n_submitted, sequence.n_computed) == (5, 22)
    longer = [*TEXT[:20], *expected(TEXT[:20], 8)]
    assert one.run(longer, 5).prefill.n_reused == 22


def test_runs_that_start_together_compute_their_common_prompt_once(
    hand: Callable[..., ManualEngine],
) -> None:
    """The second run is admitted before the first has a row; it looks up the cache again before its
    own first. It waits for two blocks, and for no part of one."""
    one = hand(n_slots=3, n_blocks=12)
    runs = [one.start(TEXT[:40], 8) for _ in range(3)]
    one.finish(*runs)
    assert [run.prefill.n_reused for run in runs] == [0, 32, 39]
    assert n_rows(one) == 40 + 8 + 1 + 3 * 7
    one.check_owners()


def test_a_run_that_shares_outlives_the_one_it_shares_with(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand()
    first = one.start(TEXT[:40], 20)
    one.until(lambda: first.text.n_written == 3)
    second = one.start(TEXT[:36], 20)
    one.advance()
    assert second.prefill.n_reused == 35
    assert one.scheduler.kv.pool.ref_counts.count(2) == 2
    one.cancel(first)
    one.check_owners()
    one.finish(second)
    assert set(one.scheduler.kv_state().owners) == {0}


def test_shared_blocks_are_counted_once(hand: Callable[..., ManualEngine]) -> None:
    """Two prompts of 3 blocks in a cache of 6: the second fits because it shares 2."""
    one = hand(n_slots=2, n_blocks=6)
    first = one.start(TEXT[:40], 20)
    one.until(lambda: not first.prefilling)
    second = one.start(TEXT[:40], 20)
    one.until(lambda: second.prefill.n_reused > 0)
    assert one.scheduler.active == [first, second]
    one.check_owners()
    one.finish(first, second)


def test_a_full_cache_forgets_what_was_used_least(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_blocks=8)
    texts = [[i] * 40 for i in (1, 2, 3)]
    for text in texts:
        one.run(text, 4)
    assert one.scheduler.kv.pool.n_evicted == 1
    assert one.run(texts[0], 4).prefill.n_reused == 32, "the end of the oldest text went first"
    assert one.run(texts[1], 4).prefill.n_reused == 32
    assert one.run(texts[0], 4).prefill.n_reused == 39


@pytest.mark.parametrize("windows", [(None,), (None, 48)])
def test_what_was_evicted_to_host_memory_comes_back(
    hand: Callable[..., ManualEngine], windows: tuple[int | None, ...]
) -> None:
    """Three texts of three blocks in a cache of four, and the full blocks of all in host memory, as
    many for each group of layers. A token counts once."""
    n = len(windows)
    one = hand(n_blocks=4 * n, n_host_blocks=6 * n, windows=windows)
    texts = [[i] * 40 for i in (1, 2, 3)]
    first = [one.run(text, 4) for text in texts]
    assert [run.prefill.n_reused for run in first] == [0, 0, 0]
    again = [one.run(text, 4) for text in texts]
    assert [run.prefill.n_reused for run in again] == [32, 32, 32], "the partial block is not kept"
    assert [run.ids for run in again] == [run.ids for run in first]
    stats = one.scheduler.stats()
    assert (stats.prompt_tokens, stats.reused_tokens, stats.loaded_tokens) == (240, 96, 96)
    assert (stats.used_host_blocks, stats.n_host_blocks) == (6 * n, 6 * n)
    assert (stats.stored_bytes, stats.loaded_bytes) == (6 * n, 6 * n), (
        "what is there is not stored again"
    )


def test_host_memory_loses_what_was_used_least(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_blocks=4, n_host_blocks=2)
    for token in (1, 2, 3):
        one.run([token] * 40, 4)
    assert one.run([2] * 40, 4).prefill.n_reused == 32
    assert one.run([1] * 40, 4).prefill.n_reused == 0


def test_a_preempted_run_gets_its_blocks_back_from_host_memory(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(n_slots=2, n_blocks=4, n_host_blocks=4)
    runs = [one.start([token] * 20, 40) for token in (1, 2)]
    one.finish(*runs)
    assert one.scheduler.n_preemptions == 1
    assert one.runner.n_loaded > 0
    stats = one.scheduler.stats()
    assert stats.loaded_tokens == 0, "these were no prompt's"
    assert stats.loaded_bytes == one.runner.n_loaded


def test_the_last_free_block_may_be_the_one_to_copy(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=1, n_blocks=4)
    one.run(TEXT[:50], 13)
    again = one.run([*TEXT[:50], 250, 250], 11)
    assert again.prefill.n_reused == 50
    assert one.runner.copied == []
    assert again.tables == []


def test_without_the_cache_every_prompt_is_computed_whole(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(prefix_cache=False)
    texts = [one.run(TEXT[:40], 8) for _ in range(2)]
    assert [text.prefill.n_reused for text in texts] == [0, 0]
    assert texts[0].ids == texts[1].ids
    state = one.scheduler.kv_state()
    assert (state.prompt_tokens, state.reused_tokens, state.copies) == (80, 0, 0)


def test_a_prompt_waits_with_its_last_token_for_a_step_that_can_sample_it(
    hand: Callable[..., ManualEngine],
) -> None:
    """More runs than a step has samples: nothing is fed twice, and every text is right."""
    one = hand(n_slots=3, n_blocks=12, max_samples=2)
    runs = [one.start([*TEXT[: 10 + i], 100 + i], 12) for i in range(3)]
    one.finish(*runs)
    assert [len(run.ids) - len(run.prompt) for run in runs] == [12, 12, 12]


def test_the_state_lists_the_tokens_of_every_block(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=2, n_blocks=8)
    one.run(TEXT[:36], 5)
    run = one.start([*TEXT[:34], 250], 20)
    one.advance()
    state = one.scheduler.kv_state()
    assert [state.owners[block] for block in run.owned_blocks] == [1, 1, 1]
    assert [state.first[block] for block in run.owned_blocks] == [0, 16, 32]
    assert [state.n_found[block] for block in run.owned_blocks] == [16, 16, 3]
    free = [b for b in range(8) if not state.owners[b] and state.n_found[b]]
    assert [(state.first[b], state.n_found[b]) for b in free] == [(32, 8)]
    assert state.used[run.owned_blocks[0]] > state.used[free[0]] > 0
    assert sorted(state.first).count(-1) == 4
    assert (state.prompt_tokens, state.reused_tokens) == (36 + 35, 34)
    assert (state.copies, state.evictions) == (1, 0)


def test_blocks_that_a_question_finds_are_not_counted_as_free_for_the_rest(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(n_slots=1, n_blocks=4)
    one.run(TEXT[:40], 3)
    run = one.start([9] * 20, 20)
    one.until(lambda: run.text.n_written == 2)
    assert one.scheduler.borrow([*TEXT[:40], *[8] * 10], 49) is None, "two found, and two others"
    one.check_owners()
    one.finish(run)


def test_inspections_have_a_slot_while_all_others_are_taken(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(n_slots=1, n_blocks=6)
    run = one.start(TEXT[:20], 40)
    one.until(lambda: run.text.n_written == 20)
    one.recompute(run.ids, len(run.ids) - 1, keep=False)
    one.recompute([9] * 30, 0, keep=True)
    one.check_owners()
    one.finish(run)
    assert one.run([9] * 30, 3).prefill.n_reused == 29


@pytest.mark.parametrize("n_blocks", [4, 6, 9, 16, 40])
@pytest.mark.parametrize(
    ("seed", "n_host_blocks"), [*((seed, 0) for seed in range(8)), (8, 2), (9, 5), (10, 30)]
)
def test_runs_interleaved_in_any_way_write_what_each_would_alone(
    n_blocks: int, n_host_blocks: int, seed: int, tokenizer: Tokenizer
) -> None:
    """Runs start, branch off, are cancelled, preempted and change their length while others go on;
    tokens are computed again in borrowed blocks. The runner reads every text from the blocks it is
    in."""
    draw = random.Random(f"{seed} {n_blocks}")
    runner = ScriptedRunner(n_slots=3, n_blocks=n_blocks, n_host_blocks=n_host_blocks)
    hand = ManualEngine(runner, tokenizer)
    scheduler = hand.scheduler
    for _ in range(250):
        action, runs = draw.random(), [*scheduler.active, *scheduler.waiting]
        if action < 0.12 and len(scheduler.waiting) < 3:
            hand.start(branch(draw, hand.texts), draw.randint(1, 30))
        elif action < 0.16 and runs:
            hand.cancel(draw.choice(runs))
        elif action < 0.18 and runs:
            hand.resize(draw.choice(runs), draw.randint(1, 40))
        elif action < 0.22:
            ids = branch(draw, hand.texts)
            hand.recompute(ids, draw.randint(0, len(ids) - 1), draw.random() < 0.5)
        elif action < 0.24 and scheduler.active:
            scheduler._preempt(draw.choice(scheduler.active))
        elif action < 0.26:
            assert max(scheduler.kv_state().n_found) <= BLOCK_TOKENS
        elif len(hand.in_flight) < hand.runner.in_flight and draw.random() < 0.6:
            hand.advance()
        elif hand.in_flight:
            hand.collect()
        hand.check(draw)
    assert scheduler.n_preemptions or n_blocks > 6
    runs = [*scheduler.active, *scheduler.waiting]
    for sequence in runs[seed % 2 :]:
        hand.cancel(sequence)
    hand.finish(*runs)
    state = scheduler.kv_state()
    assert set(state.owners) == {0}
    assert scheduler.kv.pool.n_free == n_blocks
    assert scheduler.kv.pool.allocate(n_blocks) is not None
    assert state.reused_tokens > 0
    assert state.copies > 0
    if n_host_blocks == 30 and n_blocks <= 6:
        assert runner.n_loaded > 0
