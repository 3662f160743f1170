"""The sampling shader against `gpu.reference_sampler`: what survives, what is reported, what is
drawn.

Float32 may put a token on the other side of a threshold only when it lies within rounding of it.
The tests work out how many tokens can survive then, nearly always one number, and hold the device
to it; as survivors are always the most likely tokens, their number says which they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from gpu import reference_sampler as reference
from gpu.errors import DeviceError
from gpu.ops import sample_lanes
from gpu.step import N_CANDIDATES, Sample, Sampled
from gpu.step_buffer import MAX_SAMPLES
from tests.gpu.rig import ROUNDING, Array, Rig, as_kind, compare
from tests.gpu.sampler_rig import SamplerRig, settings

pytestmark = pytest.mark.parity

VOCABS = (1, 2, 19, 20, 21, 97, 512, 4096, 49152)

SamplerFor = Callable[[int], SamplerRig]


@pytest.fixture(scope="session")
def sampler(rig: Rig) -> SamplerFor:
    """The sampler for a vocabulary of any size."""
    return cache(lambda vocab_size: SamplerRig(rig, vocab_size))


@dataclass(frozen=True)
class Expected:
    """What the reference makes of one draw, and how far float32 may be from it."""

    logits: Array
    seen: Sequence[int]
    sample: Sample

    @property
    def case(self) -> str:
        return f"{len(self.logits)} tokens, {self.sample}"

    def result(self, name: str) -> str:
        """For the summary: float32 knows masses of logits in the thousands to few digits."""
        return f"sample.{name}" + (".extreme" if np.abs(self.logits).max() > 100 else "")

    @property
    def sum_error(self) -> float:
        """Relative error of a float32 sum of positive numbers, by 64 lanes and then over them."""
        return ROUNDING * (48 + 4 * math.sqrt(len(self.logits) / 64))

    def mass_error(self, d: reference.Distribution) -> Array:
        """Relative error of each mass exp(scaled − top): of exp, and of scaling if there was."""
        s = self.sample
        scaling = 0 if s.temperature in (0, 1) and s.repetition_penalty == 1 else 16
        return ROUNDING * (16 + 8 * (d.scaled.max() - d.scaled) + scaling * np.abs(d.scaled))

    def distribution(self, **changes: float) -> reference.Distribution:
        sample = replace(self.sample, **changes)
        return reference.distribution(self.logits, self.seen, sample)

    def may_be_kept(self, d: reference.Distribution) -> range:
        """How many tokens may survive once masses and thresholds are rounded."""
        s = self.sample
        if s.temperature == 0:
            return range(1, 2)
        slack = 2 * float(d.before @ self.mass_error(d)) + 2 * self.sum_error
        height = slack + 4 * ROUNDING * np.abs(d.scaled).max()  # of the threshold of min-p
        counts = []
        for way in (-1, 1):
            top_p = s.top_p * (1 + way * slack) if s.top_p < 1 else 1.0
            moved = self.distribution(
                top_p=top_p, min_p=min(1.0, s.min_p * math.exp(-way * height))
            )
            counts.append(int(np.count_nonzero(moved.kept)))
        return range(min(counts), max(counts) + 1)

    def may_be_drawn(self, d: reference.Distribution, u: float) -> list[int]:
        """The survivors whose share of [0, 1) comes within rounding of u."""
        if self.sample.temperature == 0:
            return [reference.draw(d, 0.0)]
        slack = 2 * float(d.after @ self.mass_error(d)) + 2 * self.sum_error
        order = [int(id) for id in d.order if d.kept[id]]
        ends = [reference.draw(d, min(max(at, 0.0), 1 - 2.0**-53)) for at in (u - slack, u + slack)]
        return order[order.index(ends[0]) : order.index(ends[1]) + 1]


def check(got: Sampled, logits: Array, seen: Sequence[int], sample: Sample) -> bool:
    """Hold one draw to the reference; tells whether rounding left no choice at all."""
    e = Expected(logits.astype(np.float64), seen, sample)
    d = e.distribution()
    kept = e.may_be_kept(d)
    assert got.n_kept in kept, f"{e.case}: {got.n_kept} kept, not {np.count_nonzero(d.kept)}"
    check_candidates(got, e, d, decided=len(kept) == 1)
    check_logprob(got, e)
    assert got.rank == np.count_nonzero(d.scaled > d.scaled[got.id]), f"{e.case}: rank"
    if got.n_kept != np.count_nonzero(d.kept):
        return False
    error = float(d.before @ e.mass_error(d)) + e.sum_error
    compare(e.result("mass"), e.case, np.array(got.mass), np.array(d.mass), 4 * error, sample.seed)
    u = 0.0 if sample.temperature == 0 else reference.uniform(sample.seed, sample.index)
    assert got.draw == u, f"{e.case}: the draw was {got.draw}, not {u}"
    drawn = e.may_be_drawn(d, u)
    assert got.id in drawn, f"{e.case}: chose {got.id}, not {reference.draw(d, u)}"
    probability = d.after[[got.id]]
    bound = (e.mass_error(d)[got.id] + 2 * error) * probability
    compare(e.result("after"), e.case, np.array([got.probability]), probability, bound, sample.seed)
    return len(kept) == len(drawn) == 1


def check_candidates(got: Sampled, e: Expected, d: reference.Distribution, decided: bool) -> None:
    """The most likely tokens, ties by id, with what the filters did to each."""
    ids = d.order[:N_CANDIDATES]
    assert [c.id for c in got.candidates] == ids.tolist(), f"{e.case}: candidates"
    bound = e.mass_error(d)[ids] + float(d.before @ e.mass_error(d)) + e.sum_error
    before = np.array([c.before for c in got.candidates])
    compare(e.result("before"), e.case, before, d.before[ids], bound * d.before[ids], e.sample.seed)
    if decided:
        cuts = [reference.CUTS[i] for i in d.cut[ids]]
        assert [c.cut for c in got.candidates] == cuts, f"{e.case}: cuts"
        after = np.array([c.after for c in got.candidates])
        compare(
            e.result("after"), e.case, after, d.after[ids], 2 * bound * d.after[ids], e.sample.seed
        )


def check_logprob(got: Sampled, e: Expected) -> None:
    """The raw logit is won back from the scaled one; log Σ exp is as good as its terms."""
    top = e.logits.max()
    want = e.logits[got.id] - top - np.log(np.exp(e.logits - top).sum())
    size = np.abs(e.logits).max() + math.log(len(e.logits)) + 1
    bound = 16 * ROUNDING * size + e.sum_error
    compare(e.result("logprob"), e.case, np.array([got.logprob]), np.array([want]), bound, 0)


# ---- settings and logits ------------------------------------------------------------------------

SETTINGS = [
    *(settings(temperature=t) for t in (0.0, 0.01, 0.5, 1.0, 10.0)),
    *(settings(top_k=k) for k in (1, 2, 20, 50, 2**31 - 1)),
    *(settings(top_p=p) for p in (0.0, 1e-6, 0.5, 0.9, 0.999)),
    *(settings(min_p=p) for p in (1e-6, 0.05, 0.5, 1.0)),
    *(settings(repetition_penalty=p) for p in (0.1, 0.7, 1.3, 10.0)),
    settings(temperature=0.0, repetition_penalty=1.3),
    settings(temperature=0.0, repetition_penalty=0.7),
    settings(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1),
    settings(temperature=2.5, top_k=7, top_p=0.95),
    settings(temperature=1.5, top_p=0.8, min_p=0.1),
    settings(temperature=0.3, top_k=3, min_p=0.2, repetition_penalty=0.83),
    settings(temperature=0.0, top_k=5, top_p=0.5, min_p=0.5, repetition_penalty=1.5),
]


def normal(rng: np.random.Generator, n: int) -> Array:
    return rng.normal(0, 3, n)


def peaked(rng: np.random.Generator, n: int) -> Array:
    return np.where(np.arange(n) == n // 2, 20.0, rng.normal(0, 1, n))


def tied(rng: np.random.Generator, n: int) -> Array:
    """Every logit shared by many tokens, the largest too; zeros of both signs."""
    return np.round(rng.normal(0, 1.5, n)) * 0.5 * rng.choice([1.0, -1.0], n)


def equal(rng: np.random.Generator, n: int) -> Array:
    return np.full(n, rng.normal())


def extreme(rng: np.random.Generator, n: int) -> Array:
    return rng.choice([-1e4, -50.0, 0.0, 50.0, 9999.0, 1e4], n) + rng.normal(0, 2, n)


Family = Callable[[np.random.Generator, int], Array]
# How many of the draws rounding must not be able to change: among thousands of tokens that share
# the mass evenly, the ends of a token's share are as close as sums are exact.
FAMILIES = {normal: 0.8, peaked: 0.8, tied: 0.6, equal: 0.1, extreme: 0.6}


def check_settings(
    sampler: SamplerRig, family: Family, chosen: Sequence[Sample], rng: np.random.Generator
) -> list[bool]:
    vocab, decided = sampler.vocab_size, []
    for start in range(0, len(chosen), MAX_SAMPLES):
        samples = [
            replace(s, seed=int(rng.integers(2**64, dtype=np.uint64)), index=start + i)
            for i, s in enumerate(chosen[start : start + MAX_SAMPLES])
        ]
        logits = np.stack([family(rng, vocab) for _ in samples]).astype(np.float32)
        seen = [rng.integers(0, vocab, vocab // 3).tolist() for _ in samples]
        for i, got in enumerate(sampler.choose(logits, samples, seen)):
            decided.append(check(got, logits[i], seen[i], samples[i]))
    return decided


@pytest.mark.parametrize(
    ("family", "share"), FAMILIES.items(), ids=lambda f: getattr(f, "__name__", None)
)
@pytest.mark.parametrize("vocab", VOCABS)
def test_every_setting_equals_the_reference(
    sampler: SamplerFor, vocab: int, family: Family, share: float
) -> None:
    rng = np.random.default_rng(vocab)
    decided = check_settings(sampler(vocab), family, SETTINGS, rng)
    assert np.mean(decided) >= share, "too few of the cases could have failed"


@pytest.mark.parametrize("vocab", [128_256, 151_936, 262_144])
@pytest.mark.parametrize("family", [normal, tied, equal], ids=lambda f: f.__name__)
def test_the_largest_vocabularies(sampler: SamplerFor, vocab: int, family: Family) -> None:
    """Here a device that ends loops early, as Mesa's software device does, would show."""
    check_settings(sampler(vocab), family, SETTINGS[-8:], np.random.default_rng(vocab))


def test_a_vocabulary_too_large_for_a_software_device_is_refused() -> None:
    with pytest.raises(DeviceError, match="a vocabulary of 600,000 tokens needs a real GPU"):
        sample_lanes(600_000, software=True)
    assert sample_lanes(600_000, software=False) <= 256


@pytest.mark.parametrize("vocab", [20, 512, 4096])
def test_as_many_lanes_as_on_a_real_gpu(rig: Rig, vocab: int) -> None:
    on_gpu = SamplerRig(Rig(as_kind(rig.device, software=False), rig.kernels), vocab)
    for family in (normal, tied):
        check_settings(on_gpu, family, SETTINGS, np.random.default_rng(vocab))


# ---- single facts -------------------------------------------------------------------------------


def test_a_penalty_moves_seen_tokens_down_on_both_sides_of_zero(sampler: SamplerFor) -> None:
    logits = np.array([[2.0, 1.9, -1.0, -1.1, 0.0]], np.float32)
    penalised = settings(temperature=0.0, repetition_penalty=1.25)
    rewarded = settings(temperature=0.0, repetition_penalty=0.5)
    sampled = sampler(5).choose(np.repeat(logits, 2, 0), [penalised, rewarded], [[0, 2], [1, 3]])
    # 2 → 1.6 and −1 → −1.25; 1.9 → 3.8 and −1.1 → −0.55
    assert [c.id for c in sampled[0].candidates] == [1, 0, 4, 3, 2]
    assert [c.id for c in sampled[1].candidates] == [1, 0, 4, 3, 2]
    assert sampled[0].id == 1
    assert sampled[1].id == 1


def test_the_chosen_token_is_penalised_from_then_on(sampler: SamplerFor) -> None:
    """`SamplerRig` checks the bit; here its effect, over two steps on the same device state."""
    logits = np.array([[2.0, 1.9]], np.float32)
    strict = settings(temperature=0.0, repetition_penalty=1.5)
    first = sampler(2).choose(logits, [strict])[0]
    second = sampler(2).choose(logits, [strict], [[first.id]])[0]
    assert (first.id, second.id) == (0, 1)


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-30, 2e-38, 1e-45])
def test_the_smallest_temperatures_choose_among_the_most_likely(
    sampler: SamplerFor, temperature: float
) -> None:
    logits = np.array([[-5.0, 3.0, 2.0, 3.0, -30.0]] * MAX_SAMPLES, np.float32)
    samples = [settings(temperature=temperature, top_p=0.9, seed=i) for i in range(MAX_SAMPLES)]
    sampled = sampler(5).choose(logits, samples)
    for got in sampled:
        assert np.isfinite([got.logprob, got.probability, *got.mass]).all()
        assert [c.id for c in got.candidates] == [1, 3, 2, 0, 4]
    if temperature > 1e-45:  # no normal number: devices may read it as 0
        assert {got.id for got in sampled} == {1, 3}
        assert all(got.probability == 0.5 for got in sampled)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_reported_and_harm_nothing(
    sampler: SamplerFor, temperature: float
) -> None:
    logits = np.stack([np.full(97, np.nan), np.where(np.arange(97) == 5, np.nan, 1.0)])
    for min_p in (0.0, 0.5):
        sample = settings(temperature=temperature, min_p=min_p, top_p=0.5, top_k=5)
        sampled = sampler(97).choose(logits.astype(np.float32), [sample, sample])
        for one in sampled:
            assert not np.isfinite(one.logprob)
            assert 0 <= one.id < 97


def test_a_draws_bits_depend_on_nothing_beside_it(sampler: SamplerFor) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (MAX_SAMPLES, 4096)).astype(np.float32)
    samples = [replace(s, seed=7, index=i) for i, s in enumerate(SETTINGS[-8:])]
    seen = [rng.integers(0, 4096, 99).tolist() for _ in samples]
    together = sampler(4096).choose(logits, samples, seen)
    for i in range(MAX_SAMPLES):
        alone = sampler(4096).choose(logits[i : i + 1], samples[i : i + 1], seen[i : i + 1])
        assert alone[0] == together[i]


def test_the_uniform_number_is_that_of_seed_and_index(sampler: SamplerFor) -> None:
    rng = np.random.default_rng(0)
    seeds = [0, 1, 2**32 - 1, 2**32, 2**64 - 1, *map(int, rng.integers(2**64, size=59, dtype="u8"))]
    indices = [0, 1, 2**32 - 1, *map(int, rng.integers(2**32, size=61))]
    everything = [settings(seed=s, index=i) for s, i in zip(seeds, indices, strict=True)]
    for start in range(0, len(everything), MAX_SAMPLES):
        samples = everything[start : start + MAX_SAMPLES]
        sampled = sampler(2).choose(np.zeros((MAX_SAMPLES, 2), np.float32), samples)
        for sample, got in zip(samples, sampled, strict=True):
            assert got.draw == reference.uniform(sample.seed, sample.index)
            assert got.id == int(got.draw >= 0.5)
