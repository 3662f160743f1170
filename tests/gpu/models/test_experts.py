"""Mixtures of experts: a token's results do not depend on the layout of the weights, or on the rest
of the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpu.checks.rig import greedy
from gpu.ops.cost import StepSize
from gpu.ops.rms_norm_split import MIN_SPLIT_ROWS
from gpu.plans.cost import cost_of
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Floats, Row, Step
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_models
from tests.gpu.ops.rig import compare

NAME = "qwen2_moe"
"""Ten experts, four for each token, and a shared one; layer 1 has one MLP."""
IDS = random_models.ids(70)


@pytest.fixture(scope="module")
def runner(device: Device) -> WgpuRunner:
    return driving.load(device, random_models.folder(NAME))


def same_bits(got: Floats, want: Floats) -> bool:
    return np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.ci
@pytest.mark.parametrize(("name", "dtype"), [(NAME, "f32"), ("mixtral", "q4")])
def test_experts_of_their_own_tensors_and_stacked_ones_are_the_same(
    device: Device, tmp_path: Path, name: str, dtype: str
) -> None:
    random_models.reference(name).model.save_pretrained(tmp_path, save_original_format=False)
    folders = random_models.folder(name), tmp_path
    own, stacked = (driving.load(device, folder, dtype, n_slots=1) for folder in folders)
    assert stacked.memory.weights == own.memory.weights
    want = driving.all_logits(own, IDS[:8])
    assert same_bits(driving.all_logits(stacked, IDS[:8]), want)


@pytest.mark.parity
def test_a_tokens_bits_are_the_same_in_steps_with_interventions(device: Device) -> None:
    """Two experts a token, whose sum with the residual stream a compiler may reassociate."""
    runner = driving.load(device, random_models.folder("mixtral"), "f32", n_slots=1)
    rows = tuple(Row(0, i, id) for i, id in enumerate(IDS[:4]))
    found = []
    for acts in (False, True):
        driving.begin(runner, 0, IDS, len(rows))
        found.append(runner.logits(Step(rows, (greedy(3),), interventions=acts)))
    assert same_bits(*found)


@pytest.mark.slow
@pytest.mark.parity
def test_a_tokens_bits_are_the_same_in_chunks_of_all_sizes(runner: WgpuRunner) -> None:
    """Larger chunks multiply the rows of an expert together."""
    found = []
    for chunk in (128, 16, 3, 1):
        driving.begin(runner, 0, IDS, len(IDS))
        found.append(driving.last_logits(runner, IDS, chunk=chunk))
    assert all(same_bits(logits, found[0]) for logits in found[1:])


@pytest.mark.ci
@pytest.mark.parity
def test_a_tokens_bits_are_the_same_beside_other_sequences(runner: WgpuRunner) -> None:
    others = [IDS[i : i + 20] for i in (0, 13, 29, 47)]
    alone = []
    for slot, ids in enumerate(others):
        driving.begin(runner, slot, ids, len(ids), range(slot * 2, slot * 2 + 2))
        alone.append(driving.last_logits(runner, ids, slot=slot))
    rows = tuple(Row(slot, 19, ids[19]) for slot, ids in enumerate(others))
    samples = tuple(greedy(slot, slot) for slot in range(4))
    together = runner.logits(Step(rows, samples))
    assert all(same_bits(got, want) for got, want in zip(together, alone, strict=True))


def test_a_step_costs_the_experts_that_are_used(runner: WgpuRunner) -> None:
    """One row uses four experts of ten; many rows use nearly all of them."""
    model = runner.model
    whole = model.moes[0].gate_up.matrix.n_bytes
    for n_rows, used in ((1, 0.4), (2, 1 - 0.6**2), (64, 1.0)):
        plan = runner.plan_for(n_rows, 1, capture=False).plan
        dispatch = next(d for d in plan.dispatches if d.label == "layer00.mlp.experts.gate_up")
        cost = cost_of(dispatch, StepSize(n_rows, 1, 0))
        assert cost is not None
        parts = n_rows >= MIN_SPLIT_ROWS
        given = 4 * 72 * n_rows + 4 * (n_rows if parts else 72) + 4 * 20 * 4 * n_rows  # x, norm; y
        assert cost.n_bytes == pytest.approx(used * whole + given, rel=1e-3)
        norm = 4 * n_rows * (40 if parts else 72)
        assert cost.flops == n_rows * 4 * (2 * 40 * 72 + 5 * 20) + norm


def test_dispatches_of_a_layer(runner: WgpuRunner) -> None:
    def of_layer(n_rows: int, layer: int) -> list[str]:
        plan = runner.plan_for(n_rows, 1, capture=False).plan
        start = f"layer{layer:02}."
        return [d.label.removeprefix(start) for d in plan.dispatches if d.label.startswith(start)]

    attention = ["attn.qkv", "attn.attention", "attn.out"]
    experts = ["mlp.shared.gate_up", "mlp.shared.down", "mlp.experts.gate_up", "mlp.experts.down"]
    routed = ["mlp.router", "mlp.choose"]
    assert of_layer(1, 0) == [*attention, *routed, *experts, "mlp.combine"]
    many = [*attention, *routed, "mlp.group", *experts, "mlp.combine"]
    normed = ("attn.qkv", "mlp.router", "mlp.shared.gate_up", "mlp.experts.gate_up")
    assert of_layer(64, 0) == [
        label for each in many for label in ((f"{each}.norm", each) if each in normed else (each,))
    ]
    assert of_layer(1, 1) == [*attention, "mlp.gate_up", "mlp.down"]


@pytest.mark.parity
@pytest.mark.parametrize("chunk", [1, 64])
def test_a_captured_step_keeps_the_experts_of_every_row(runner: WgpuRunner, chunk: int) -> None:
    """The experts and gates are those of transformers' routers."""
    ids = IDS[: 5 * chunk]
    reference, seen = random_models.reference(NAME), []
    gates_of = [reference.model.base_model.layers[i].mlp.gate for i in (0, 2)]
    hooks = [g.register_forward_hook(lambda _m, _x, out: seen.append(out[1:])) for g in gates_of]
    reference.logits(ids)
    for hook in hooks:
        hook.remove()
    parts = driving.captured(runner, ids, min(chunk, runner.limits.max_captured_rows))
    assert all(part.expert_layers == (0, 2) for part in parts)
    chosen = np.concatenate([part.chosen for part in parts if part.chosen is not None])
    gates = np.concatenate([part.gates for part in parts if part.gates is not None])
    assert chosen.shape == gates.shape == (len(ids), 2, 4)
    for at, routed in enumerate(seen):
        want, ids_of = (tensor.numpy() for tensor in routed)
        assert np.array_equal(chosen[:, at], ids_of)
        bound = 1e-5 * want.max()
        compare("models.gates", NAME, gates[:, at], want, np.array(bound), seed=0)
