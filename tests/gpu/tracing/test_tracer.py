"""An instrumented kernel does its work and writes down each memory access of one workgroup."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.tracing.instrument import instrumented
from gpu.tracing.tracer import Trace
from gpu.webgpu.kernels import compose, shader_names
from gpu.webgpu.tiling import Q8_TILE_LIBS, TILE_LIBS
from tests.gpu.tracing.conftest import Run

REVERSE = """
struct Pair { first: u32, second: u32 }
@group(0) @binding(0) var<storage, read_write> data: array<vec4u>;
var<workgroup> held: array<Pair, 8>;
var<workgroup> total: atomic<u32>;

@compute @workgroup_size(8)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3u) {
  if (lane == 0u) { atomicStore(&total, 0u); }
  workgroupBarrier();
  held[lane].first = data[group.x * 8u + lane][lane % 4u]; // one word of a vector
  atomicAdd(&total, 1u);
  workgroupBarrier();
  let other = held[7u - lane].first + atomicLoad(&total);
  data[group.x * 8u + lane].y += other;
}
"""


def accesses(trace: Trace, lane: int) -> list[tuple[str, str, int, int, int]]:
    """(variable, kind, bytes, index, phase) of a lane's accesses in order."""
    mine = trace.lane == lane
    return [
        (trace.sites[s].variable, trace.sites[s].kind, trace.sites[s].n_bytes, int(i), int(p))
        for s, i, p in zip(trace.site[mine], trace.index[mine], trace.phase[mine], strict=True)
    ]


def test_accesses_of_a_lane_are_written_down_in_order(run: Run) -> None:
    data = np.arange(64).reshape(16, 4)
    trace = run(REVERSE, data, grid=(2, 1, 1), group=(1, 0, 0))
    assert trace.n_lanes == 8
    for lane in range(8):
        row = 8 + lane
        assert sorted(accesses(trace, lane)) == sorted(
            [
                *([("total", "write", 4, 0, 0)] if lane == 0 else []),
                ("data", "read", 4, 4 * row + lane % 4, 1),
                ("held", "write", 4, 2 * lane, 1),
                ("total", "atomic", 4, 0, 1),
                ("total", "read", 4, 0, 2),
                ("held", "read", 4, 2 * (7 - lane), 2),
                ("data", "update", 4, 4 * row + 1, 2),
            ]
        )


def test_the_work_is_done_by_every_workgroup(run: Run) -> None:
    data = np.arange(64).reshape(16, 4)
    run(REVERSE, data, grid=(2, 1, 1))
    lane = np.arange(16) % 8
    held = data[np.arange(16), lane % 4]
    want = data.copy()
    want[:, 1] += held[np.arange(16) // 8 * 8 + 7 - lane] + 8
    assert np.array_equal(run.data, want)  # type: ignore[attr-defined]


def test_a_trace_that_does_not_fit_is_taken_again(run: Run) -> None:
    """Sixteen lanes with 40,000 reads each need 5.1 MB. What was changed in place is given back."""
    source = """
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(16)
    fn main(@builtin(local_invocation_index) lane: u32) {
      var sum = 0u;
      for (var i = 0u; i < 40000u; i++) { sum += data[(i + lane) % 16u]; }
      data[16u + lane] += 1u + sum;
    }
    """
    trace = run(source, np.zeros(32))
    assert run.data.tolist() == [0] * 16 + [1] * 16  # type: ignore[attr-defined]
    assert len(trace.lane) == 16 * 40_001
    assert (trace.lane[:40_001] == 0).all()
    assert (trace.index[:40_000] == np.arange(40_000) % 16).all()


@pytest.mark.parametrize("name", shader_names())
def test_every_shader_is_understood(name: str) -> None:
    """Of every variant of its libraries that shares memory. Subgroups have no place in a trace."""
    variants = [
        *TILE_LIBS.values(),
        *Q8_TILE_LIBS.values(),
        {"attention_split": "attention_split_coalesced"},
        {"attention_split": "attention_split_shared"},
    ]
    usual = {
        "weight": "weight_q4",
        "weight_int8": "weight_int8_q4",
        "kv": "kv_f16",
        "kv_pair": "kv_pair_f16",
        "quad": "quad_load",
        "x_tile": "x_tile_load",
    }
    for lib in variants:
        source = compose(name, {}, usual | lib)
        if "attention_split" in lib and "attention_split" not in source and name != "attention":
            continue
        found = instrumented(source)
        assert found.sites
        assert found.source.count("traced(") + found.source.count("traced_part(") > len(found.sites)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("let p = &data[0];", "a pointer to memory of more than one lane"),
        ("let x = data[1]; let data = 3u;", "data is a local variable after"),
        ("let x = arrayLength(data);", "expected \\["),
    ],
)
def test_what_is_not_understood_is_refused(body: str, message: str) -> None:
    source = f"""
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(1) fn main() {{ {body} }}
    """
    with pytest.raises(ValueError, match=message):
        instrumented(source)
