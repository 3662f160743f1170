"""Every architecture on the GPU against transformers, with the models of `random_models`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli.weights import weight_lines
from gpu.checkpoint.auto_dtype import DtypeChoice
from gpu.checkpoint.inventory import Inventory
from gpu.checks.rig import greedy
from gpu.config import MODEL_TYPES
from gpu.errors import ModelError
from gpu.interventions.active import ActiveInterventions
from gpu.load_options import LoadOptions
from gpu.models.registry import MODELS
from gpu.ops.cost import StepSize
from gpu.plans.cost import cost_of
from gpu.pytorch.runner import TorchRunner
from gpu.reference.divergence import mean_kl
from gpu.runner import Runner
from gpu.step import InspectionRequest, Row, Step
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_models
from tests.gpu.models.logit_checks import KL_OF_CACHED_HALVES, check_logits
from tests.gpu.models.random_models import (
    ONE_OF_EACH,
    ONE_OF_EACH_MOE,
    UNLIKE,
    Observed,
    Reference,
)
from tests.gpu.ops.rig import compare

N_TOKENS = 45
AT_ONCE = 8
"""Rows of every step here, so that kernels are compiled once."""
OF_TORCH = (
    "qwen2", "qwen2_window_yarn", "mistral", "smollm3_window", "granite_bias", "qwen3_window_tied",
)  # fmt: skip


def test_every_architecture_that_the_config_accepts_has_a_model() -> None:
    assert set(MODEL_TYPES) == set(MODELS)
    tried = {
        random_models.settings_of(name)["model_type"] for name in ONE_OF_EACH + ONE_OF_EACH_MOE
    }
    assert tried == set(MODELS) - {"llama"}


def slow_but(fast: Iterable[str], names: Iterable[str]) -> list[Any]:
    """Return `names`, marked slow unless they are `fast`."""
    fast = set(fast)
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parity
@pytest.mark.parametrize(
    "name",
    slow_but(ONE_OF_EACH + ONE_OF_EACH_MOE, [*random_models.NAMES, *random_models.WITH_EXPERTS]),
)
def test_logits_states_and_attention_equal_transformers(device: Device, name: str) -> None:
    ids = random_models.ids(N_TOKENS)
    runner = driving.load(device, random_models.folder(name), n_slots=1)
    oracle = random_models.reference(name)
    check_logits("models.logits.f32", driving.all_logits(runner, ids), oracle.logits(ids), name)
    seen = oracle.observed(ids)
    check_inspection(runner, oracle, name, ids, seen)
    if name in UNLIKE:
        check_statistics(runner, name, ids, seen)
        check_interventions(runner, oracle, name, ids)


def check_inspection(
    runner: Runner, oracle: Reference, name: str, ids: list[int], seen: Observed
) -> None:
    """Check attention weights, states, a logit lens and last hidden states of the last rows."""
    rows = slice(N_TOKENS - AT_ONCE, N_TOKENS)
    step = Step(
        tuple(Row(0, i, ids[i]) for i in range(rows.start, rows.stop)), (greedy(AT_ONCE - 1),)
    )
    request = InspectionRequest(keys=(0, N_TOKENS), states=True, lens=True, last_hidden=True)
    got = runner.inspect(step, request)
    assert got.states is not None
    assert got.attention is not None
    assert got.lens is not None
    states = seen.states.swapaxes(0, 1)[rows]
    sizes = np.linalg.norm(states, axis=-1, keepdims=True)
    compare("models.states", name, got.states, states, 1e-5 * sizes, seed=0)
    weights = seen.weights.transpose(2, 0, 1, 3)[rows]
    compare("models.attention", name, got.attention, weights, np.array(3e-5), seed=0)
    logits = oracle.unembed(seen.states[:, -1])
    bound = 2e-5 * np.abs(logits).max(axis=1, keepdims=True)
    compare("models.lens", name, got.lens, logits, bound, seed=0)
    assert got.last_hidden is not None
    hidden = oracle.last_hidden(ids)[rows]
    sizes = np.linalg.norm(hidden, axis=-1, keepdims=True)
    compare("models.last_hidden", name, got.last_hidden, hidden, 1e-5 * sizes, seed=0)


def check_statistics(runner: Runner, name: str, ids: list[int], seen: Observed) -> None:
    parts = driving.captured(runner, ids, chunk=AT_ONCE)
    norms = np.linalg.norm(seen.states, axis=-1).T
    embedding = np.concatenate([part.embedding for part in parts])
    residual = np.concatenate([part.residual for part in parts])
    compare("models.embedding_norm", name, embedding, norms[:, 0], 5e-7 * norms[:, 0], seed=0)
    compare("models.residual_norm", name, residual, norms[:, 1:], 5e-6 * norms[:, 1:], seed=0)
    p = seen.weights.transpose(2, 0, 1, 3)
    bits = -np.sum(p * np.log2(np.where(p > 0, p, 1)), axis=-1)
    entropy = np.concatenate([part.entropy for part in parts])
    compare("models.entropy_bits", name, entropy, bits, np.array(1e-4), seed=0)


def check_interventions(runner: Runner, oracle: Reference, name: str, ids: list[int]) -> None:
    """Check factors of sublayers, one of them 0, and a steered layer."""
    config = runner.config
    vector = np.random.default_rng(3).normal(size=config.hidden_size).astype(np.float32)
    last = config.n_layers - 1
    active = ActiveInterventions(attention={0: 0.4}, mlp={0: 1.5, last: 0.0}, steer={last: vector})
    with oracle.intervened(active):
        want = oracle.logits(ids)
    bound = 2e-5 * np.abs(want).max()
    assert np.abs(want - oracle.logits(ids)).max() > 100 * bound, "the interventions should show"
    driving.begin(runner, 0, ids, len(ids))
    runner.set_interventions(0, active)
    got = []
    for first in range(0, len(ids), AT_ONCE):
        part = ids[first : first + AT_ONCE]
        rows = tuple(Row(0, first + i, id) for i, id in enumerate(part))
        samples = tuple(greedy(i) for i in range(len(part)))
        got.append(runner.logits(Step(rows, samples, interventions=True)))
    compare("models.interventions", name, np.concatenate(got), want, np.array(bound), seed=0)


@pytest.mark.parametrize(
    "name", [*ONE_OF_EACH, "granite_bias", "olmo2_bias", "gpt2_inner", *ONE_OF_EACH_MOE]
)
def test_the_inventory_is_what_a_runner_loads_and_reads(device: Device, name: str) -> None:
    folder = random_models.folder(name)
    runner = driving.load(device, folder, "q8", n_slots=1)
    tensors = {t.name: t for t in Inventory.from_folder(folder, "q8").tensors}
    assert all(t.kind != "unused" for t in tensors.values())
    assert sum(t.device_bytes or 0 for t in tensors.values()) == runner.memory.weights
    dispatches = runner.plan_for(1, 1, capture=False).plan.dispatches
    for matrix in runner.model.matrices():
        sources = [tensors[source] for source in matrix.sources]
        assert {source.device_dtype for source in sources} == {matrix.dtype}
        places = {shard.tensor.name for shard in matrix.shards}
        bound = {
            dispatch.label
            for dispatch in dispatches
            if places & {tensor.name for tensor in dispatch.tensors.values()}
        }
        assert all(set(source.read_by) == bound for source in sources), matrix.name
    labels = {dispatch.label for dispatch in dispatches}
    for tensor in tensors.values():
        assert set(tensor.read_by) <= labels, tensor.name
    costs = [cost_of(dispatch, StepSize(1, 1, 100)) for dispatch in dispatches]
    assert all(cost and cost.n_bytes > 0 for cost in costs), "every dispatch has a formula"


def test_attention_costs_what_its_window_sees(device: Device) -> None:
    """Gemma 2's second layer has no window, its others one of 9 keys."""
    runner = driving.load(device, random_models.folder("gemma2"), n_slots=1)
    by_label = {d.label: d for d in runner.plan_for(1, 1, capture=False).plan.dispatches}

    def flops(layer: int, size: StepSize) -> int:
        cost = cost_of(by_label[f"layer{layer:02}.attn.attention"], size)
        assert cost is not None
        return cost.flops

    per_key, per_row = 4 * (4 * 12 + 5 + 5), 4 * 12  # heads · (4 d + softmax + cap), heads · d
    assert flops(0, StepSize(1, 1, 100)) == 9 * per_key + per_row
    assert flops(1, StepSize(1, 1, 100)) == 101 * per_key + per_row
    assert flops(0, StepSize(3, 1, 7)) == (8 + 9 + 9) * per_key + 3 * per_row


@pytest.mark.ci
@pytest.mark.parity
@pytest.mark.parametrize(
    "name",
    [
        "qwen2_moe",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("gemma3_linear", "gpt2", "smollm3_window")
        ),
    ],
)
def test_greedy_text_equals_transformers(device: Device, name: str) -> None:
    """One token a step, past windows and blocks of the cache."""
    prompt, oracle = random_models.ids(5), random_models.reference(name)
    runner = driving.load(device, random_models.folder(name), n_slots=1)
    got = [sampled.id for sampled in driving.generate(runner, prompt, 40)]
    logits = oracle.logits(prompt + got)[len(prompt) - 1 : -1]
    behind = logits.max(1) - logits[np.arange(len(got)), got]
    compare("models.greedy.behind", name, behind, np.zeros(len(got)), np.array(2e-5), seed=0)
    assert len(set(got)) > 3, "the text should not be one token"


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if name in UNLIKE else pytest.mark.slow)
        for name, dtype in zip(
            ONE_OF_EACH + ONE_OF_EACH_MOE, ["q4", "q8"] * len(MODELS), strict=False
        )
    ],
)
def test_logits_are_those_of_the_weights_as_stored(device: Device, name: str, dtype: str) -> None:
    ids = random_models.ids(40)  # past the first context of longrope, whose factors change there
    runner = driving.load(device, random_models.folder(name), dtype, n_slots=1)
    want = random_models.reference(name, dtype).logits(ids)
    kl = np.array([mean_kl(want, driving.all_logits(runner, ids))])
    compare(f"models.kl.{dtype}", name, kl, np.zeros(1), np.array(KL_OF_CACHED_HALVES), seed=0)


@pytest.mark.parity
def test_a_gpt2_that_was_saved_without_its_head(device: Device, tmp_path: Path) -> None:
    """Published checkpoints lack "transformer." before names, and hold masks as tensors."""
    from safetensors.numpy import load_file, save_file

    folder, ids = random_models.folder("gpt2"), random_models.ids(AT_ONCE)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights: dict[str, Any] = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    masks = {f"h.{i}.attn.bias": np.ones((1, 1, 128, 128), np.float32) for i in range(2)}
    save_file(bare | masks, tmp_path / "model.safetensors")
    want = driving.all_logits(driving.load(device, folder, n_slots=1), ids)
    got = driving.all_logits(driving.load(device, tmp_path, n_slots=1), ids)
    assert np.array_equal(got.view("u4"), want.view("u4"))
    inventory = Inventory.from_folder(tmp_path, "q8")
    assert {t.name for t in inventory.tensors if t.kind == "unused"} == set(masks)
    assert inventory.parameters == Inventory.from_folder(folder).parameters
    assert inventory.device_bytes == Inventory.from_folder(folder, "q8").device_bytes
    assert inventory.rope.wavelength == ()
    assert weight_lines(inventory, DtypeChoice("f32"))[-1] == "no rotary positions"


@pytest.mark.parametrize("name", [*OF_TORCH, *random_models.WITH_EXPERTS])
def test_the_torch_backend_equals_transformers(name: str) -> None:
    ids, oracle = random_models.ids(N_TOKENS), random_models.reference(name)
    runner = TorchRunner.load(random_models.folder(name), LoadOptions(dtype="f32", slots=1))
    try:
        got = driving.all_logits(runner, ids)
        check_logits("models.logits.torch", got, oracle.logits(ids), name, of_largest=1e-5)
        check_inspection(runner, oracle, name, ids, oracle.observed(ids))
        check_interventions(runner, oracle, name, ids)
    finally:
        runner.close()


def test_the_torch_backend_refuses_what_it_cannot_run() -> None:
    with pytest.raises(ModelError, match=r"torch runs granite, llama, .* but this is gemma2"):
        TorchRunner.load(random_models.folder("gemma2"), LoadOptions(dtype="f32"))
