"""Kernels whose lanes are numbered in another order, to find races.

A driver runs the lanes of a workgroup in some order of its own. A kernel that lacks a barrier may
give the right result in that order and a wrong one in another. With `--lane-orders` every op test
runs each op again in all of `ORDERS`, and the results must have the same bits.
"""

from __future__ import annotations

import re
from typing import Any

from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernel, Kernels

ORDERS = {
    "reversed": "({n}) - 1u - {lane}",
    "xor8": "select({lane}, {lane} ^ 8u, ({lane} ^ 8u) < ({n}))",
    "scattered": "(7919u * {lane} + 3u) % ({n})",
}
"""Number of a lane out of `n` by its number on the device. 7919 is prime, so that every order is a
permutation."""

_LANE = re.compile(r"@builtin\(local_invocation_index\) (\w+): u32")
_SIZE = re.compile(r"@workgroup_size\((.+?)\)\s*\nfn main\(.*?\) \{\n", re.DOTALL)


def renumbered(source: str, order: str) -> str:
    """Return the source with its lanes in `order`; unchanged if it does not number its lanes, or if
    they exchange values through subgroups, whose lanes the device numbers."""
    lane, size = _LANE.search(source), _SIZE.search(source)
    if lane is None or size is None or "subgroup" in source:
        return source
    number = ORDERS[order].format(n=size[1], lane="device_lane")
    body = f"  let {lane[1]} = {number};\n"
    source = source[: size.end()] + body + source[size.end() :]
    return source[: lane.start(1)] + "device_lane" + source[lane.end(1) :]


class RenumberedKernels(Kernels):
    """Kernels with their lanes in `order`."""

    def __init__(self, device: Device, order: str) -> None:
        super().__init__(device)
        self._order = order

    def _begin(self, name: str, source: str, constants: dict[str, Any]) -> Kernel:
        return super()._begin(name, renumbered(source, self._order), constants)
