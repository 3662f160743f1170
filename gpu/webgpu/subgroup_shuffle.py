"""Test whether lanes of a workgroup can exchange numbers through subgroup operations."""

from __future__ import annotations

import wgpu

from gpu.webgpu.tiling import SHUFFLE_LANES

SHUFFLE_TEST = f"""
@group(0) @binding(0) var<storage, read_write> got: array<u32>;
@compute @workgroup_size({SHUFFLE_LANES})
fn main(@builtin(local_invocation_index) lane: u32) {{
  got[lane] = subgroupBroadcast(lane + 100u, 0u) + subgroupBroadcast(lane, {SHUFFLE_LANES - 1}u);
}}
"""


def can_shuffle(device: wgpu.GPUDevice) -> bool:
    """Return whether the first `SHUFFLE_LANES` lanes of a workgroup are in one subgroup. Runs a
    shader, because some adapters report wrong subgroup sizes."""
    if "subgroup" not in device.features:
        return False
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = device.create_buffer(size=4 * SHUFFLE_LANES, usage=usage)
    pipeline = device.create_compute_pipeline(
        layout="auto",
        compute={"module": device.create_shader_module(code=SHUFFLE_TEST), "entry_point": "main"},
    )
    bind_group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": {"buffer": buffer}}],
    )
    encoder = device.create_command_encoder()
    compute_pass = encoder.begin_compute_pass()
    compute_pass.set_pipeline(pipeline)
    compute_pass.set_bind_group(0, bind_group)
    compute_pass.dispatch_workgroups(1)
    compute_pass.end()
    device.queue.submit([encoder.finish()])
    got = memoryview(device.queue.read_buffer(buffer)).cast("I").tolist()
    return got == [100 + SHUFFLE_LANES - 1] * SHUFFLE_LANES
