"""The sampling shaders against `gpu.reference.sampler`: survivors, reports, draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gpu.checks.rig import Array, plain_rows
from gpu.checks.sampler import Family, check_draw, check_settings, normal_logits
from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.errors import DeviceError
from gpu.info import AdapterInfo
from gpu.ops.sampling import sample_lanes
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.reference import sampler as reference
from gpu.sampling_params import TokenBias
from gpu.step import MAX_TIMES_WRITTEN
from gpu.webgpu.device_policy import SHARED_TILE_BYTES, DevicePolicy
from gpu.webgpu.kernel_source import workgroup_memory
from gpu.webgpu.plan import Recorder
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.parity

VOCABS = (1, 2, 19, 20, 21, 31, 97, 256, 257, 512, 4096, 49152)

SamplerFor = Callable[[int], SamplerRig]


@pytest.fixture(scope="session")
def sampler(rig: Rig) -> SamplerFor:
    """The sampler for a vocabulary of any size."""
    return cache(lambda vocab_size: SamplerRig(rig, vocab_size))


# ---- settings and logits ------------------------------------------------------------------------

# With these numbers, logits that are multiples of a half and differ do not become equal.
ALL_PENALTIES = {
    "repetition_penalty": 1.25,
    "frequency_penalty": -0.75,
    "presence_penalty": 1.875,
    "logit_bias": (TokenBias(0, 1.5),),
}
SETTINGS = [
    *(settings(temperature=t) for t in (0.0, 0.01, 0.5, 1.0, 10.0)),
    *(settings(top_k=k) for k in (1, 2, 20, 50, 2**31 - 1)),
    *(settings(top_p=p) for p in (0.0, 1e-6, 0.5, 0.9, 0.999)),
    *(settings(min_p=p) for p in (1e-6, 0.05, 0.5, 1.0)),
    *(settings(repetition_penalty=p) for p in (0.1, 0.7, 1.3, 10.0)),
    settings(temperature=0.7, frequency_penalty=0.375, top_p=0.9),
    settings(presence_penalty=-1.5, top_k=40),
    settings(temperature=1.3, min_p=0.05, **ALL_PENALTIES),
    settings(temperature=0.0, repetition_penalty=1.3),
    settings(temperature=0.0, repetition_penalty=0.7),
    settings(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1),
    settings(temperature=2.5, top_k=7, top_p=0.95),
    settings(temperature=1.5, top_p=0.8, min_p=0.1),
    settings(temperature=0.3, top_k=3, min_p=0.2, repetition_penalty=0.83),
    settings(temperature=0.0, top_k=5, top_p=0.5, min_p=0.5, repetition_penalty=1.5),
    settings(temperature=0.0, **ALL_PENALTIES),
]


def peaked(rng: np.random.Generator, n: int) -> Array:
    return np.where(np.arange(n) == n // 2, 20.0, rng.normal(0, 1, n))


def tied(rng: np.random.Generator, n: int) -> Array:
    """Every logit shared by many tokens, the largest too; zeros of both signs."""
    return np.round(rng.normal(0, 1.5, n)) * 0.5 * rng.choice([1.0, -1.0], n)


def equal(rng: np.random.Generator, n: int) -> Array:
    return np.full(n, rng.normal())


def extreme(rng: np.random.Generator, n: int) -> Array:
    return rng.choice([-1e4, -50.0, 0.0, 50.0, 9999.0, 1e4], n) + rng.normal(0, 2, n)


# Least share of draws that rounding must not be able to change. With thousands of equally likely
# tokens, the interval of a token is about as small as the error of a sum.
FAMILIES = {normal_logits: 0.8, peaked: 0.8, tied: 0.6, equal: 0.75, extreme: 0.6}
LEAST_DECIDED = 0.5
"""The same for any selection of settings and any vocabulary."""
TOO_FEW = "too few of the cases could have failed"


@pytest.mark.parametrize(
    ("family", "share"), FAMILIES.items(), ids=lambda f: getattr(f, "__name__", None)
)
@pytest.mark.parametrize("vocab", VOCABS)
def test_every_setting_equals_the_reference(
    sampler: SamplerFor, vocab: int, family: Family, share: float
) -> None:
    rng = np.random.default_rng(vocab)
    decided = check_settings(sampler(vocab), family, SETTINGS, rng)
    if family is tied and vocab == VOCABS[-1]:
        share = 0.55  # 13 or 14 of 34 settings keep thousands of tied tokens, whatever the seed
    assert np.mean(decided) >= share, TOO_FEW


@pytest.mark.ci
@pytest.mark.parametrize("vocab", [128_256, 151_936, 262_144])
@pytest.mark.parametrize("family", [normal_logits, tied, equal], ids=lambda f: f.__name__)
def test_the_largest_vocabularies(sampler: SamplerFor, vocab: int, family: Family) -> None:
    """Here a device that ends loops early, as Mesa's software device does, would show."""
    rng = np.random.default_rng(vocab)
    decided = check_settings(sampler(vocab), family, SETTINGS[-8:], rng)
    assert np.mean(decided) >= LEAST_DECIDED, TOO_FEW


def test_a_vocabulary_too_large_for_a_software_device_is_refused() -> None:
    software, gpu = (DevicePolicy.of(AdapterInfo("", "", "", "", kind)) for kind in (True, False))
    with pytest.raises(DeviceError, match="a vocabulary of 600,000 tokens needs a real GPU"):
        sample_lanes(600_000, software)
    assert sample_lanes(600_000, gpu) == sample_lanes(393_216, software)


def test_a_software_device_has_eight_lanes_or_those_that_exact_sums_need() -> None:
    software = DevicePolicy.of(AdapterInfo("", "", "", "", True))
    vocabs = (20, 6144, 6145, 24_577, 151_936, 393_216)
    assert [sample_lanes(vocab, software) for vocab in vocabs] == [8, 8, 16, 64, 64, 128]


@pytest.mark.ci
@pytest.mark.parametrize("lanes", [128, 256])
@pytest.mark.parametrize("vocab", [20, 512, 4096])
def test_as_many_lanes_as_on_a_real_gpu(rig: Rig, vocab: int, lanes: int) -> None:
    on_gpu = SamplerRig(gpu_rig(rig, lanes), vocab)
    for family in (normal_logits, tied):
        decided = check_settings(on_gpu, family, SETTINGS, np.random.default_rng(vocab))
        assert np.mean(decided) >= FAMILIES[family], TOO_FEW


def gpu_rig(rig: Rig, lanes: int) -> Rig:
    """Return a rig that samples as a GPU does, with this many lanes."""
    device = as_kind(rig.device, software=False)
    assert device.policy.sum_parts > 1
    return rig.on(replace(device, policy=replace(device.policy, sample_lanes=lanes)))


@pytest.mark.parametrize(("lanes", "most_bytes"), [(128, 16 << 10), (256, SHARED_TILE_BYTES)])
def test_the_workgroup_memory_of_the_sampler(rig: Rig, lanes: int, most_bytes: int) -> None:
    on_gpu = gpu_rig(rig, lanes)
    rec = Recorder(on_gpu.device, on_gpu.kernels)
    SamplerRig(on_gpu, 49152).record(rec, on_gpu.batch(plain_rows(1), [settings()]))
    assert workgroup_memory(rec.plan.dispatches[-1].kernel) <= most_bytes


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


def test_penalties_that_count_lower_what_the_run_wrote_and_not_its_prompt(
    sampler: SamplerFor,
) -> None:
    logits = np.array([[2.0, 1.9, 1.8, 1.7, 1.6]], np.float32)
    by_times = settings(temperature=0.0, index=4, frequency_penalty=0.125)
    once = settings(temperature=0.0, index=4, presence_penalty=0.75)
    rewarded = settings(temperature=0.0, index=4, frequency_penalty=-0.5)
    context = [1, 2, 0, 0, 0, 2]  # its last four were written
    sampled = sampler(5).choose(np.repeat(logits, 3, 0), [by_times, once, rewarded], [context] * 3)
    orders = [[c.id for c in found.candidates] for found in sampled]
    # 2 − 3/8 = 1.625 and 1.8 − 1/8 = 1.675; 1.25 and 1.05; 3.5 and 2.3
    assert orders == [[1, 3, 2, 0, 4], [1, 3, 4, 0, 2], [0, 2, 1, 3, 4]]


@pytest.mark.ci
def test_biases_are_added_to_their_tokens_before_the_penalty(sampler: SamplerFor) -> None:
    """The slot's list is longer than the sample says, as after an earlier run."""
    logits = np.zeros((1, 11), np.float32)
    biases = (TokenBias(10, -1.0), TokenBias(4, 3.0), TokenBias(3, 2.0), TokenBias(0, 100.0))
    biased = settings(temperature=0.0, repetition_penalty=2.0, logit_bias=biases)
    found = sampler(11).choose(logits, [biased], [[4, 0, 10]])[0]
    assert [c.id for c in found.candidates] == [0, 3, 4, 1, 2, 5, 6, 7, 8, 9, 10]
    assert found.logprob == pytest.approx(-np.log(11), rel=1e-6), "not the model's own"
    forbidden = replace(biased, logit_bias=(TokenBias(3, 2.0), TokenBias(0, -100.0)))
    assert sampler(11).choose(logits, [forbidden])[0].candidates[-1].id == 0


@pytest.mark.ci
@pytest.mark.parametrize("id", [6, 7])
def test_counts_stop_at_their_largest_number(sampler: SamplerFor, id: int) -> None:
    """A word has the counts of two tokens; `SamplerRig` checks that the other one's stays 0."""
    n = MAX_TIMES_WRITTEN + 3
    logits = np.where(np.arange(9) == id, 64.0, 0.0).astype(np.float32)[None]
    sample = settings(temperature=0.0, index=n, frequency_penalty=2.0**-10)
    assert sampler(9).choose(logits, [sample], [[id] * n])[0].id == id, "64 − 65535 / 1024 > 0"


@pytest.mark.ci
def test_the_chosen_token_is_penalised_from_then_on(sampler: SamplerFor) -> None:
    """`SamplerRig` checks the bit; here its effect, over two steps on the same device state."""
    logits = np.array([[2.0, 1.9]], np.float32)
    strict = settings(temperature=0.0, repetition_penalty=1.5)
    first = sampler(2).choose(logits, [strict])[0]
    second = sampler(2).choose(logits, [strict], [[first.id]])[0]
    assert (first.id, second.id) == (0, 1)


@pytest.mark.ci
@pytest.mark.parametrize("vocab", [7, 97, 4096])
def test_drafts_are_penalised_and_what_verifies_them_leaves_no_trace(
    rig: Rig, sampler: SamplerFor, vocab: int
) -> None:
    """`SamplerRig` checks what is left. The draft after a row is none of its own."""
    rng = np.random.default_rng(vocab)
    drafts = [int(id) for id in rng.integers(0, vocab, 7)]
    logits = normal_logits(rng, 8 * vocab).astype(np.float32).reshape(8, vocab)
    drafts[5] = drafts[2]
    context = [1, 4, drafts[2]]
    sample = settings(
        seed=9, index=2, top_p=0.9, repetition_penalty=1.8, frequency_penalty=0.9,
        presence_penalty=-0.4,
    )  # fmt: skip
    sampled = sampler(vocab).verify(logits, sample, context, drafts)
    for i, found in enumerate(sampled):
        check_draw(rig, found, logits[i], [*context, *drafts[:i]], replace(sample, index=2 + i))


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
    if temperature > 1e-45:  # subnormal: devices may read it as 0
        assert {got.id for got in sampled} == {1, 3}
        assert all(got.probability == 0.5 for got in sampled)


@pytest.mark.parametrize("vocab", [97, 4096])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("odd", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("lanes", [None, 256], ids=["own", "gpu"])
def test_logits_that_are_not_numbers_are_reported_and_harm_nothing(
    rig: Rig,
    sampler: SamplerFor,
    lanes: int | None,
    vocab: int,
    temperature: float,
    odd: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rig, "lane_orders", False)  # which token is chosen is left open
    everywhere, once = np.full(vocab, odd), np.where(np.arange(vocab) == 5, odd, 1.0)
    masked = np.full(vocab, -np.inf)
    logits = np.stack([everywhere, once, masked]).astype(np.float32)
    for changes in ({}, {"top_p": 0.5}, {"top_p": 0.5, "top_k": 5, "min_p": 0.5}):
        samples = [settings(temperature=temperature, **changes)] * 3
        tried = SamplerRig(gpu_rig(rig, lanes), vocab) if lanes else sampler(vocab)
        for one in tried.choose(logits, samples):
            assert not np.isfinite(one.logprob)
            assert 0 <= one.id < vocab


@pytest.mark.ci
def test_a_draws_bits_do_not_depend_on_other_rows(sampler: SamplerFor) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (MAX_SAMPLES, 4096)).astype(np.float32)
    settings = itertools.islice(itertools.cycle(SETTINGS), MAX_SAMPLES)
    samples = [replace(sample, seed=7, index=i) for i, sample in enumerate(settings)]
    seen = [rng.integers(0, 4096, 99).tolist() for _ in samples]
    together = sampler(4096).choose(logits, samples, seen)
    for i in range(MAX_SAMPLES):
        alone = sampler(4096).choose(logits[i : i + 1], samples[i : i + 1], seen[i : i + 1])
        assert alone[0] == together[i]


@pytest.mark.smoke
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
