"""Quantised KV caches in whole models: against transformers' attention over the same quantised keys
and values, their cost on a trained model, and independence of how a text was processed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from app import tale
from gpu.checks.kv_cache import pool_words, token_words
from gpu.checks.rig import greedy
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.errors import ModelError
from gpu.kv.blocks import KvShape, block_bytes, bytes_by_format, fit_kv_cache
from gpu.kv.formats import KV_FORMATS, hadamard_size, pack_block
from gpu.kv.pools import KvPools
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.reference import kv as reference
from gpu.reference.divergence import Divergence, mean_loss
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.step import Floats, InspectionRequest, Row, Step
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.golden import Trained
from tests.gpu.engine import driving
from tests.gpu.kv.test_prefix_reuse import write
from tests.gpu.models import random_llama, random_models
from tests.gpu.models.logit_checks import check_logits
from tests.gpu.ops.rig import compare

OF_THE_LARGEST = 2e-4
"""Bound of the error of a logit, relative to the largest."""


class QuantisedCache(DynamicCache):
    """Cache of transformers that returns what a format stores of its input."""

    def __init__(self, dtype: str, head_dim: int) -> None:
        super().__init__()
        self.format = KV_FORMATS[dtype]
        span = hadamard_size(head_dim)
        hadamard = (
            reference.hadamard_matrix(head_dim, span) if self.format.hadamard else np.eye(head_dim)
        )
        self.hadamard, self.block = hadamard, pack_block(head_dim)

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        stored = (
            self._of(keys, self.format.keys.name), self._of(values, self.format.values.name),
        )  # fmt: skip
        return super().update(*stored, *args, **kwargs)

    def _of(self, x: torch.Tensor, storage: str) -> torch.Tensor:
        transformed = x.double().numpy() @ self.hadamard.T
        back = reference.quantised(storage, transformed, self.block) @ self.hadamard
        return torch.from_numpy(back).to(x.dtype)


@torch.no_grad()
def twin_logits(model: Any, ids: Sequence[int], dtype: str, head_dim: int) -> Floats:
    cache = QuantisedCache(dtype, head_dim)
    out = model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True)
    logits: Floats = out.logits[0].numpy()
    return logits


def check_against_twin(got: Floats, want: Floats, plain: Floats, case: str) -> None:
    """Check with almost the tolerance of an unquantised cache; the quantisation error is much
    larger. (In deep models a number between two codes may round the other way, and changes
    everything after it.)"""
    effect = np.abs(want - plain).max() / np.abs(want).max()
    assert effect > 20 * OF_THE_LARGEST, f"{case}: hardly anything was quantised ({effect:g})"
    check_logits("logits over a quantised cache", got, want, case, OF_THE_LARGEST)


@pytest.mark.parametrize(
    ("name", "dtype"), [("gqa8", "q8q4"), ("head80_theta", "rotated4"), ("gqa6_wide", "q8")]
)
def test_logits_are_those_of_attention_over_quantised_keys(
    device: Device, name: str, dtype: str
) -> None:
    runner = driving.load(device, random_llama.folder(name), kv_dtype=dtype)
    ids = random_llama.ids(name, 40)
    model, d = random_llama.reference(name).model, runner.config.head_dim
    plain = random_llama.reference(name).logits(ids)
    want = twin_logits(model, ids, dtype, d)
    check_against_twin(driving.all_logits(runner, ids), want, plain, f"{name} {dtype}")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("olmo2_bias", "rotated4"),
        ("gpt_neox", "q8q4"),
        pytest.param("gemma2_uncapped", "q8q4", marks=pytest.mark.slow),
        pytest.param("gpt2_inner", "rotated4", marks=pytest.mark.slow),
    ],
)
def test_logits_of_other_architectures(device: Device, name: str, dtype: str) -> None:
    """QK-norms, no rotary positions, sliding windows, logit caps."""
    runner = driving.load(device, random_models.folder(name), kv_dtype=dtype)
    ids, reference_ = random_models.ids(24), random_models.reference(name)
    want = twin_logits(reference_.model, ids, dtype, runner.config.head_dim)
    plain = reference_.logits(ids)
    check_against_twin(driving.all_logits(runner, ids), want, plain, f"{name} {dtype}")


# ---- cost of the formats ---------------------------------------------------------------------

TEXT = """There was a poster on the wall: "Bring your greatest treasure to the fair at the \
crossroads!" Fern had only a blue cup. "It is nothing special," he thought, but he took it along. \
There were silver shoes and crystal swans, and a gentle hare had brought a fountain that spouted \
lemonade. Fern wanted to hide. "And you?" asked the judge. Everyone turned around. "This cup," \
said Fern. "It belonged to my grandfather. When I hold it, I remember his stories." And he told \
them all about it."""
"""Written by the bundled model."""
COSTS = {"q8": (4e-5, 2.5e-4), "q8q4": (3e-3, 1.3e-2), "rotated4": (8e-3, 5e-2)}
"""Bounds of the mean KL from float16 and of the difference in loss, in nats: four times the values
on two drivers, rounded to one digit."""
LEAST_SAME_TOP = 0.98
"""Least share of positions whose most likely token stays the same; all do on two drivers."""


@pytest.mark.ci
def test_formats_cost_the_bundled_model_little(device: Device) -> None:
    """Fewer bits cost more; 8 hardly anything."""
    folder = tale.model_dir()
    ids = Tokenizer.load(folder).encode(TEXT)
    load = {kv: driving.load(device, folder, "f16", 1, kv) for kv in ("f16", *COSTS)}
    logits = {kv: driving.all_logits(runner, ids) for kv, runner in load.items()}
    found = {kv: Divergence.of(logits["f16"], logits[kv]) for kv in COSTS}
    losses = {kv: mean_loss(logits[kv][:-1], ids[1:]) for kv in logits}
    for kv, bounds in COSTS.items():
        got = np.array([found[kv].kl, losses[kv] - losses["f16"]])
        compare(f"tale.cost.{kv}", "text", got, np.zeros(2), np.array(bounds), seed=0)
        assert found[kv].kl > 0
        assert found[kv].same_top >= LEAST_SAME_TOP
    assert found["q8"].kl < found["q8q4"].kl < found["rotated4"].kl


MOST_KL_OF_Q8 = {"tale": 1e-4, "stories260k": 4e-3}
"""stories260k has a head size of eight, one block."""


def test_eight_bits_cost_a_trained_model_little(device: Device, trained: Trained) -> None:
    ids, folder = trained.texts[1].ids[:160], trained.folder
    f16, q8 = (
        driving.all_logits(driving.load(device, folder, "f16", 1, kv), ids) for kv in ("f16", "q8")
    )
    found = Divergence.of(f16, q8)
    assert found.kl > 0
    compare(
        f"{trained}.kl.cached.q8",
        "text",
        np.array([found.kl]),
        np.zeros(1),
        np.array(MOST_KL_OF_Q8[trained.name]),
        seed=0,
    )
    assert found.same_top >= LEAST_SAME_TOP


# ---- the same bits ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["q8q4", "rotated4"])
def runner(request: pytest.FixtureRequest, device: Device) -> WgpuRunner:
    return driving.load(device, random_llama.folder("derived_head"), "f16", kv_dtype=request.param)


def stored(runner: WgpuRunner, blocks: list[int], n: int) -> list[Any]:
    """Return the words of the first `n` tokens in these blocks, layer by layer."""
    pools, d, memory = runner.pools, runner.config.head_dim, Memory(runner.gpu)
    found = []
    for storage, tensors in (
        (pools.format.keys, pools.keys), (pools.format.values, pools.values),
    ):  # fmt: skip
        for tensor in tensors:
            words = pool_words(memory, tensor)
            for part in token_words(words, storage, d):
                tokens = part[blocks].transpose(0, 2, 1, 3).reshape(-1, *part.shape[1::2])
                found.append(tokens[:n])
    return found


@pytest.mark.ci
@pytest.mark.parity
def test_keys_do_not_depend_on_how_a_text_was_processed(runner: WgpuRunner) -> None:
    """The stored words are the same in chunks of any size, in any blocks, beside another text."""
    ids = random_llama.ids("derived_head", 37)
    seen = []
    for slot, blocks, chunk in ((0, [0, 1, 2], 37), (1, [7, 4, 9], 5), (2, [3, 11, 5], 1)):
        driving.begin(runner, slot, ids, 37, blocks)
        driving.prefill(runner, ids, slot=slot, chunk=chunk)
        seen.append(stored(runner, blocks, 37))
    driving.begin(runner, 0, ids, 37, [12, 13, 14])
    driving.begin(runner, 3, ids, 37, [15, 16, 17])
    for at in range(37):
        rows = (Row(3, at, ids[-at - 1]), Row(0, at, ids[at]))
        runner.submit(Step(rows))
        runner.collect()
    seen.append(stored(runner, [12, 13, 14], 37))
    for other in seen[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(seen[0], other, strict=True))


@pytest.mark.parity
def test_a_text_that_diverges_inside_a_block_continues_from_a_copy(runner: WgpuRunner) -> None:
    begin, rest = random_llama.ids("derived_head", 21), random_llama.ids("derived_head", 9, seed=1)
    driving.begin(runner, 0, begin, 21, [0, 1])
    driving.prefill(runner, begin, slot=0)
    runner.copy_block(1, 6)
    driving.begin(runner, 1, begin + rest, 30, [0, 6])
    driving.prefill(runner, rest[:-1], slot=1, first=21)
    branch = runner.logits(Step((Row(1, 29, rest[-1]),), (greedy(0, 1),)))
    driving.begin(runner, 2, begin + rest, 30, [8, 9])
    fresh = driving.last_logits(runner, begin + rest, slot=2)
    assert np.array_equal(branch[0].view("u4"), fresh.view("u4"))


@pytest.mark.parity
def test_a_question_reads_the_keys_and_values_of_the_text(runner: WgpuRunner) -> None:
    """Recomputed rows store the same keys, and give the same logits."""
    ids = random_llama.ids("derived_head", 19, seed=4)
    logits = driving.all_logits(runner, ids)
    before = stored(runner, [0, 1], 19)
    step = Step(tuple(Row(0, 5 + i, id) for i, id in enumerate(ids[5:])), (greedy(13),))
    found = runner.inspect(step, InspectionRequest((0, 19), lens=True, states=True))
    assert found.attention is not None
    assert found.lens is not None
    np.testing.assert_allclose(found.attention.sum(-1), 1, rtol=1e-5)
    assert np.array_equal(found.lens[-1].view("u4"), logits[18].view("u4"))
    for a, b in zip(before, stored(runner, [0, 1], 19), strict=True):
        assert np.array_equal(a, b)


def test_cached_blocks_equal_recomputed_ones(
    runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A continuation, and a text that diverges from the first inside a block."""
    monkeypatch.setattr(runner, "close", lambda: None)
    tokenizer = Tokenizer.load(random_llama.folder("derived_head"))
    begin, other = random_llama.ids("derived_head", 40), random_llama.ids("derived_head", 6, seed=8)
    written = {}
    for kept in (True, False):
        engine = Engine(lambda: runner, tokenizer, LoadOptions(prefix_cache=kept))
        greedily = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        texts = (begin, begin + other, begin[:25] + other)
        runs = [write(engine, ids, greedily) for ids in texts]
        written[kept] = [[(t.id, t.logprob) for t in run.tokens] for run in runs]
        assert [run.reused for run in runs] == ([0, 40, 25] if kept else [0, 0, 0])
        engine.close()
    assert written[True] == written[False]


# ---- plans and refused formats ---------------------------------------------------------------


def test_plans_of_float_caches_have_no_quantisation(device: Device) -> None:
    """Five dispatches per layer, in the order of the paper; a quantised cache adds one or two."""
    names = {}
    for kv in (None, "f16", "q8", "rotated4"):
        loaded = driving.load(device, random_llama.folder("gqa8"), "f16", kv_dtype=kv)
        plan = loaded.plan_for(1, 1, capture=False).plan
        names[kv] = [dispatch.kernel.name for dispatch in plan.dispatches][1:-3]
        sources = {dispatch.kernel.source for dispatch in plan.dispatches}
        assert any("Packing" in source for source in sources) == (kv in ("q8", "rotated4"))
    n_layers, layer = loaded.config.n_layers, ["qkv", "attention", "matmul", "matmul", "matmul"]
    assert names[None] == names["f16"] == n_layers * layer
    assert names["q8"] == n_layers * ["qkv", "quantize_kv", *layer[1:]]
    with_hadamard = ["qkv", "quantize_kv", "attention", "inverse_hadamard", *layer[2:]]
    assert names["rotated4"] == n_layers * with_hadamard


@pytest.mark.parametrize("dtype", KV_FORMATS)
@pytest.mark.parametrize("name", ["odd100_tied", "gqa6_wide", "head80_theta", "head128_llama3"])
def test_a_cache_takes_the_predicted_bytes(device: Device, name: str, dtype: str) -> None:
    config = ModelConfig.from_folder(random_llama.folder(name))
    if dtype not in bytes_by_format(config):
        with pytest.raises(ModelError, match="a multiple of 8, but this model's is 12"):
            fit_kv_cache(config, dtype, 1)
        return
    pools = KvPools(config, KvShape(3, 48), dtype, 1, memory := Memory(device))
    assert memory.n_bytes["kv_cache"] == 3 * block_bytes(config, dtype)
    assert bytes_by_format(config)[dtype] == block_bytes(config, dtype)
    assert pools.staging.n_bytes == block_bytes(config, dtype)


def test_heads_are_cut_into_equal_blocks() -> None:
    sizes = {8: 8, 16: 16, 24: 24, 32: 32, 48: 24, 64: 32, 80: 16, 96: 32, 120: 24, 256: 32}
    assert {d: pack_block(d) for d in sizes} == sizes
    assert [hadamard_size(d) for d in (8, 48, 80, 96, 128)] == [8, 16, 16, 32, 128]


def test_unknown_formats_and_unsupporting_backends_are_refused() -> None:
    folder = random_llama.folder("tiny")
    with pytest.raises(ModelError, match="kv_dtype 'q5' is not supported; supported: f32, f16, q8"):
        Engine.load(folder, LoadOptions(kv_dtype="q5"))
    with pytest.raises(ModelError, match="the torch backend stores keys and values as f32 or f16"):
        Engine.load(folder, LoadOptions(kv_dtype="q8", backend="torch"))
    with pytest.raises(ModelError, match="kv_dtype 'int8' is not supported"):
        fit_kv_cache(ModelConfig.from_folder(folder), "int8", 1)
    torch_runner = TorchRunner.load(folder, LoadOptions(dtype="f32", kv_dtype="f16"))
    assert torch_runner.model.keys.dtype == torch.float16
    torch_runner.close()


def test_an_engine_reports_its_kv_format() -> None:
    engine = Engine.load(random_llama.folder("tiny"), LoadOptions(kv_dtype="q8"))
    model = engine.info.model
    assert model.kv_dtype == "q8"
    assert (
        engine.info.model.kv_formats[engine.info.model.kv_dtype] == engine.info.limits.block_bytes
    )
    assert engine.info.model.kv_formats["f16"] == 16 * 2 * 8 * 2
    engine.close()


# ---- reference -------------------------------------------------------------------------------


def test_levels_have_the_least_error_for_normal_numbers() -> None:
    """Lloyd's iteration: each level is the mean of the numbers closest to it. The outermost is
    255."""
    levels = np.linspace(0.1, 2.5, 8)
    for _ in range(2000):
        edges = [0.0, *(levels[1:] + levels[:-1]) / 2, np.inf]
        density = np.exp(-np.square(edges) / 2) * math.sqrt(2 / math.pi)
        below = np.array([math.erf(edge / math.sqrt(2)) for edge in edges])
        levels = -np.diff(density) / np.diff(below)
    assert levels[-1] == pytest.approx(2.7326, abs=2e-4)
    assert tuple(np.rint(255 * levels / levels[-1]).astype(int)) == reference.LEVELS


def test_the_error_of_each_storage() -> None:
    """Errors are half a step of 127, 15 or the levels, for normal numbers in blocks of 32."""
    x = np.random.default_rng(0).normal(size=(4000, 128))
    for storage, most in (("q8", 0.0055), ("q4", 0.079), ("nl4", 0.082)):
        error = np.linalg.norm(reference.quantised(storage, x, 32) - x) / np.linalg.norm(x)
        assert 0.95 * most < error < most, storage


@pytest.mark.parametrize("kind", ["one large", "constant", "alternating"])
def test_a_hadamard_transform_helps_for_numbers_that_are_not_normal(kind: str) -> None:
    rng = np.random.default_rng(1)
    x = 0.1 * rng.normal(size=(500, 64))
    if kind == "one large":
        x[:, 7] += 10
    else:
        x += np.where(np.arange(64) % 2 * (kind == "alternating"), -1, 1)
    hadamard = reference.hadamard_matrix(64, 64)
    transformed = x @ hadamard.T
    assert np.abs(transformed).max() < 4 * np.sqrt(np.mean(x**2)), "spread over all numbers"
    alone = np.linalg.norm(reference.quantised("nl4", x, 32) - x)
    back = reference.quantised("nl4", transformed, 32) @ hadamard
    assert np.linalg.norm(back - x) < (0.6 if kind == "one large" else 1.6) * alone


def test_stored_words_are_restored() -> None:
    rng = np.random.default_rng(2)
    for storage, most in (("q8", 127), ("q4", 15), ("nl4", 15)):
        codes = rng.integers(-most if storage == "q8" else 0, most + 1, (3, 16, 80))
        scale = rng.normal(size=(3, 16, 5, 2 if storage == "q4" else 1))
        scale = scale.astype(np.float16).astype(np.float64)
        words = reference.pack(storage, codes, scale)
        got_codes, got_scale = reference.unpack(storage, words, 16, 80, 16)
        assert np.array_equal(got_codes, codes)
        assert np.array_equal(got_scale, scale)
