"""Plan report of an invented Llama-like model, in the format of the engine's."""

from __future__ import annotations

from typing import Any

import msgspec

from gpu import EngineInfo, InvalidRequest
from gpu.plans.plan_report import Access, PlanBinding, PlanDispatch, PlanKernel, PlanReport

HEADS = ("embed", "qkv", "attention", "matmul", "logit_sort_keys", "sample")
SOURCE = """const N: u32 = {n}u;
@group(0) @binding(0) var<uniform> step: Step;
@compute @workgroup_size(64)
fn main() {{ // {op}
}}
"""


def fake_plan(info: EngineInfo, n_rows: int, context: int) -> dict[str, Any]:
    """Return the plan report. Raises InvalidRequest as the real engine does."""
    most = info.limits.context - n_rows
    if n_rows < 1 or not 0 <= context <= most:
        raise InvalidRequest(f"context is {context}, expected 0 to {most}", "context")
    dispatches = [
        _dispatch(i, label, n_rows * (1 + i) + context) for i, label in enumerate(_labels(info))
    ]
    plan = PlanReport(
        n_rows=n_rows,
        n_samples=1,
        context=context,
        recorded_rows=n_rows,
        dispatches=tuple(dispatches),
        kernels=tuple(
            PlanKernel(op, (64, 1, 1), {"N": i}, SOURCE.format(n=i, op=op))
            for i, op in enumerate(HEADS)
        ),
        n_bytes=sum(d.n_bytes or 0 for d in dispatches),
        flops=sum(d.flops or 0 for d in dispatches),
    )
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plan))
    return found


def _labels(info: EngineInfo) -> list[str]:
    parts = ("attn.qkv", "attn.attention", "attn.out", "mlp.gate_up", "mlp.down")
    layers = [f"layer{i:02}.{part}" for i in range(info.model.n_layers) for part in parts]
    return ["embed", *layers, "head", "sample.keys", "sample"]


def _dispatch(number: int, label: str, size: int) -> PlanDispatch:
    part = label.rpartition(".")[2] if label.startswith("layer") else label.replace(".", "_")
    op = part if part in HEADS else "matmul"
    bindings = (
        _binding("step", "step", 2304, "uniform"),
        _binding("x", f"t{number - 1}", 4 * size, "read"),
        _binding("weight", label, 1000 * size, "read"),
        _binding("y", f"t{number}", 4 * size, "read_write"),
    )
    return PlanDispatch(
        label=label,
        layer=int(label[5:7]) if label.startswith("layer") else None,
        op=op,
        kernel=HEADS.index(op),
        grid=(1 + number, 1, 1),
        bindings=bindings,
        bound_bytes=sum(binding.n_bytes for binding in bindings),
        n_bytes=1000 * size,
        flops=2000 * size,
    )


def _binding(name: str, tensor: str, n_bytes: int, access: Access) -> PlanBinding:
    return PlanBinding(name, tensor, "f32", (n_bytes // 4,), n_bytes, access)
