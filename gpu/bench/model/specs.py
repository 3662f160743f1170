"""Published figures of six GPUs, as far as the time of a dispatch depends on them.

They come from vendors' data sheets and architecture papers; what vendors do not publish (latencies,
caches of phones) is estimated from public measurements. A prediction is no better than they are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Figures of one GPU.

    discrete           a card of its own, which takes more rows in a step
    multiprocessors    parts that each run whole workgroups: SM (NVIDIA), compute unit (AMD), core
                       (Apple), dual subslice (Intel)
    clock_ghz          clock under load
    wave               lanes of one instruction
    f32_lanes          fused multiply-adds per multiprocessor and clock
    dot4_factor        speed of dot4I8Packed, in multiply-adds relative to `f32_lanes`
    line_cycles        clocks of a multiprocessor's cache per line of 128 bytes
    shared_cycles      clocks of workgroup memory per 128 bytes without bank conflicts
    issue              wave instructions per multiprocessor and clock
    max_lanes          lanes that a multiprocessor holds at a time
    max_workgroups     workgroups likewise
    shared_bytes       workgroup memory of a multiprocessor
    l2_gb_s            bandwidth of the cache that all multiprocessors share
    memory_gb_s        bandwidth of memory
    latency_ns         of a load from memory, under load
    dispatch_us        from the end of a dispatch to the start of one that depends on it
    """

    name: str
    discrete: bool
    multiprocessors: int
    clock_ghz: float
    wave: int
    f32_lanes: int
    dot4_factor: float
    line_cycles: float
    shared_cycles: float
    issue: float
    max_lanes: int
    max_workgroups: int
    shared_bytes: int
    l2_gb_s: float
    memory_gb_s: float
    latency_ns: float
    dispatch_us: float

    @property
    def f32_tflop_s(self) -> float:
        """Peak of float32 arithmetic; a multiply-add counts as two operations."""
        return 2 * self.multiprocessors * self.f32_lanes * self.clock_ghz / 1e3


SPECS = {
    "h200": GpuSpec(
        name="NVIDIA H200",
        discrete=True,
        multiprocessors=132,
        clock_ghz=1.98,
        wave=32,
        f32_lanes=128,
        dot4_factor=2.0,
        line_cycles=1.0,
        shared_cycles=1.0,
        issue=4.0,
        max_lanes=2048,
        max_workgroups=32,
        shared_bytes=228 << 10,
        l2_gb_s=5500.0,
        memory_gb_s=4800.0,
        latency_ns=700.0,
        dispatch_us=3.0,
    ),
    "rtx4090": GpuSpec(
        name="NVIDIA RTX 4090",
        discrete=True,
        multiprocessors=128,
        clock_ghz=2.52,
        wave=32,
        f32_lanes=128,
        dot4_factor=2.0,
        line_cycles=1.0,
        shared_cycles=1.0,
        issue=4.0,
        max_lanes=1536,
        max_workgroups=24,
        shared_bytes=100 << 10,
        l2_gb_s=5000.0,
        memory_gb_s=1008.0,
        latency_ns=600.0,
        dispatch_us=3.0,
    ),
    "rx7900xtx": GpuSpec(
        name="AMD RX 7900 XTX",
        discrete=True,
        multiprocessors=96,
        clock_ghz=2.5,
        wave=32,
        f32_lanes=64,
        dot4_factor=4.0,
        line_cycles=2.0,
        shared_cycles=1.0,
        issue=2.0,
        max_lanes=1024,
        max_workgroups=32,
        shared_bytes=64 << 10,
        l2_gb_s=3500.0,
        memory_gb_s=960.0,
        latency_ns=700.0,
        dispatch_us=4.0,
    ),
    "m2max": GpuSpec(
        name="Apple M2 Max",
        discrete=False,
        multiprocessors=38,
        clock_ghz=1.4,
        wave=32,
        f32_lanes=128,
        dot4_factor=1.0,
        line_cycles=2.0,
        shared_cycles=2.0,
        issue=4.0,
        max_lanes=1024,
        max_workgroups=32,
        shared_bytes=60 << 10,
        l2_gb_s=1000.0,
        memory_gb_s=400.0,
        latency_ns=700.0,
        dispatch_us=5.0,
    ),
    "irisxe": GpuSpec(
        name="Intel Iris Xe (96 EU)",
        discrete=False,
        multiprocessors=6,
        clock_ghz=1.35,
        wave=32,
        f32_lanes=128,
        dot4_factor=4.0,
        line_cycles=2.0,
        shared_cycles=1.0,
        issue=4.0,
        max_lanes=1792,
        max_workgroups=16,
        shared_bytes=128 << 10,
        l2_gb_s=350.0,
        memory_gb_s=68.0,
        latency_ns=400.0,
        dispatch_us=6.0,
    ),
    "adreno": GpuSpec(
        name="Adreno 740 class",
        discrete=False,
        multiprocessors=12,
        clock_ghz=0.68,
        wave=64,
        f32_lanes=128,
        dot4_factor=2.0,
        line_cycles=4.0,
        shared_cycles=2.0,
        issue=2.0,
        max_lanes=1024,
        max_workgroups=16,
        shared_bytes=32 << 10,
        l2_gb_s=250.0,
        memory_gb_s=67.0,
        latency_ns=500.0,
        dispatch_us=15.0,
    ),
}
