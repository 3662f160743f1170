"""Races between lanes are found, and what is ordered is none."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.tracing.races import races
from tests.gpu.tracing.conftest import Run

KERNEL = """
@group(0) @binding(0) var<storage, read_write> data: array<u32>;
var<workgroup> shared_data: array<vec4u, 8>;
var<workgroup> counter: atomic<u32>;
var<workgroup> whole: u32;
@compute @workgroup_size(8)
fn main(@builtin(local_invocation_index) lane: u32) {
  BODY
}
"""

RIGHT = {
    "own places": "shared_data[lane].x = lane; data[lane] = shared_data[lane].x;",
    "parts of one vector": "shared_data[lane / 4u][lane % 4u] = lane;",
    "a barrier between": "shared_data[lane].x = lane; workgroupBarrier();"
    " data[lane] = shared_data[7u - lane].x;",
    "reads of one place": "data[lane + 8u] = data[0];",
    "atomics": "atomicAdd(&counter, 1u); atomicMax(&counter, lane);",
    "a uniform load": "if (lane == 0u) { whole = data[0]; }"
    " data[lane + 8u] = workgroupUniformLoad(&whole);",
}
WRONG = {
    "no barrier": (
        "shared_data[lane].x = lane; data[lane] = shared_data[7u - lane].x;",
        "shared_data",
    ),
    "two writes": ("shared_data[lane / 2u].x = lane;", "shared_data"),
    "a whole vector and a part": (
        "shared_data[lane / 2u].x = lane; data[lane] = shared_data[lane][0];",
        "shared_data",
    ),
    "an update": ("data[lane / 2u] += 1u;", "data"),
    "a store beside atomics": (
        "if (lane == 0u) { atomicStore(&counter, 5u); } atomicAdd(&counter, 1u);",
        "counter",
    ),
    "a load beside atomics": (
        "atomicAdd(&counter, 1u); data[lane] = atomicLoad(&counter);",
        "counter",
    ),
    "a variable": ("if (lane == 0u) { whole = 3u; } data[lane] = whole;", "whole"),
    "storage behind a barrier of workgroup memory": (
        "data[lane] = lane; workgroupBarrier(); data[lane + 8u] = data[7u - lane];",
        "data",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_ordered_is_no_race(run: Run, name: str) -> None:
    assert races(run(KERNEL.replace("BODY", RIGHT[name]), np.zeros(16))) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_race_is_found_and_named(run: Run, name: str) -> None:
    body, variable = WRONG[name]
    found = races(run(KERNEL.replace("BODY", body), np.zeros(16)))
    assert {race.variable for race in found} == {variable}
    assert f"of {variable}, phase" in str(found[0])
