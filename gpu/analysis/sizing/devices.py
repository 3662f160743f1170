"""Devices to size a model for, as their vendors' data sheets describe them.

Rates of data sheets are peaks, those of matrix units in f16 without sparsity. Sizes of caches are
from the vendors' descriptions of the architecture, which give no rate. The engine's own kernels use
plain arithmetic; docs/gpus.md has measurements.
"""

from __future__ import annotations

import msgspec

MB, GB, TFLOPS = 10**6, 10**9, 10**12
PCIE_4, PCIE_5 = 32 * GB, 64 * GB
"""Bytes per second of 16 lanes, one way."""


class DeviceSpec(msgspec.Struct, frozen=True):
    """A device.

    memory_bytes   None: unknown
    flops_per_s    f16; None: the vendor does not publish it
    bus_bytes_per_s  from host memory, one way; None: the device computes in host memory
    source         where the numbers are from
    cache_bytes    size of the cache that all of its processors share; None: unknown
    cache_bytes_per_s  None: unknown; data sheets rarely have it
    """

    name: str
    memory_bytes: int | None
    bytes_per_s: float
    flops_per_s: float | None
    bus_bytes_per_s: float | None
    source: str
    cache_bytes: int | None = None
    cache_bytes_per_s: float | None = None


DEVICES = (
    DeviceSpec(
        "H100", 80 * GB, 3350 * GB, 989 * TFLOPS, PCIE_5,
        "NVIDIA H100 data sheet, SXM5 80 GB; f16 without sparsity", 50 * MB,
    ),
    DeviceSpec(
        "A100", 80 * GB, 2039 * GB, 312 * TFLOPS, PCIE_4,
        "NVIDIA A100 data sheet, SXM4 80 GB; f16 without sparsity", 40 * MB,
    ),
    DeviceSpec(
        "L4", 24 * GB, 300 * GB, 121 * TFLOPS, PCIE_4,
        "NVIDIA L4 data sheet; f16, half of the rate with sparsity", 48 * MB,
    ),
    DeviceSpec(
        "RTX 4090", 24 * GB, 1008 * GB, 165 * TFLOPS, PCIE_4,
        "NVIDIA Ada architecture paper; f16 with sums in f32, without sparsity", 72 * MB,
    ),
    DeviceSpec(
        "RTX 3060", 12 * GB, 360 * GB, 51 * TFLOPS, PCIE_4,
        "NVIDIA GeForce RTX 3060 12 GB; half of the 101 tensor TFLOPS with sparsity", 3 * MB,
    ),
    DeviceSpec(
        "RX 7900 XTX", 24 * GB, 960 * GB, 123 * TFLOPS, PCIE_4,
        "AMD Radeon RX 7900 XTX specifications; peak half precision, Infinity Cache", 96 * MB,
    ),
    DeviceSpec(
        "M4 Max", 128 * GB, 546 * GB, None, None,
        "Apple M4 Max, 40-core GPU, most memory; Apple publishes no rate of arithmetic",
    ),
    DeviceSpec(
        "M2 Max", 96 * GB, 400 * GB, 13.6 * TFLOPS, None,
        "Apple M2 Max, 38-core GPU, most memory; f32",
    ),
    DeviceSpec(
        "Laptop GPU", 16 * GB, 120 * GB, 16.6 * TFLOPS, None,
        "AMD Radeon 780M with LPDDR5X-7500, half of 32 GB; two f16 operations per f32 lane",
    ),
)  # fmt: skip
