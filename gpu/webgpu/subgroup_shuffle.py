"""Whether lanes of a workgroup can trade numbers through subgroup operations: found by trying."""

from __future__ import annotations

import wgpu

from gpu.webgpu.tiling import TRADING_LANES

TRADE = f"""
@group(0) @binding(0) var<storage, read_write> got: array<u32>;
@compute @workgroup_size({TRADING_LANES})
fn main(@builtin(local_invocation_index) lane: u32) {{
  got[lane] = subgroupBroadcast(lane + 100u, 0u) + subgroupBroadcast(lane, {TRADING_LANES - 1}u);
}}
"""


def can_trade(device: wgpu.GPUDevice) -> bool:
    """Do the first `TRADING_LANES` lanes of a workgroup lie in one subgroup? Asked by trying: what
    adapters say of their subgroup sizes is not always so."""
    if "subgroup" not in device.features:
        return False
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = device.create_buffer(size=4 * TRADING_LANES, usage=usage)
    pipeline = device.create_compute_pipeline(
        layout="auto",
        compute={"module": device.create_shader_module(code=TRADE), "entry_point": "main"},
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
    return got == [100 + TRADING_LANES - 1] * TRADING_LANES
