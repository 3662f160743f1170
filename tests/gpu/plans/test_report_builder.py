"""The plan report lists what is replayed, its sources compile and compute the same, and its costs
equal an independent computation."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from gpu.checkpoint.inventory import Inventory
from gpu.checks.rig import limited, with_info
from gpu.errors import InvalidRequest
from gpu.ops.cost import COSTS, Cost, StepSize
from gpu.ops.rms_norm_split import MIN_SPLIT_ROWS
from gpu.plans.cost import cost_of, plan_cost
from gpu.plans.plan_report import PlanDispatch, PlanReport
from gpu.plans.report_builder import plan_report, step_cost
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Row, Step
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DISCRETE, DISCRETE_SPLIT_ROWS, SPLIT_ROWS
from gpu.webgpu.kernel_source import filled_source, workgroup_size
from gpu.webgpu.kernels import Kernel
from tests.gpu.engine import driving
from tests.gpu.engine.driving import GREEDY
from tests.gpu.models import random_llama
from tests.gpu.ops.rig import Rig

MODELS = (("gqa8", "f32"), ("odd100_tied", "f16"), ("head100_all_bias", "q8"), ("odd36", "q4"))


@pytest.fixture(scope="module", params=MODELS, ids=lambda case: "-".join(case))
def runner(request: pytest.FixtureRequest, device: Device) -> WgpuRunner:
    name, dtype = request.param
    return driving.load(device, random_llama.folder(name), dtype)


def view(runner: WgpuRunner, n_rows: int, context: int) -> PlanReport:
    plan = runner.list_plan(n_rows, context)
    assert plan is not None
    return msgspec.convert(plan, PlanReport)


# ---- what is listed --------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 3])
def test_the_report_lists_the_dispatches_of_the_plan(runner: WgpuRunner, n_rows: int) -> None:
    plan, found = runner.plan_for(n_rows, 1, capture=False, context=40 + n_rows).plan, view(
        runner, n_rows, 40
    )  # fmt: skip
    assert found.recorded_rows >= n_rows
    for wanted, got in zip(plan.dispatches, found.dispatches, strict=True):
        assert (got.label, got.op, got.grid) == (wanted.label, wanted.kernel.name, wanted.grid)
        kernel = found.kernels[got.kernel]
        assert (kernel.op, kernel.constants) == (got.op, wanted.kernel.constants)
        assert {b.name: b.tensor for b in got.bindings} == {
            name: tensor.name for name, tensor in wanted.tensors.items()
        }
        assert got.bound_bytes == wanted.n_bytes


def test_layers_and_kernels_of_dispatches(runner: WgpuRunner) -> None:
    found, n_layers = view(runner, 1, 1), runner.config.n_layers
    layers = [dispatch.layer for dispatch in found.dispatches]
    assert layers[0] is layers[-1] is None
    assert [layer for layer in layers if layer is not None] == sorted(5 * list(range(n_layers)))
    first_uses = list(dict.fromkeys(dispatch.kernel for dispatch in found.dispatches))
    assert first_uses == list(range(len(found.kernels)))


def test_what_a_dispatch_does_with_its_bindings(device: Device) -> None:
    plain = driving.load(device, random_llama.folder("gqa8"), "f32")
    biased = driving.load(device, random_llama.folder("head100_all_bias"), "f32")

    def access(runner: WgpuRunner, label: str) -> dict[str, str]:
        dispatch = next(d for d in view(runner, 1, 1).dispatches if d.label == label)
        return {binding.name: binding.access for binding in dispatch.bindings}

    down = {"step": "uniform", "x": "read", "weight": "read", "residual": "read"}
    assert access(biased, "layer00.attn.out") == {
        **down, "bias": "read", "y": "read_write",
    }  # fmt: skip
    assert access(plain, "layer00.attn.out") == {**down, "y": "read_write"}
    assert access(plain, "layer00.mlp.gate_up")["gain"] == "read"
    assert "heads_out" not in access(plain, "layer00.attn.attention")


def test_workgroups_have_the_size_of_their_tile(runner: WgpuRunner) -> None:
    plan = runner.plan_for(1, 1, capture=True, context=1).plan
    sizes = {d.kernel.name: workgroup_size(d.kernel) for d in plan.dispatches}
    weight = runner.model.layers[0].mlp.down.weight
    tile = runner.gpu.tuning.tile(1, weight.n, weight.blocks, dtype=weight.dtype)
    assert sizes["matmul"] == (tile.lanes, 1, 1)
    assert sizes["embed"] == (64, 1, 1)
    for dispatch in plan.dispatches:
        lanes = dispatch.kernel.constants.get("LANES")
        if lanes is not None:
            assert workgroup_size(dispatch.kernel) == (lanes, 1, 1)


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("@workgroup_size(64)", (64, 1, 1)),
        ("@workgroup_size(8u, 4, 2i)", (8, 4, 2)),
        ("const A: u32 = 3u;\nconst B = A * 4u;\n@workgroup_size(B + 1u, A)", (13, 3, 1)),
        ("override A: u32;\nconst B = (A - 1u) % 4u;\n@workgroup_size(B, A / 3u)", (2, 2, 1)),
        ("override A: u32 = 5u;\n@workgroup_size(A, 1)", (5, 1, 1)),
    ],
)
def test_sizes_of_shader_arrays_are_evaluated(source: str, size: tuple[int, int, int]) -> None:
    constants = {"A": 7} if "override A: u32;" in source else {}
    assert workgroup_size(made_kernel(source, constants)) == size


@pytest.mark.parametrize("source", ["fn main() {}", "@workgroup_size(X)"])
def test_a_size_that_cannot_be_evaluated_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match=r"no @workgroup_size|X is not an expression of known"):
        workgroup_size(made_kernel(source, {}))


def made_kernel(source: str, constants: dict[str, Any]) -> Kernel:
    return Kernel("made", None, (), source, constants, Future())


def test_constants_are_filled_in_as_their_types() -> None:
    source = "\n".join(
        f"override {declared};"
        for declared in (
            "A: u32",
            "B: bool = false",
            "C: f32",
            "D: i32",
            "E: u32 = 2u * A",
            "F:f32=1.5",
        )
    )
    filled = filled_source(made_kernel(source, {"A": 3, "B": True, "C": 0.1, "D": -4}))
    assert filled.splitlines() == [
        "const A: u32 = 3u;",
        "const B: bool = true;",
        f"const C: f32 = {float(np.float32(0.1))}f;",
        "const D: i32 = -4i;",
        "const E: u32 = 2u * A;",
        "const F: f32 = 1.5;",
    ]


@pytest.mark.parametrize("n_rows", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_filled_sources_compute_the_same_bits(rig: Rig, runner: WgpuRunner, n_rows: int) -> None:
    """The plan is run again with pipelines made of the reported sources, without constants."""
    ids = [i * 7 % runner.config.vocab_size for i in range(n_rows)]
    driving.begin(runner, 0, ids, n_rows)
    step = Step(
        tuple(Row(0, i, id) for i, id in enumerate(ids)), (replace(GREEDY, row=n_rows - 1),)
    )
    wanted = runner.logits(step)
    plan = runner.plans.plan(n_rows, 1, "logits", step.context).plan

    @cache
    def pipeline(source: str, layout: Any) -> Any:
        device = rig.device.wgpu
        return device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": device.create_shader_module(code=source), "entry_point": "main"},
        )

    again = tuple(
        (pipeline(filled_source(d.kernel), d.kernel.layout), d.bind_group, *d.grid)
        for d in plan.dispatches
    )
    logits = plan.dispatches[-1].tensors["y"]
    rig.poison(logits)
    rig.calls.submit(rig.calls.encode(rig.calls.prepare(StepCommands((again,)))))
    got = rig.memory.read(logits)[:1, : runner.config.vocab_size]
    assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))


# ---- what it costs ---------------------------------------------------------------------------


@pytest.mark.parametrize("capture", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("n_tokens", [1, 1300])
def test_every_op_of_a_plan_has_a_formula(device: Device, capture: bool, n_tokens: int) -> None:
    runner = driving.load(device, random_llama.folder("long_context"), "f16")
    ops = {d.kernel.name for d in runner.plan_for(1, 1, capture, n_tokens).plan.dispatches}
    assert ops <= set(COSTS)


def test_an_op_without_a_formula_is_shown_without_a_cost(
    runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = view(runner, 1, 1)
    monkeypatch.delitem(COSTS, "embed")
    after = view(runner, 1, 1)
    assert (after.dispatches[0].n_bytes, after.dispatches[0].flops) == (None, None)
    assert before.n_bytes - after.n_bytes == before.dispatches[0].n_bytes


def test_sums_are_those_of_the_dispatches(runner: WgpuRunner) -> None:
    for n_rows, context in ((1, 0), (1, 200), (2, 100)):
        found = view(runner, n_rows, context)
        assert found.n_bytes == sum(d.n_bytes or 0 for d in found.dispatches)
        assert found.flops == sum(d.flops or 0 for d in found.dispatches)
        assert step_cost(runner, n_rows, context) == (found.flops, found.n_bytes)


def by_op(found: PlanReport) -> dict[str, list[PlanDispatch]]:
    ops: dict[str, list[PlanDispatch]] = {}
    for dispatch in found.dispatches:
        ops.setdefault(dispatch.op, []).append(dispatch)
    return ops


@pytest.mark.parametrize("n_rows", [1, 20])
def test_cost_of_matmuls_follows_their_weights(device: Device, n_rows: int) -> None:
    """The model has biases everywhere: two operations a weight and row, four a number for each
    norm, one for each bias and each number of the residual stream, five for each gate, three for
    each transformed number. The output head runs for one row. With many rows a norm is a dispatch
    of its own, three a number, and one a number of the result."""
    runner = driving.load(device, random_llama.folder("head100_all_bias"), "q8")
    c = runner.config
    ops = by_op(view(runner, n_rows, 3))
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    hidden, inner = c.hidden_size, c.intermediate_size
    parts = n_rows >= MIN_SPLIT_ROWS

    def norm(n: int) -> int:
        return n if parts else 4 * hidden

    qkv = 2 * hidden * (q + 2 * kv) + (q + 2 * kv) + norm(q + 2 * kv) + 3 * (q + kv)
    out = 2 * q * hidden + hidden + hidden
    gate_up = 2 * hidden * 2 * inner + 2 * inner + norm(2 * inner) + 5 * inner
    down = 2 * inner * hidden + hidden + hidden
    head = 2 * hidden * c.vocab_size + 4 * hidden
    assert [d.flops for d in ops["qkv"]] == [n_rows * qkv] * c.n_layers
    assert [d.flops for d in ops["matmul"]] == c.n_layers * [
        n_rows * out, n_rows * gate_up, n_rows * down,
    ] + [head]  # fmt: skip
    assert [
        (d.flops, d.n_bytes) for d in ops.get("rms_norm_split", [])
    ] == parts * 2 * c.n_layers * [(n_rows * 3 * hidden, 4 * (hidden + n_rows * (2 * hidden + 1)))]
    layer, mlp = runner.model.layers[0], runner.model.layers[0].mlp
    scale = n_rows if parts else hidden  # numbers that are read for the norm
    item = {"f32": 4, "f16": 2}[runner.pools.dtype]
    assert ops["qkv"][0].n_bytes == layer.qkv.weight.n_bytes + 4 * (scale + q + 2 * kv) + n_rows * (
        4 * hidden + 4 * c.head_dim + 4 * q + item * 2 * kv
    )
    assert [d.n_bytes for d in ops["matmul"][:3]] == [
        layer.out.weight.n_bytes + 4 * hidden + n_rows * 4 * (q + hidden + hidden),
        mlp.up.weight.n_bytes + 4 * (scale + 2 * inner) + n_rows * 4 * (hidden + inner),
        mlp.down.weight.n_bytes + 4 * hidden + n_rows * 4 * (inner + hidden + hidden),
    ]
    assert ops["matmul"][-1].n_bytes == runner.model.head.n_bytes + 4 * (
        hidden + hidden + c.vocab_size
    )


@pytest.mark.parametrize("n_rows", [1, 20])
def test_quantized_activations_cost_their_bytes_written_and_read(
    device: Device, n_rows: int
) -> None:
    """A block of 32 numbers has 48 bytes, and the matmuls read nothing else; the output head takes
    float32. Rounding costs four operations a number, beside the norm's."""
    of_bytes = replace(device, tuning=replace(device.tuning, q8_activations=True))
    runner = driving.load(of_bytes, random_llama.folder("head100_all_bias"), "q8")
    c, ops = runner.config, by_op(view(runner, n_rows, 3))
    width, hidden, inner = c.n_heads * c.head_dim, c.hidden_size, c.intermediate_size
    inputs = [(hidden, True), (width, False), (hidden, True), (inner, False)]
    rows = [48 * -(-k // 32) for k, _ in inputs]
    assert [d.label.rpartition(".")[0] for d in ops["quantize_activations"][:4]] == [
        "layer00.attn.qkv", "layer00.attn.out", "layer00.mlp.gate_up", "layer00.mlp.down",
    ]  # fmt: skip
    assert len(ops["quantize_activations"]) == 4 * c.n_layers
    assert [(d.flops, d.n_bytes) for d in ops["quantize_activations"][:4]] == [
        (n_rows * (4 + 4 * norm) * k, n_rows * (4 * k + row) + 4 * norm * k)
        for (k, norm), row in zip(inputs, rows, strict=True)
    ]
    mlp = runner.model.layers[0].mlp
    assert ops["matmul"][1].n_bytes == (
        mlp.up.weight.n_bytes + 4 * 2 * inner + n_rows * (rows[2] + 4 * inner)
    )
    head = 2 * hidden * c.vocab_size + 4 * hidden
    assert ops["matmul"][-1].flops == head


@pytest.mark.parametrize(("n_rows", "n_before"), [(1, 0), (1, 77), (8, 30), (20, 3), (128, 100)])
def test_attention_costs_a_score_for_each_key_a_row_sees(
    runner: WgpuRunner, n_rows: int, n_before: int
) -> None:
    c, size = runner.config, StepSize(n_rows, 1, n_before)
    plan = runner.plan_for(1, 1, capture=False).plan
    costs = {cost_of(d, size) for d in plan.dispatches if d.kernel.name == "attention"}
    item = {"f32": 4, "f16": 2}[runner.pools.dtype]
    flops, read = 0, set()
    for row in range(n_rows):
        for key in range(n_before + row + 1):
            flops += c.n_heads * (2 * c.head_dim + 5 + 2 * c.head_dim)
            read.add(key)
        flops += c.n_heads * c.head_dim
    cached = len(read) * 2 * c.n_kv_heads * c.head_dim * item
    blocks = 4 * len({key // 16 for key in read})
    q_and_out = n_rows * 2 * c.n_heads * c.head_dim * 4
    assert costs == {Cost(flops, cached + blocks + q_and_out)}


def test_a_longer_context_costs_its_keys_and_values(runner: WgpuRunner) -> None:
    """One more block costs its bytes, and its entry in the block table for every layer."""
    (_, before), (_, after) = (step_cost(runner, 1, context) for context in (31, 47))
    assert after - before == runner.limits.block_bytes + 4 * runner.config.n_layers


@pytest.mark.parametrize("kv", ["q8q4", "rotated4"])
def test_a_quantised_cache_costs_what_it_stores(device: Device, kv: str) -> None:
    """Heads of 80 numbers have five KV blocks, and Hadamard transforms of sixteen."""
    runner = driving.load(device, random_llama.folder("head80_theta"), "f16", kv_dtype=kv)
    c, (n_rows, n_before) = runner.config, (3, 30)
    found = by_op(view(runner, n_rows, n_before))
    hadamard, width = kv == "rotated4", c.n_heads * c.head_dim
    key, value = (40 + 12, 40 + 12) if hadamard else (80 + 12, 40 + 20)
    assert runner.limits.block_bytes == 16 * c.n_layers * c.n_kv_heads * (key + value)
    cached = (n_before + n_rows) * c.n_kv_heads * (key + value)
    assert {d.n_bytes for d in found["attention"]} == {cached + 4 * 3 + n_rows * 2 * 4 * width}
    new = c.n_kv_heads * (2 * 4 * c.head_dim + key + value)
    transform_flops = (4 + 1 + 1) * (
        width + 2 * c.n_kv_heads * c.head_dim
    )  # butterflies, sign, scale
    assert {(d.n_bytes, d.flops) for d in found["quantize_kv"]} == {
        (n_rows * (new + hadamard * 2 * 4 * width), n_rows * transform_flops * hadamard)
    }
    back = [(d.n_bytes, d.flops) for d in found.get("inverse_hadamard", [])]
    assert back == hadamard * c.n_layers * [(n_rows * 2 * 4 * width, n_rows * 6 * width)]
    (_, before), (_, after) = (step_cost(runner, 1, context) for context in (31, 47))
    assert after - before == runner.limits.block_bytes + 4 * c.n_layers


@pytest.mark.parametrize(
    ("kind", "n_rows"), [("", 1), ("", SPLIT_ROWS), (DISCRETE, DISCRETE_SPLIT_ROWS)]
)
def test_splits_cost_their_partial_sums(device: Device, kind: str, n_rows: int) -> None:
    device = with_info(device, software=False, kind=kind) if kind else device
    device = replace(device, policy=replace(device.policy, merged_splits=0))
    runner = driving.load(device, random_llama.folder("long_context"), "f16")
    c, split = runner.config, device.policy.kv_split_size
    context = 2 * split - 3
    found = by_op(view(runner, n_rows, context))
    splits = [(context + row) // split + 1 for row in range(n_rows)]
    assert set(splits) == ({2} if n_rows == 1 else {2, 3})
    width = c.n_heads * c.head_dim
    left = sum(splits) * (4 * width + 12 * c.n_heads)
    cached = (context + n_rows) * runner.limits.block_bytes // 16 // c.n_layers
    table = 4 * -(-(context + n_rows) // 16)
    assert {d.n_bytes for d in found["attention"]} == {cached + table + n_rows * 4 * width + left}
    merge = found["attention_merge"]
    assert {d.n_bytes for d in merge} == {left + n_rows * 4 * width}
    assert {d.flops for d in merge} == {sum(width * (3 * (n - 1) + 1) for n in splits)}


def test_a_merge_costs_as_much_in_the_dispatch_of_attention_as_in_its_own(device: Device) -> None:
    device = with_info(device, software=False, kind=DISCRETE)
    costs, n_dispatches = [], []
    for merged_splits in (0, 4):
        kind = replace(device, policy=replace(device.policy, merged_splits=merged_splits))
        runner = driving.load(kind, random_llama.folder("long_context"), "f16")
        found = by_op(view(runner, 3, 4 * device.policy.kv_split_size - 3))
        both = found["attention"] + found.get("attention_merge", [])
        costs.append((sum(d.n_bytes for d in both), sum(d.flops for d in both)))
        n_dispatches.append(len(both) // runner.config.n_layers)
    assert costs[0] == costs[1]
    assert n_dispatches == [2, 1]


@pytest.mark.parametrize(("name", "dtype"), MODELS)
def test_a_decode_step_reads_the_weights_that_the_inventory_says(
    device: Device, name: str, dtype: str
) -> None:
    """Weights of the matmuls and one row of the embedding; norms and biases are float32 and padded
    there."""
    runner = driving.load(device, random_llama.folder(name), dtype)
    ops = by_op(view(runner, 1, 0))
    weights = sum(
        binding.n_bytes
        for dispatch in ops["qkv"] + ops["matmul"]
        for binding in dispatch.bindings
        if binding.name == "weight"
    )
    row = runner.model.embedding.n_bytes // runner.model.embedding.n
    inventory = Inventory.from_folder(random_llama.folder(name), dtype)
    matrices = [tensor for tensor in inventory.tensors if len(tensor.shape) == 2]
    assert sum(tensor.token_bytes or 0 for tensor in matrices) == weights + row
    x = 4 * -(-runner.config.hidden_size // 32) * 32
    assert ops["embed"][0].n_bytes == row + x


@pytest.mark.parametrize(
    ("name", "max_binding_bytes"), [("head80_theta", 620_000), ("vocab50000_tied", 2 << 20)]
)
def test_shards_cost_together_what_the_whole_costs(
    device: Device, name: str, max_binding_bytes: int
) -> None:
    folder = random_llama.folder(name)
    whole = driving.load(device, folder)
    cut = driving.load(limited(device, max_binding_bytes), folder)
    assert any(len(matrix.shards) > 1 for matrix in cut.model.matrices())
    assert step_cost(cut, 2, 5) == step_cost(whole, 2, 5)


def test_statistics_and_sampling_cost_what_they_read(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("gqa6_wide"), "f16")
    c, size = runner.config, StepSize(3, 2, 4)
    recorded = runner.plan_for(3, 2, capture=True, context=size.n_keys)
    costs = {d.label: cost_of(d, size) for d in recorded.plan.dispatches}
    width = 160  # 132 rounded up to whole blocks of 32
    states, stats = (2 * c.n_layers + 1) * width, 1 + 5 * c.n_layers
    assert costs["stats"] == Cost(3 * c.n_layers * width * 16, 3 * 4 * (states + stats))
    strips = 3 * 64  # slices of 64 strips of 4 tokens cover 640
    keys, seen = 4 * strips + 5 * strips, 20
    assert costs["sample.keys"] == Cost(2 * 8 * 640, 2 * 4 * (640 + seen + keys))
    assert costs["sample"] == Cost(2 * 4 * strips, 2 * (16 * strips + 4 * (13 + 4 * 20)))
    found = plan_report(recorded, size)
    assert plan_cost(recorded.plan, size) == Cost(found.flops, found.n_bytes)


# ---- what cannot be asked --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_rows", "n_before", "param"),
    [
        (0, 1, "n_rows"),
        (129, 1, "n_rows"),
        (1, -1, "context"),
        (1, 512, "context"),
        (9, 504, "context"),
    ],
)
def test_an_impossible_step_is_refused(
    device: Device, n_rows: int, n_before: int, param: str
) -> None:
    runner = driving.load(device, random_llama.folder("odd36"))
    for ask in (runner.list_plan, lambda n, c: step_cost(runner, n, c)):
        with pytest.raises(InvalidRequest, match=f"^{param} is ") as caught:
            ask(n_rows, n_before)
        assert caught.value.param == param


def test_a_plan_can_be_sent(runner: WgpuRunner) -> None:
    plan = runner.list_plan(2, 9)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=PlanReport) == view(runner, 2, 9)
