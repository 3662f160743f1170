"""The reference sampler against published vectors, transformers and scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.reference.sampler import distribution, draw, philox, sample_token, uniform
from gpu.sampling_params import TokenBias
from gpu.step import CUTS, N_CANDIDATES, Sample

NONE: list[int] = []


def settings(**changes: Any) -> Sample:
    neutral = Sample(0, 0, 0, 0, 1.0, 0, 1.0, 0.0, 1.0)
    return Sample(**{**{name: getattr(neutral, name) for name in Sample.__slots__}, **changes})


def random_logits(seed: int, n: int = 300, scale: float = 3.0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0.0, scale, n).astype(np.float32)


# ---- the generator ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # kat_vectors of the authors' library Random123, philox4x32 with 10 rounds
        ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: str
) -> None:
    assert " ".join(f"{word:08x}" for word in philox(key, counter)) == words


def test_uniform_is_the_first_word_of_its_seed_and_index() -> None:
    seed, index = 0x299F31D0_A4093822, 12345
    word = philox((0xA4093822, 0x299F31D0), (index, 0, 0, 0))[0]
    assert uniform(seed, index) == (word >> 8) / 2**24
    assert uniform(2**64 - 1, 2**32 - 1) < 1.0
    assert len({uniform(seed, 0) for seed in (0, 1, 2**32, 2**33, 2**63)}) == 5  # all 64 bits act


def test_uniform_numbers_are_uniform() -> None:
    from scipy import stats

    for numbers in ([uniform(7, i) for i in range(4000)], [uniform(s, 7) for s in range(4000)]):
        assert all(0 <= u < 1 and float(np.float32(u)) == u for u in numbers)
        assert stats.kstest(numbers, "uniform").pvalue > 0.001


# ---- the filters -----------------------------------------------------------------------------


def theirs(logits: Any, seen: list[int], sample: Sample) -> np.ndarray[Any, Any]:
    """Probabilities by transformers' own processors, in the same order, in double precision."""
    import torch
    from transformers.generation import logits_process as lp

    scores = torch.tensor(np.asarray(logits, np.float64))[None]
    ids = torch.tensor([seen], dtype=torch.long)
    if seen:
        scores = lp.RepetitionPenaltyLogitsProcessor(sample.repetition_penalty)(ids, scores)
    scores = lp.TemperatureLogitsWarper(float(sample.temperature))(ids, scores)
    if sample.top_k:
        scores = lp.TopKLogitsWarper(sample.top_k)(ids, scores)
    if sample.top_p < 1:
        scores = lp.TopPLogitsWarper(sample.top_p)(ids, scores)
    if sample.min_p:
        scores = lp.MinPLogitsWarper(sample.min_p)(ids, scores)
    probabilities: np.ndarray[Any, Any] = torch.softmax(scores, -1)[0].numpy()
    return probabilities


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 5.0},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 10_000},
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.5},
        {"top_k": 30, "top_p": 0.8},
        {"top_k": 30, "top_p": 0.8, "min_p": 0.1, "temperature": 1.7, "repetition_penalty": 1.2},
    ],
)
def test_probabilities_equal_transformers(changes: dict[str, Any]) -> None:
    seen = [3, 5, 5, 250, 17, 3]
    for seed in range(10):
        logits = random_logits(seed)
        sample = settings(**changes)
        got = distribution(logits, seen, sample)
        expected = theirs(logits, seen, sample)
        assert np.array_equal(got.after > 0, expected > 0)
        np.testing.assert_allclose(got.after, expected, rtol=1e-9)


def vllm(logits: Any, prompt: list[int], output: list[int], s: Sample) -> np.ndarray[Any, Any]:
    """Probabilities by the formula of vLLM (`apply_penalties`), token by token."""
    wanted = []
    for id, logit in enumerate(np.asarray(logits, np.float64).tolist()):
        logit += sum(each.bias for each in s.logit_bias if each.id == id)
        if id in prompt or id in output:
            logit = logit / s.repetition_penalty if logit > 0 else logit * s.repetition_penalty
        logit -= s.frequency_penalty * output.count(id)
        logit -= s.presence_penalty * (id in output)
        wanted.append(logit / s.temperature)
    exps = np.exp(np.array(wanted) - max(wanted))
    return np.asarray(exps / exps.sum())


@pytest.mark.parametrize(
    "changes",
    [
        {"frequency_penalty": 0.7},
        {"frequency_penalty": -2.0},
        {"presence_penalty": 1.3},
        {"presence_penalty": -0.4, "temperature": 0.7},
        {"logit_bias": (TokenBias(0, 3.0), TokenBias(250, -100.0), TokenBias(299, 100.0))},
        {
            "repetition_penalty": 1.2,
            "frequency_penalty": 0.5,
            "presence_penalty": 0.25,
            "temperature": 1.4,
            "logit_bias": (TokenBias(5, -3.0), TokenBias(3, 4.0)),
        },
    ],
)
def test_penalties_and_biases_equal_the_formula_of_vllm(changes: dict[str, Any]) -> None:
    prompt, output = [3, 5, 5, 250, 17], [17, 9, 9, 3, 9, 0]
    for seed in range(3):
        logits = random_logits(seed)
        sample = settings(index=len(output), **changes)
        got = distribution(logits, [*prompt, *output], sample)
        np.testing.assert_allclose(got.after, vllm(logits, prompt, output, sample), rtol=1e-9)


def test_a_run_that_wrote_nothing_counts_nothing() -> None:
    sample = settings(frequency_penalty=1.0, presence_penalty=1.0)
    got = distribution(random_logits(1), [3, 5, 5], sample)
    assert np.array_equal(got.after, distribution(random_logits(1), NONE, settings()).after)


def test_the_filters_report_what_they_cut() -> None:
    logits = np.log([0.4, 0.3, 0.1, 0.1, 0.06, 0.04])
    chances = distribution(logits, NONE, settings(top_k=5, top_p=0.9, min_p=0.3))
    # Of 0.96 left by top-k, 0.4 + 0.3 + 0.1 + 0.1 are the fewest that hold 0.9; 0.1 < 0.3 × 0.4.
    assert [CUTS[i] for i in chances.cut] == ["", "", "min_p", "min_p", "top_p", "top_k"]
    np.testing.assert_allclose(chances.mass, (0.7, 0.04, 0.06, 0.2), rtol=1e-12)
    np.testing.assert_allclose(chances.after, [4 / 7, 3 / 7, 0, 0, 0, 0], rtol=1e-12)


def test_ties_survive_together() -> None:
    logits = [1.0, 2.0, 1.0, 1.0, 0.0]
    assert distribution(logits, NONE, settings(top_k=2)).kept.tolist() == [1, 1, 1, 1, 0]
    half = distribution(logits, NONE, settings(top_p=0.5))
    assert half.kept.tolist() == [1, 1, 1, 1, 0]  # the first alone has 0.45
    assert distribution(logits, NONE, settings(min_p=1.0)).kept.tolist() == [0, 1, 0, 0, 0]


def test_top_p_at_its_ends() -> None:
    logits = random_logits(1)
    assert distribution(logits, NONE, settings(top_p=0.0)).kept.nonzero()[0] == logits.argmax()
    assert distribution(logits, NONE, settings(top_p=1.0)).kept.all()


def test_extreme_logits_stay_finite() -> None:
    logits = np.array([3e38, -3e38, 0.0, 3e38], np.float32)
    for temperature in (1e-3, 1.0, 10.0):
        chances = distribution(logits, [0, 1], settings(temperature=temperature, top_p=0.9))
        assert np.isfinite(chances.after).all()
        assert chances.after.sum() == pytest.approx(1.0)


# ---- the draw --------------------------------------------------------------------------------


def test_the_draw_is_the_inverse_of_the_cumulative_distribution() -> None:
    chances = distribution(np.log([0.1, 0.5, 0.1, 0.3]), NONE, settings())
    expected = [(0.0, 1), (0.49, 1), (0.51, 3), (0.79, 3), (0.81, 0), (0.89, 0), (0.91, 2)]
    assert [(u, draw(chances, u)) for u, _ in expected] == expected
    assert draw(chances, 1 - 2**-24) == 2


def test_ties_are_drawn_and_listed_by_id() -> None:
    n = 1024  # large enough for NumPy's unstable sorts to show
    chances = distribution(np.zeros(n), NONE, settings())
    assert [draw(chances, u) for u in (0.0, 0.25, 0.5, 1 - 1 / n)] == [0, 256, 512, n - 1]
    listed = sample_token(np.zeros(n), NONE, settings()).candidates
    assert [candidate.id for candidate in listed] == list(range(N_CANDIDATES))


def test_the_draw_never_picks_what_was_cut() -> None:
    chances = distribution(random_logits(2), NONE, settings(top_k=7, top_p=0.95))
    for u in (0.0, 0.5, 1 - 2**-24):
        assert chances.kept[draw(chances, u)]


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({}, {"top_k": 8}, {"min_p": 0.03})),
        {"top_p": 0.7},
        {"temperature": 2.0, "top_k": 12},
    ],
)
def test_many_draws_have_the_right_frequencies(changes: dict[str, Any]) -> None:
    from scipy import stats

    logits, n = random_logits(3, n=24, scale=1.0), 8000
    chances = distribution(logits, NONE, settings(**changes))
    counts = np.bincount(
        [sample_token(logits, NONE, settings(seed=11, index=i, **changes)).id for i in range(n)],
        minlength=len(logits),
    )
    kept = chances.kept
    assert kept.sum() > 3
    assert counts[~kept].sum() == 0
    assert stats.chisquare(counts[kept], n * chances.after[kept]).pvalue > 0.001


# ---- the choice ------------------------------------------------------------------------------


def test_a_choice_tells_how_it_came_about() -> None:
    from scipy.special import log_softmax

    logits, sample = random_logits(4), settings(top_k=30, temperature=1.5, seed=5, index=9)
    chances, sampled = distribution(logits, [2], sample), sample_token(logits, [2], sample)
    assert sampled.id == draw(chances, uniform(5, 9))
    assert sampled.draw == uniform(5, 9)
    assert sampled.logprob == pytest.approx(log_softmax(logits.astype(np.float64))[sampled.id])
    assert sampled.probability == chances.after[sampled.id]
    assert sampled.rank == list(chances.order).index(sampled.id)
    assert sampled.n_kept == 30
    assert sum(sampled.mass) == pytest.approx(1.0)
    assert [c.id for c in sampled.candidates] == list(chances.order[:N_CANDIDATES])
    assert all(c.before == chances.before[c.id] for c in sampled.candidates)
    assert {c.cut for c in sampled.candidates} == {""}


def test_greedy_takes_the_most_likely_and_the_lowest_id_of_ties() -> None:
    logits = [1.0, 3.0, 3.0, 0.0]
    sampled = sample_token(logits, NONE, settings(temperature=0.0, top_k=1, top_p=0.1, seed=3))
    assert (sampled.id, sampled.draw, sampled.rank, sampled.n_kept) == (1, 0.0, 0, 1)
    assert (sampled.probability, sampled.mass) == (1.0, (1.0, 0.0, 0.0, 0.0))
    assert [c.after for c in sampled.candidates] == [1.0, 0.0, 0.0, 0.0]
    assert {c.cut for c in sampled.candidates} == {""}
    softmax = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose([c.before for c in sampled.candidates], softmax[[1, 2, 0, 3]])
    assert sample_token(logits, [1], settings(temperature=0.0, repetition_penalty=1.5)).id == 2


def test_fewer_tokens_than_candidates() -> None:
    assert len(sample_token([0.0, 1.0], NONE, settings()).candidates) == 2
    assert sample_token([0.5], NONE, settings(top_k=5, top_p=0.0, min_p=1.0)).id == 0
