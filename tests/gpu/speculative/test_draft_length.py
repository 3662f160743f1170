"""Number of drafts by what they cost and how many were accepted."""

from __future__ import annotations

from gpu.speculative.draft_length import FIRST_GUESS, MAX_DRAFTS, Cost, DraftLength


def step_time(per_row: float) -> Cost:
    """A step of 2 ms and `per_row` for each row after the first."""
    return lambda n: 2.0 + per_row * (n - 1)


def after(length: DraftLength, n_accepted: int, n_times: int) -> DraftLength:
    for _ in range(n_times):
        length.learn(MAX_DRAFTS, n_accepted)
    return length


def test_all_drafts_are_verified_until_steps_were_timed() -> None:
    assert DraftLength(lambda n: None).choose(4, 0) == 4
    assert DraftLength(lambda n: 0.0).choose(4, 0) == 4


def test_more_drafts_are_verified_the_cheaper_rows_are() -> None:
    counts = [DraftLength(step_time(ms)).choose(MAX_DRAFTS, 0) for ms in (0.01, 0.5, 1.0, 2.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == MAX_DRAFTS
    assert counts[-1] == 0


def test_drafts_that_are_rejected_are_given_up() -> None:
    assert after(DraftLength(step_time(0.4)), 0, 30).choose(MAX_DRAFTS, 0) == 0


def test_drafts_that_are_accepted_are_worth_dear_rows() -> None:
    dear = step_time(1.5)
    assert DraftLength(dear).choose(MAX_DRAFTS, 0) == 0
    assert after(DraftLength(dear), MAX_DRAFTS, 30).choose(MAX_DRAFTS, 0) == MAX_DRAFTS


def test_given_up_drafts_are_tried_again_after_a_while() -> None:
    length = after(DraftLength(step_time(0.4)), 0, 30)
    n_waited = 0
    while length.choose(MAX_DRAFTS, 0) == 0:
        length.decay_to_first_guess()
        n_waited += 1
    assert 20 < n_waited < 1000


def test_a_rejected_draft_says_nothing_about_those_after_it() -> None:
    one, other = DraftLength(step_time(0.1)), DraftLength(step_time(0.1))
    one.learn(7, 2)
    other.learn(3, 2)
    assert one.expected_tokens(3) == other.expected_tokens(3)


def test_the_expected_tokens_are_those_of_independent_drafts() -> None:
    p = FIRST_GUESS
    assert DraftLength(step_time(1)).expected_tokens(0) == 1
    assert abs(DraftLength(step_time(1)).expected_tokens(2) - (1 + p + p * p)) < 1e-12


def test_beside_other_streams_drafts_must_not_slow_all_down() -> None:
    """One stream of nine gains little for the time of all."""
    length = DraftLength(step_time(0.6))
    assert length.choose(MAX_DRAFTS, 0) > 0
    assert length.choose(MAX_DRAFTS, 8) == 0
