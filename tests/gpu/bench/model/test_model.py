"""The model of a GPU: its limits one by one, and what it must predict of our kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gpu.bench.model import candidates
from gpu.bench.model.__main__ import lines, main
from gpu.bench.model.moe_shapes import even_routing
from gpu.bench.model.predict import Prediction, StepPrediction, predict, resident
from gpu.bench.model.shape_plans import SHAPES, ShapePlans, open_as_gpu
from gpu.bench.model.shape_prediction import ShapePrediction, ShapeWork, trace_shape
from gpu.bench.model.specs import SPECS, GpuSpec
from gpu.bench.model.workgroup_work import DispatchWork, WorkgroupWork, work_of
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.config import MoeConfig
from gpu.ops.cost import StepSize
from gpu.plans.cost import cost_of
from gpu.tracing.memory_instructions import footprint, instructions
from gpu.tracing.tracer import Tracer
from gpu.webgpu.device import Device
from gpu.webgpu.tiling import GPU

PLAIN = GpuSpec(
    name="a GPU with round figures",
    discrete=True,
    multiprocessors=10,
    clock_ghz=1.0,
    wave=32,
    f32_lanes=100,
    dot4_factor=1.0,
    line_cycles=1.0,
    shared_cycles=1.0,
    issue=1.0,
    max_lanes=1024,
    max_workgroups=16,
    shared_bytes=64 << 10,
    l2_gb_s=1000.0,
    memory_gb_s=100.0,
    latency_ns=500.0,
    dispatch_us=2.0,
)
NOTHING = WorkgroupWork(64, 0, 0.0, 16.0, 0, 0, 0, 0, 0, 0.0)


def work(n: int = 20, flops: int = 0, n_bytes: int = 0, **workgroup: float) -> DispatchWork:
    group = replace(NOTHING, **workgroup)  # type: ignore[arg-type]
    return DispatchWork("test", "test", (n, 1, 1), flops, n_bytes, group)


@pytest.mark.parametrize(
    ("name", "made", "us"),
    [
        ("memory", work(n_bytes=92_000_000), 1000.0),
        ("shared cache", work(n_own_sectors=31250, n_sectors=31250), 20.0),
        ("cache lines", work(n_lines=3000), 6.0),  # two workgroups on each multiprocessor
        ("cache lines", work(n=21, n_lines=3000), 9.0),  # three on the busiest
        ("workgroup memory", work(shared_cycles=7000), 14.0),
        ("arithmetic", work(flops=2 * 20 * 100_000), 2.0),
        ("arithmetic", work(n_unpacked=100_000.0), 2.0),
        ("issue", work(n_instructions=5000), 10.0),
    ],
)
def test_each_limit_is_the_time_it_alone_would_take(
    name: str, made: DispatchWork, us: float
) -> None:
    assert predict(made, PLAIN).limits[name] == pytest.approx(us)


def test_int8_rows_multiply_four_at_a_time() -> None:
    """Beside the scaling of their sums, by a GPU that multiplies them twice as fast."""
    made, spec = work(flops=2 * 20 * 16_000), replace(PLAIN, dot4_factor=2.0)
    floats, int8 = (predict(replace(made, int8=i), spec).limits for i in (False, True))
    assert floats["arithmetic"] == pytest.approx(0.32)
    assert int8["arithmetic"] == pytest.approx(0.16 + 0.32 * 3.5 / 16)
    assert int8["issue"] == pytest.approx(floats["issue"] * (1 / 4 + 3.5 / 16))


def test_latency_bounds_the_bytes_in_flight() -> None:
    """Two workgroups of 64 lanes with eight loads of 16 bytes have 16 KB in flight."""
    made = work(n=2, n_sectors=5120)
    assert predict(made, PLAIN).limits["latency"] == pytest.approx(20 * 0.5)


def test_a_sector_that_neighbours_share_is_loaded_once_by_a_multiprocessor() -> None:
    alone, shared = (
        predict(work(n=100, n_sectors=1000, n_own_sectors=own), PLAIN).limits["shared cache"]
        for own in (1000, 0)
    )
    assert alone == pytest.approx(10 * shared)


def test_the_longest_limit_and_the_start_are_the_time() -> None:
    found = predict(work(n_bytes=92_000_000, n_lines=3000), PLAIN)
    assert (found.limit, found.busy) == ("memory", pytest.approx(1000.0))
    assert found.us == found.busy + PLAIN.dispatch_us


@pytest.mark.parametrize(
    ("group", "n"),
    [({}, 16), ({"n_lanes": 256}, 4), ({"shared_bytes": 30 << 10}, 2), ({"n_lanes": 2048}, 1)],
)
def test_resident_workgroups(group: dict[str, float], n: int) -> None:
    assert resident(work(**group), PLAIN) == n


def test_only_the_first_of_several_shards_is_started() -> None:
    one = Prediction(work(), {"memory": 10.0}, launch=2.0)
    assert StepPrediction([(one, 3)]).us == 36.0
    assert StepPrediction([(one, 3), (one, 3)]).us == 66.0
    assert StepPrediction([(one, 3)]).limit == "memory"


def test_published_peaks() -> None:
    """As the vendors print them, without AMD's double issue."""
    peaks = {name: round(spec.f32_tflop_s, 1) for name, spec in SPECS.items()}
    assert peaks["h200"] == 66.9
    assert peaks["rtx4090"] == 82.6
    assert peaks["rx7900xtx"] == 30.7
    assert peaks["m2max"] == 13.6


@pytest.fixture(scope="module")
def gpu() -> Device:
    return open_as_gpu()


def with_activations(gpu: Device, activations: str) -> Device:
    return replace(gpu, tuning=replace(gpu.tuning, q8_activations=activations == "q8"))


INT8 = [("q8", "q8"), ("q4", "q8")]
"""Storage types and activations of int8 matmuls."""


@pytest.mark.parametrize(("dtype", "activations"), [*((d, "f32") for d in FORMATS), *INT8])
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


@pytest.mark.parametrize("shape", ["tiny", pytest.param("tiny_moe", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("dtype", "activations"),
    [
        ("f16", "f32"),
        *(pytest.param(dtype, "f32", marks=pytest.mark.slow) for dtype in ("q8", "q4")),
        *INT8,
    ],
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


@pytest.mark.parametrize("dtype", ["f32", "f16"])
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


def test_a_mixture_counts_the_tiles_that_have_work(
    gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "tiny_moe", TINY_MOE)
    work = trace_shape(gpu, "tiny_moe", "q4", 16, 128, 32)
    (token,) = (w for w, _ in work.token if w.label.endswith("experts.down"))
    (prompt,) = (w for w, _ in work.prompt[0] if w.label.endswith("experts.down"))
    assert token.grid[1] == 2, "a tile for each assignment"
    assert prompt.grid[1] == 4, "64 rows for each expert"
    assert prompt.workgroup.n_lanes == 256


def test_every_expert_of_an_even_routing_has_as_many_rows() -> None:
    for n, k in ((8, 2), (128, 8), (60, 4), (7, 7), (5, 3)):
        ids = even_routing(2 * n, MoeConfig(n, k, 8, norm_topk_prob=True))
        assert (np.bincount(ids.reshape(-1), minlength=n) == 2 * k).all()
        assert all(len(set(row)) == k for row in ids.tolist())


@cache
def traced(shape: str, dtype: str, n_prompt: int) -> ShapeWork:
    return trace_shape(open_as_gpu(), shape, dtype, 512, n_prompt, 32)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("shape", "dtype"), [("llama1b", "f16"), ("llama8b", "q4")])
def test_predicted_share_of_bandwidth(shape: str, dtype: str) -> None:
    """On the RTX 4090. The H200 falls short, docs/gpus.md says why."""
    found = ShapePrediction.of(traced(shape, dtype, 512), SPECS["rtx4090"])
    assert found.bandwidth_share >= 0.7


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("shape", "dtype"), [("llama1b", "f16"), ("llama8b", "q4")])
def test_predicted_gain_of_eight_streams(shape: str, dtype: str) -> None:
    """On the RTX 4090. Others fall short, docs/gpus.md says why."""
    work = trace_shape(open_as_gpu(), shape, dtype, 512, 1, 32, n_streams=8)
    assert ShapePrediction.of(work, SPECS["rtx4090"]).streams_gain >= 6


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("shape", "dtype"), [("llama1b", "f16"), ("llama8b", "q4")])
def test_predicted_share_of_the_float32_peak(shape: str, dtype: str) -> None:
    """Of a prompt of 512 tokens."""
    for device in ("h200", "rtx4090"):
        found = ShapePrediction.of(traced(shape, dtype, 512), SPECS[device])
        assert found.f32_share >= 0.5, device


def test_the_table_says_what_binds_each_dispatch(capsys: pytest.CaptureFixture[str]) -> None:
    work = trace_shape(open_as_gpu(), "tiny", "q4", 40, 64, 32, n_streams=4)
    found = ShapePrediction.of(work, SPECS["h200"])
    text = "\n".join(lines(found))
    assert "A token of each of 4 streams after 40 others" in text
    assert f"{found.streams_gain:.1f} × one stream" in text
    assert 1 < found.streams_gain < 4
    assert "tiny, q4, on NVIDIA H200: predicted, not measured" in text
    for label in ("layer.attn.qkv", "layer.attn.attention", "layer.mlp.down", "head", "sample"):
        assert label in text
    with pytest.raises(SystemExit):
        main(["--device", "abacus"])
    assert "invalid choice: 'abacus'" in capsys.readouterr().err


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


def test_work_scales_with_the_problem(gpu: Device) -> None:
    """A matrix with four times the rows has four times the workgroups and the bytes."""
    plans, tracer = ShapePlans(gpu, "llama1b", "f16", 64), Tracer(gpu)
    step = plans.decode(1)
    plans.write(step.size)
    by_label = {d.label: d for d, _ in step.dispatches}
    out, gate_up = (
        work_of(tracer, by_label[f"layer00.{name}"], step.size, "f16", 32)
        for name in ("attn.out", "mlp.gate_up")
    )
    assert gate_up.n_workgroups == 8 * out.n_workgroups
    assert gate_up.n_bytes == pytest.approx(8 * out.n_bytes, rel=0.01)


def test_candidates_are_listed_by_gpu_from_the_fastest_on() -> None:
    def times(us: float) -> candidates.Times:
        return {(*case, name): us for case in candidates.CASES for name in SPECS}

    faster = replace(GPU, few_n=2)
    text = "\n".join(candidates.lines({GPU: times(200.0), faster: times(150.0)}))
    assert text.count(f"| {faster} | 0.750 | 0.750 | 0.750 |\n| **{GPU}** | 1.000 |") == len(SPECS)


@pytest.mark.slow
def test_every_candidate_has_a_predicted_time_on_every_gpu() -> None:
    device = open_as_gpu()
    try:
        tuning, times = next(candidates.token_times(device))
    finally:
        device.close()
    assert tuning == GPU
    assert times.keys() == {(*case, name) for case in candidates.CASES for name in SPECS}
    assert times["llama1b", "f16", "rtx4090"] < times["llama1b", "f16", "adreno"]
