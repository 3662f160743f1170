"""The whole model on the GPU against transformers, for every shape of `random_llama`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.checks.rig import limited, with_info
from gpu.reference.divergence import mean_kl
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DISCRETE
from tests.golden import Trained
from tests.gpu.engine import driving
from tests.gpu.models import random_llama
from tests.gpu.models.logit_checks import OF_A_DEEP_MODEL, OF_THE_LARGEST_LOGIT, check_logits
from tests.gpu.ops.rig import as_kind, compare, without_int64

pytestmark = pytest.mark.parity

N_TOKENS = 45
N_SHARED = 40
"""Tokens of a golden text that tries only kernels of prompts."""


RARE = (
    "tiny",
    "odd36",
    "gqa8",
    "linear_old",
    "llama3_old_shards",
    "head80_theta",
    "gqa6_wide",
    "head100_all_bias",
    "odd172_bias",
    "vocab50000_tied",
)
"""Shapes whose peculiarity is read from a config, or is a width that ops are tested with."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in RARE else name
        for name in random_llama.NAMES
    ],
)
def test_logits_and_statistics_equal_transformers(device: Device, name: str) -> None:
    ids = random_llama.ids(name, N_TOKENS)
    runner = driving.load(device, random_llama.folder(name))
    oracle = random_llama.reference(name)
    of_largest = OF_A_DEEP_MODEL if name == "deep_shards" else OF_THE_LARGEST_LOGIT
    got = driving.all_logits(runner, ids)
    check_logits("llama.logits.f32", got, oracle.logits(ids), name, of_largest)

    want = oracle.captured(ids)
    parts = driving.captured(runner, ids, chunk=17)
    for field in ("embedding", "residual", "attention", "mlp"):
        got = np.concatenate([getattr(part, field) for part in parts])
        expected = getattr(want, field)
        bound = (5e-7 if field == "embedding" else 4e-5) * expected
        compare(f"llama.{field}_norm", name, got, expected, bound, seed=0)
    for field in ("attention_cosine", "mlp_cosine"):
        got = np.concatenate([getattr(part, field) for part in parts])
        expected = getattr(want, field)
        # A relative bound, plus one for updates almost at right angles to the stream.
        bound = 1e-3 * np.abs(expected) + 1e-5
        compare(f"llama.{field}", name, got, expected, bound, seed=0)
    entropy = np.concatenate([part.entropy for part in parts])
    compare("llama.entropy_bits", name, entropy, want.entropy, np.array(1e-3), seed=0)


ROUNDED_MOST = ("derived_head", "deep_shards")
"""Shapes whose random weights magnify rounding errors: 5e-5 and 9e-5 nats, where the
others are below 1e-5."""


@pytest.mark.parametrize(
    "name",
    [
        "odd100_tied",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in random_llama.NAMES
            if n != "odd100_tied"
        ),
    ],
)
def test_half_precision_storage_changes_little(device: Device, name: str) -> None:
    ids = random_llama.ids(name, 24)
    runner = driving.load(device, random_llama.folder(name), "f16")
    kl = mean_kl(random_llama.reference(name).logits(ids), driving.all_logits(runner, ids))
    most = 1e-4 if name in ROUNDED_MOST else 3e-5
    compare("llama.kl.f16", name, np.array([kl]), np.zeros(1), np.array(most), seed=0)


@pytest.mark.slow
def test_a_trained_model_equals_transformers(device: Device, trained: Trained) -> None:
    oracle = random_llama.Reference(trained.folder)
    runners = {dtype: driving.load(device, trained.folder, dtype) for dtype in ("f32", "f16")}
    for text in trained.texts:
        ids = text.ids[:200]
        want = oracle.logits(ids)
        got = driving.all_logits(runners["f32"], ids)
        check_logits(f"{trained}.logits.f32", got, want, of_largest=7e-6)
        kl = mean_kl(want, driving.all_logits(runners["f16"], ids))
        compare(f"{trained}.kl.f16", "text", np.array([kl]), np.zeros(1), np.array(4e-6), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("capture", [False, True], ids=["plain", "captured"])
def test_a_trained_model_writes_its_golden_text(
    device: Device, trained: Trained, capture: bool
) -> None:
    runner = driving.load(device, trained.folder)
    for text in trained.texts:
        n = len(text.greedy_ids)
        sampled = driving.generate(runner, text.prompt_ids, n, capture=capture)
        assert [s.id for s in sampled] == text.greedy_ids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shared"),
    [("integrated GPU", None), (DISCRETE, None), (DISCRETE, 1)],
    ids=["integrated", "discrete", "shared-attention"],
)
def test_the_kernels_for_gpus_write_the_golden_text_too(
    device: Device, trained: Trained, kind: str, shared: int | None
) -> None:
    """`shared`: fewest workgroups of the attention that copies keys and values (prompts only)."""
    gpu = with_info(as_kind(device, software=False), kind=kind)
    gpu = replace(gpu, policy=replace(gpu.policy, shared_attention_workgroups=shared))
    runner = driving.load(gpu, trained.folder)
    for text in trained.texts:
        greedy_ids = text.greedy_ids[: N_SHARED if shared else None]
        sampled = driving.generate(runner, text.prompt_ids, len(greedy_ids))
        assert [s.id for s in sampled] == greedy_ids


@pytest.mark.parametrize(
    ("name", "max_binding_bytes", "cut"),
    [
        pytest.param(
            "head80_theta",
            620_000,
            {"embedding", "attn.qkv", "mlp.gate_up", "head"},
            marks=pytest.mark.slow,
        ),
        pytest.param("vocab50000_tied", 2 << 20, {"embedding"}, marks=pytest.mark.slow),
    ],
)
def test_a_model_whose_matrices_are_cut_into_shards(
    device: Device, name: str, max_binding_bytes: int, cut: set[str]
) -> None:
    runner = driving.load(limited(device, max_binding_bytes), random_llama.folder(name))
    matrices = runner.model.matrices()
    found = {m.name.removeprefix("layer00.") for m in matrices if len(m.shards) > 1}
    assert {n for n in found if not n.startswith("layer")} == cut
    ids = random_llama.ids(name, 20)
    whole = driving.load(device, random_llama.folder(name))
    got = driving.all_logits(runner, ids)
    assert np.array_equal(got.view("u4"), driving.all_logits(whole, ids).view("u4"))
    check_logits("llama.logits.f32", got, random_llama.reference(name).logits(ids))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "q4"])
def test_the_bits_are_the_same_for_every_way_to_load_16_bytes(device: Device, dtype: str) -> None:
    if not device.policy.lib:
        pytest.skip("this device loads words alone")
    ids, found = random_llama.ids("gqa8", 40), []
    for each in (device, without_int64(device)):
        runner = driving.load(each, random_llama.folder("gqa8"), dtype)
        driving.begin(runner, 0, ids, len(ids))
        found.append(driving.last_logits(runner, ids, chunk=32))
    assert np.array_equal(*(logits.view("u4") for logits in found))
