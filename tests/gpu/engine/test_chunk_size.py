"""A prompt's chunks grow to what the device does in time, and shrink beside runs that write."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from gpu.engine.chunk_size import FIRST_CHUNK, PREFILL_MS, TOGETHER_MS, ChunkSizer
from gpu.engine.row_costs import RowCosts
from gpu.load_options import MAX_PREFILL_SLOWDOWN
from gpu.step import Row, Sample, Step
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer
from tests.gpu.interventions.hand import ManualEngine


def step_ms(n_rows: int, fixed: float, per_row: float) -> float:
    return fixed + per_row * n_rows


def step_of(n_decoding: int, n_chunk: int) -> Step:
    rows = tuple(Row(i, 0, 1) for i in range(n_decoding + n_chunk))
    samples = tuple(Sample(i, i, 0, 0, 0.0, 0, 1.0, 0.0, 1.0) for i in range(n_decoding))
    return Step(rows, samples)


def test_nothing_is_known_at_first_and_the_first_step_of_a_shape_does_not_count() -> None:
    sizer = ChunkSizer()
    assert sizer.rows(0, 1, 128) == FIRST_CHUNK
    sizer.learn(step_of(0, 16), 16, 60_000.0)
    assert sizer.rows(0, 1, 128) == FIRST_CHUNK
    sizer.learn(step_of(0, 16), 16, 2.0)
    assert sizer.rows(0, 1, 128) == 128


def test_a_chunk_alone_keeps_its_time() -> None:
    sizer = ChunkSizer()
    for _ in range(20):
        n = sizer.rows(0, 1, 512)
        ms = step_ms(n, 10.0, 1.5)
        sizer.learn(step_of(0, n), n, ms)
    assert PREFILL_MS / 3 < ms <= PREFILL_MS


@pytest.mark.parametrize("n_decoding", [1, 3, 8])
@pytest.mark.parametrize(("fixed", "per_row"), [(2.0, 0.2), (3.0, 0.01), (0.1, 1.0), (40.0, 0.5)])
def test_a_chunk_stretches_the_steps_of_others_by_less_than_two(
    n_decoding: int, fixed: float, per_row: float
) -> None:
    sizer = ChunkSizer()
    alone = step_ms(n_decoding, fixed, per_row)
    for _ in range(10):
        sizer.learn(step_of(n_decoding, 0), 0, alone)
    times = []
    for _ in range(60):
        n = sizer.rows(n_decoding, 1, 128 - n_decoding)
        times.append(step_ms(n_decoding + n, fixed, per_row))
        sizer.learn(step_of(n_decoding, n), n, times[-1])
    late = times[10:]  # the first were before anything was known
    one_row = step_ms(n_decoding + 1, fixed, per_row)
    assert statistics.median(late) <= max(2 * alone, one_row)
    assert sum(ms > max(2 * alone, one_row) for ms in late) <= 2, "larger sizes are tried again"
    assert statistics.median(late) > 1.1 * alone or late[-1] >= step_ms(100, fixed, per_row)


def test_a_long_prompt_keeps_the_limit_though_its_rows_cost_more_and_more() -> None:
    """Attention of a row costs by its position; a plan's rows beyond the step's own cost their
    products alone."""
    sizer, position, times = ChunkSizer(), 0, []
    alone = 2.0 + 4 * 0.1
    for _ in range(10):
        sizer.learn(step_of(4, 0), 0, alone)
    while position < 4000:
        n = sizer.rows(4, 1, min(124, 4000 - position))
        products = 2.0 + 0.1 * (1 << (3 + n).bit_length())
        times.append(products + n * position * 2e-4)
        sizer.learn(step_of(4, n), n, times[-1])
        position += n
    assert statistics.quantiles(times[10:], n=20)[-1] <= 2 * alone
    assert statistics.median(times) > 1.3 * alone, "the prompt gets the time that there is"


@pytest.mark.parametrize(("n_decoding", "n_prompts"), [(1, 15), (4, 12), (8, 8), (15, 1)])
def test_prompts_that_arrive_together_share_the_time_with_runs_that_write(
    n_decoding: int, n_prompts: int
) -> None:
    sizer = ChunkSizer()
    alone = step_ms(n_decoding, 2.0, 0.25)
    for _ in range(10):
        sizer.learn(step_of(n_decoding, 0), 0, alone)
    times = []
    for _ in range(30):
        n = sizer.rows(n_decoding, n_prompts, 512)
        times.append(step_ms(n_decoding + n, 2.0, 0.25))
        sizer.learn(step_of(n_decoding, n), n, times[-1])
    share = max(MAX_PREFILL_SLOWDOWN, 1 + n_prompts / n_decoding)
    assert 0.4 * share * alone < statistics.median(times) <= share * alone


def test_prompts_that_came_together_are_read_as_if_none_wrote_while_that_takes_a_second() -> None:
    sizer = ChunkSizer()
    assert sizer.rows_together(128, 120) is None, "nothing is known"
    for _ in range(20):
        n = sizer.rows(0, 1, 128)
        sizer.learn(step_of(0, n), n, step_ms(n, 2.0, 0.4))
    assert sizer.rows_together(500, 120) == 120
    n_steps = int(TOGETHER_MS / step_ms(128, 2.0, 0.4))
    assert sizer.rows_together(n_steps * 128, 128) == 128
    assert sizer.rows_together(n_steps * 128 + 1, 128) is None


def test_one_late_step_does_not_keep_the_next_chunks_small() -> None:
    """Twelve prompts beside four runs; the first two steps of each size are late, of which the
    first never counts."""
    sizer = ChunkSizer()
    for _ in range(3):
        sizer.learn(step_of(4, 0), 0, step_ms(4, 1.9, 0.27))
    sizes: list[int] = []
    for _ in range(60):
        n = sizer.rows(4, 12, 512)
        late = 100 if sizes.count(n) < 2 else 1
        sizer.learn(step_of(4, n), n, late * step_ms(4 + n, 1.9, 0.27))
        sizes.append(n)
    assert statistics.median(sizes) == 28, "32 rows are the most within 4 × 2.98 ms"
    sizer.learn(step_of(4, 28), 28, 1000.0)
    assert sizer.rows(4, 12, 512) == 28


def test_costs_are_expected_from_the_nearest_size() -> None:
    costs = RowCosts(0.98)
    assert costs.expected("a", 4) is None
    assert costs.rows_within("a", 9.0, 64, least=16) == 16
    costs.learn("a", 16, 8.0)
    assert costs.expected("a", 32) == pytest.approx(12.0)
    assert costs.expected("a", 8) == pytest.approx(8.0)
    assert costs.expected("a", 13) == pytest.approx(8.0)
    assert costs.rows_within("a", 12.1, 64) == 32
    assert costs.rows_within("a", 12.1, 24) == 24
    assert costs.expected("b", 16) is None


def test_a_long_prompt_slows_a_stream_down_by_less_than_two(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A device on which a step takes 2 ms and 0.1 for every row; 1,000 tokens arrive."""
    tokenizer: Tokenizer = byte_tokenizer(tmp_path_factory.mktemp("bytes"))
    runner = ScriptedRunner(n_slots=2, context=1100, n_blocks=160, max_rows=128)
    hand = ManualEngine(runner, tokenizer)
    now, token_times = 0.0, []

    def advance() -> None:
        nonlocal now
        hand.advance()
        scheduled = hand.in_flight[-1]
        ms = step_ms(len(scheduled.step.rows), 2.0, 0.1)
        hand.scheduler.learn(scheduled, ms)
        now += ms
        before = writer.text.n_written
        hand.collect()
        if writer.text.n_written > before:
            token_times.append(now)

    writer = hand.start([1, 2, 3], 400)
    while writer.text.n_written < 50:
        advance()
    prompt = hand.start([7] * 1000, 1)
    began = len(token_times)
    while prompt.prefilling:
        advance()
    alone = statistics.median(b - a for a, b in pairwise(token_times[:began]))
    beside = sorted(b - a for a, b in pairwise(token_times[began:]))
    assert beside[int(0.99 * len(beside))] <= 2 * alone
    assert now < 5 * 1000 * 0.2, "and the prompt still gets half of the time"
