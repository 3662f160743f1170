"""How kernels for GPUs access memory: whole lines of storage, and banks of workgroup memory that do
not meet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.config import MoeConfig
from gpu.ops.cost import StepSize
from gpu.plans.cost import cost_of
from gpu.tracing.tracer import Tracer
from gpu.webgpu.device import Device
from tests.gpu.tracing.memory_instructions import footprint, instructions
from tests.gpu.tracing.shape_plans import SHAPES, ShapePlans, open_as_gpu


@pytest.fixture(scope="module")
def gpu() -> Device:
    return open_as_gpu()


def with_activations(gpu: Device, activations: str) -> Device:
    return replace(gpu, tuning=replace(gpu.tuning, q8_activations=activations == "q8"))


@pytest.mark.parametrize(
    ("dtype", "activations"),
    [
        *(pytest.param(dtype, "f32", marks=pytest.mark.slow) for dtype in FORMATS),
        ("q8", "q8"),
        pytest.param("q4", "q8", marks=pytest.mark.slow),
    ],
)
def test_decoding_uses_the_lines_it_touches(gpu: Device, dtype: str, activations: str) -> None:
    """Weights and x of every matmul of a token: neighbouring lanes load neighbouring bytes, and
    nothing of a line is left over."""
    gpu = with_activations(gpu, activations)
    plans, tracer = ShapePlans(gpu, "llama1b", dtype, 64), Tracer(gpu)
    step = plans.decode(40)
    plans.write(step.size)
    checked = set()
    for dispatch, times in step.dispatches:
        if dispatch.kernel.name not in ("matmul", "qkv") or times == 1:
            continue
        trace = tracer.run(dispatch, (dispatch.grid[0] // 2, 0, 0))
        for variable in ("weight", "x"):
            assert footprint(trace, variable).line_use >= 0.9, (dispatch.label, variable)
        if activations == "q8":
            loads = [use for use in instructions(trace, 32) if use.site.variable == "weight"]
            assert max(use.site.n_bytes for use in loads) == 16
            for use in loads:
                assert use.site.n_bytes < 16 or use.line_use == 1.0, use.site.text
        checked.add(dispatch.label)
    assert len(checked) == 4


TINY_MOE = replace(
    LLAMA_SHAPES["tiny"],
    model_type="mixtral",
    experts=MoeConfig(4, 2, 256, norm_topk_prob=True),
)
"""Experts that get 64 of 128 rows each."""


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tiny", "tiny_moe"])
@pytest.mark.parametrize(
    ("dtype", "activations"),
    [("f16", "f32"), ("q8", "f32"), ("q4", "f32"), ("q8", "q8"), ("q4", "q8")],
)
def test_prefill_has_no_bank_conflicts_above_two(
    gpu: Device, dtype: str, activations: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "tiny_moe", TINY_MOE)
    gpu = with_activations(gpu, activations)
    plans, tracer = ShapePlans(gpu, shape, dtype, 256), Tracer(gpu)
    (step,) = plans.prefill(128)
    plans.write(step.size)
    kernels = ("matmul", "qkv", "moe_matmul")
    found: dict[tuple[str, str], float] = {}
    routed = shape == "tiny_moe"  # which tiles have work is read from what ran before
    for dispatch, _ in step.dispatches:
        asked = dispatch.kernel.name in kernels and dispatch.grid[1] > 1
        trace = tracer.run(dispatch) if asked or routed else None
        if asked and trace:
            found |= {
                (dispatch.label, use.site.text): use.conflict
                for use in instructions(trace, 32)
                if use.site.space == "workgroup"
            }
        if dispatch.kernel.name == "moe_topk":
            plans.route(dispatch, 128)
    assert len({label for label, _ in found}) == (4 if shape == "tiny" else 5)
    assert max(found.values()) <= 2.0, found


@pytest.mark.ci
@pytest.mark.parametrize("dtype", [pytest.param("f32", marks=pytest.mark.slow), "f16"])
@pytest.mark.parametrize(
    "head_dim", [80, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (64, 100, 128, 256))]
)
def test_attention_of_prompts_has_no_bank_conflicts_above_two(
    gpu: Device, dtype: str, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(LLAMA_SHAPES["tiny"], head_dim=head_dim)
    monkeypatch.setitem(SHAPES, "tiny_heads", tiny)
    policy = replace(gpu.policy, shared_attention_workgroups=1)
    plans, tracer = ShapePlans(replace(gpu, policy=policy), "tiny_heads", dtype, 640), Tracer(gpu)
    step = plans.prefill(640)[-1]
    plans.write(step.size)
    (dispatch,) = (d for d, _ in step.dispatches if d.kernel.name == "attention")
    uses = instructions(tracer.run(dispatch, (1, dispatch.grid[1] // 2, 0)), 32)
    found = {use.site.text: use.conflict for use in uses if use.site.space == "workgroup"}
    assert len(found) > 12
    assert max(found.values()) <= 2.0, found


def test_streams_share_the_weights_and_have_keys_of_their_own(gpu: Device) -> None:
    plans = ShapePlans(gpu, "tiny", "f16", 64, n_streams=4)
    one, four = (
        {d.label: cost_of(d, step.size) for d, _ in step.dispatches}
        for step in (plans.decode(47), plans.decode(47, 4))  # three blocks each
    )
    assert set(one) == set(four)
    for label, cost in one.items():
        together = four[label]
        if cost is None or together is None:
            continue
        if "attention" in label:
            assert (together.flops, together.n_bytes) == (4 * cost.flops, 4 * cost.n_bytes)
        elif label.startswith("layer00."):
            assert together.flops == pytest.approx(4 * cost.flops)
            assert together.n_bytes < 1.1 * cost.n_bytes, label


def test_the_sizes_of_streams() -> None:
    """Three rows after 10 tokens: of one sequence, and of three."""
    one, apart = StepSize(3, 1, 10), StepSize(3, 3, 10, apart=True)
    assert (one.longest, one.n_keys, one.n_seen(), one.n_splits(11)) == (13, 13, 36, 5)
    assert (apart.longest, apart.n_keys, apart.n_seen(), apart.n_splits(11)) == (11, 33, 33, 3)
    assert (one.n_cached(4), one.n_seen(4)) == (6, 12)
    assert (apart.n_cached(4), apart.n_seen(4)) == (12, 12)
