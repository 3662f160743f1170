"""Samples of runs with a grammar: of the tokens that it forbids, the sampler sees nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpu.checks.rig import ROUNDING, Array
from gpu.checks.sampler import check_draw
from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.reference import sampler as reference
from gpu.step import Sample, Sampled
from tests.gpu.ops.rig import Rig

pytestmark = pytest.mark.parity

SETTINGS = [
    settings(),
    settings(temperature=0.0, repetition_penalty=1.3),
    settings(temperature=10.0),
    settings(top_k=3),
    settings(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1),
    settings(temperature=1.5, top_p=0.8),
    settings(min_p=1e-6),
]
SHARES = (0.0, 0.002, 0.3, 1.0)
"""Shares of the vocabulary that grammars allow; one token at least."""


def check_allowed(
    rig: Rig,
    got: Sampled,
    logits: Array,
    seen: Sequence[int],
    sample: Sample,
    ids: Array,
    green: Array | None = None,
) -> bool:
    """Check a draw as one from a vocabulary of the allowed `ids` alone; what is the model's own is
    of the whole one. Return whether rounding leaves only one answer."""
    place = {int(id): at for at, id in enumerate(ids)}
    own = reference.log_softmax(logits.astype(np.float64))
    size = np.abs(logits).max() + np.log(len(logits)) + 1
    case = f"{len(ids)} of {len(logits)} tokens allowed, {sample}"
    bound = 64 * ROUNDING * size
    rig.compare("sample.logprob", case, np.array([got.logprob]), own[[got.id]], bound)
    share = np.exp(own[ids]).sum()
    rig.compare("sample.allowed", case, np.array([got.allowed]), np.array([share]), 2 * bound)
    there = replace(
        got,
        id=place[got.id],
        logprob=float(reference.log_softmax(logits[ids].astype(np.float64))[place[got.id]]),
        candidates=tuple(c._replace(id=place[c.id]) for c in got.candidates),
    )
    allowed_seen = [place[id] for id in seen if id in place]
    return check_draw(rig, there, logits[ids], allowed_seen, sample, green)


@pytest.mark.parametrize("vocab", [1, 33, 257, 4096, 49_152])
@pytest.mark.parametrize("ties", [False, True], ids=["apart", "tied"])
def test_forbidden_tokens_do_not_exist(rig: Rig, vocab: int, ties: bool) -> None:
    rng, sampler, decided = np.random.default_rng(vocab), SamplerRig(rig, vocab), []
    for share in SHARES:
        samples = [replace(s, seed=7, index=i) for i, s in enumerate(SETTINGS)]
        logits = rng.normal(0, 3, (len(samples), vocab)).astype(np.float32)
        logits = np.round(logits / 2) / 2 if ties else logits
        seen = [rng.integers(0, vocab, vocab // 3).tolist() for _ in samples]
        n = max(1, int(share * vocab))
        allowed = [np.sort(rng.permutation(vocab)[:n]) for _ in samples]
        got = sampler.choose(logits, samples, seen, [ids.tolist() for ids in allowed])
        for i, sample in enumerate(samples):
            decided.append(check_allowed(rig, got[i], logits[i], seen[i], sample, allowed[i]))
            assert reference_of(logits[i], seen[i], sample, allowed[i]).id in allowed[i]
    assert np.mean(decided) >= 0.6, "too few of the cases could have failed"


def reference_of(logits: Array, seen: Sequence[int], sample: Sample, ids: Array) -> Sampled:
    mask = np.zeros(len(logits), bool)
    mask[ids] = True
    return reference.sample_token(logits, seen, sample, mask)


def test_the_twin_sees_a_vocabulary_of_the_allowed_tokens() -> None:
    rng = np.random.default_rng(1)
    logits, ids = rng.normal(0, 3, 97), np.array([3, 50, 51, 96])
    sample = Sample(0, 0, seed=5, index=1, top_k=3, repetition_penalty=1.5)
    got = reference_of(logits, [3, 4], sample, ids)
    alone = reference.sample_token(logits[ids], [0], sample)
    assert [c.id for c in got.candidates] == [ids[c.id] for c in alone.candidates]
    assert (got.id, got.n_kept, got.mass) == (ids[alone.id], alone.n_kept, alone.mass)
    assert got.allowed == pytest.approx(reference.softmax(logits)[ids].sum())
    assert got.logprob == reference.log_softmax(logits)[got.id]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_that_the_model_thinks_impossible_is_drawn_if_it_alone_is_allowed(
    rig: Rig, temperature: float
) -> None:
    """Its probability is zero in float32; nothing may become infinite or not a number."""
    logits = np.zeros((1, 4096), np.float32)
    logits[0, 7] = -500
    one = SamplerRig(rig, 4096).choose(logits, [settings(temperature=temperature)], [], [[7]])[0]
    assert (one.id, one.n_kept, one.probability, one.mass) == (7, 1, 1.0, (1.0, 0.0, 0.0, 0.0))
    assert one.allowed == 0
    assert one.logprob == pytest.approx(-500 - np.log(4095), rel=1e-6)
    assert [c.id for c in one.candidates] == [7]


def test_what_slots_without_a_grammar_draw_does_not_depend_on_masks(rig: Rig) -> None:
    """`SamplerRig` leaves any bits in the masks of such slots."""
    rng, sampler = np.random.default_rng(2), SamplerRig(rig, 4096)
    logits = rng.normal(0, 3, (2, 4096)).astype(np.float32)
    alone = sampler.choose(logits, [settings(), settings()])
    beside = sampler.choose(logits, [settings(), settings()], [], [(), [5]])
    assert beside[0] == alone[0]
    assert (beside[1].id, alone[1].allowed) == (5, 1.0)
