"""Distribution of the sampler's draws: thousands of them, and a chi-square test.

Seeds are fixed, so a run gives the same verdict every time on one driver.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import wgpu
from scipy import stats

from gpu.checks.rig import Array
from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.reference import sampler as reference
from gpu.step import Sample
from gpu.webgpu.kernels import read_shader
from tests.gpu.ops.rig import Rig

pytestmark = pytest.mark.parity

VOCAB = 97
N_DRAWS = 3200
FEW_DRAWS = 640
"""Number of settings that the slow tests draw from more often."""
LEAST_EXPECTED = 5
"""Least expected count; rarer tokens are pooled, as usual for a chi-square test."""
LEAST_P = 1e-3

SETTINGS = {
    "plain": settings(),
    "hot": settings(temperature=3.0),
    "cold": settings(temperature=0.4),
    "top_k": settings(top_k=10),
    "top_p": settings(top_p=0.8),
    "min_p": settings(min_p=0.05),
    "penalty": settings(repetition_penalty=1.8),
    "all": settings(temperature=1.5, top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.3),
}


MORE = [(name, "smooth") for name in ("hot", "cold", "top_k", "top_p", "min_p", "penalty")]
MORE += [(name, "tied") for name in ("top_p", "penalty")]
MORE += [("plain", "smooth"), ("plain", "tied"), ("all", "tied")]


def logits_of(kind: str) -> Array:
    rng = np.random.default_rng(11)
    smooth = rng.normal(0, 1.5, VOCAB)
    return (np.round(smooth) if kind == "tied" else smooth).astype(np.float32)


@pytest.fixture(scope="module")
def sampler(rig: Rig) -> SamplerRig:
    return SamplerRig(rig, VOCAB)


def draw(sampler: SamplerRig, logits: Array, samples: list[Sample], seen: list[int]) -> Array:
    """Return how often each token was drawn."""
    counts = np.zeros(VOCAB, int)
    rows = np.repeat(logits[None], MAX_SAMPLES, 0)
    for start in range(0, len(samples), MAX_SAMPLES):
        part = samples[start : start + MAX_SAMPLES]
        for got in sampler.choose(rows, part, [seen] * len(part)):
            counts[got.id] += 1
    return counts


def p_value(counts: Array, probabilities: Array) -> float:
    """Return the probability of these counts or worse under these probabilities."""
    assert not counts[probabilities == 0].any(), "a token was drawn that the filters cut"
    expected = probabilities * counts.sum()
    rare = expected < LEAST_EXPECTED
    merged = [np.append(a[~rare], a[rare].sum()) for a in (counts, expected)]
    counts, expected = (m if merged[1][-1] > 0 else m[:-1] for m in merged)
    return float(stats.chisquare(counts, expected).pvalue) if len(counts) > 1 else 1.0


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "kind", "n"),
    [
        ("all", "smooth", N_DRAWS),
        *((name, kind, FEW_DRAWS) for name, kind in MORE),
        *(pytest.param(name, kind, N_DRAWS, marks=pytest.mark.slow) for name, kind in MORE),
    ],
)
def test_the_tokens_of_a_run_follow_the_reference(
    sampler: SamplerRig, name: str, kind: str, n: int
) -> None:
    logits, seen = logits_of(kind), list(range(0, VOCAB, 2))
    samples = [replace(SETTINGS[name], seed=2026, index=i) for i in range(n)]
    wanted = reference.distribution(logits.astype(np.float64), seen, samples[0]).after
    assert p_value(draw(sampler, logits, samples, seen), wanted) > LEAST_P


def test_the_first_tokens_of_many_seeds_follow_the_reference(sampler: SamplerRig) -> None:
    samples = [settings(seed=seed) for seed in range(N_DRAWS)]
    logits = logits_of("smooth")
    wanted = reference.distribution(logits.astype(np.float64), [], samples[0]).after
    assert p_value(draw(sampler, logits, samples, []), wanted) > LEAST_P


@pytest.mark.parametrize(("temperature", "n"), [(1.3, N_DRAWS), (1.6, FEW_DRAWS)])
def test_the_test_notices_a_wrong_distribution(
    sampler: SamplerRig, temperature: float, n: int
) -> None:
    """Draws at a higher temperature do not pass for draws at 1."""
    logits = logits_of("smooth")
    samples = [settings(temperature=temperature, seed=2026, index=i) for i in range(n)]
    wanted = reference.distribution(logits.astype(np.float64), [], settings()).after
    assert p_value(draw(sampler, logits, samples, []), wanted) < LEAST_P


# From the authors' own test file (Random123, kat_vectors): counter, key, result.
PHILOX_4X32_10 = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
PHILOX_ALONE = """
@group(0) @binding(0) var<storage, read_write> words: array<vec4u>; // counter and key; the result
@compute @workgroup_size(1)
fn main() { words[0] = philox(words[1].xy, words[0]); }
"""


@pytest.mark.parametrize(("counter", "key", "result"), PHILOX_4X32_10)
def test_philox_gives_the_published_numbers(
    rig: Rig, counter: list[int], key: list[int], result: list[int]
) -> None:
    device = rig.device.wgpu
    words = rig.memory.upload("words", np.array([*counter, *key, 0, 0], np.uint32))
    module = device.create_shader_module(code=read_shader("lib/philox") + PHILOX_ALONE)
    pipeline = device.create_compute_pipeline(
        layout=wgpu.AutoLayoutMode.auto, compute={"module": module, "entry_point": "main"}
    )
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": words.binding}],
    )
    encoder = device.create_command_encoder()
    compute_pass = encoder.begin_compute_pass()
    compute_pass.set_pipeline(pipeline)
    compute_pass.set_bind_group(0, group)
    compute_pass.dispatch_workgroups(1)
    compute_pass.end()
    device.queue.submit([encoder.finish()])
    assert rig.memory.read(words)[:4].tolist() == result
    assert list(reference.philox((key[0], key[1]), tuple(counter))) == result
