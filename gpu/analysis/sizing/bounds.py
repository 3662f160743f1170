"""Bounds of a model on a device: users that fit, time to the first token, tokens per second, and
the cost of offloading to host memory or splitting over several devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import msgspec

from gpu.analysis.footprint import OVERHEAD, Footprint
from gpu.analysis.sizing.devices import DeviceSpec
from gpu.analysis.sizing.step_costs import StepCost, StepCosts

FootprintOf = Callable[[int, int], Footprint]
"""footprint_of(users, stages) -> Footprint of the largest stage."""

RESIDUAL_BYTES = 4
"""Bytes of each number of the residual stream, which stages pass on."""
MAX_STAGES = 64


class Bound(msgspec.Struct, frozen=True):
    """Least time of a step, and what limits it."""

    seconds: float
    by: Literal["bytes", "operations", "bus"]


class Offload(msgspec.Struct, frozen=True):
    """Weights that do not fit and stay in host memory. `step_bytes`: bytes that cross the bus in
    every step; `decode`: the bound with offloading."""

    host_bytes: int
    step_bytes: int
    decode: Bound


class Split(msgspec.Struct, frozen=True):
    """Layers split over several devices. `step_bytes`: bytes of the residual stream that cross the
    bus in every step; `decode`: the bound with splitting."""

    n_devices: int
    step_bytes: int
    decode: Bound


class DeviceBounds(msgspec.Struct, frozen=True):
    """Bounds on one device. Those on speed assume that everything fits.

    users        how many fit; None: the device's memory is unknown
    first_token  time to read a user's text; None: the device's rate of operations is unknown
    tokens_per_s of each user
    offload, split  None: everything fits, or there is no bus
    """

    device: DeviceSpec
    fits: bool
    users: int | None
    first_token: Bound | None
    decode: Bound
    tokens_per_s: float
    offload: Offload | None = None
    split: Split | None = None


def bounds_on(
    device: DeviceSpec, costs: StepCosts, footprint_of: FootprintOf, *, users: int, context: int
) -> DeviceBounds:
    """Return the bounds for `users` texts of `context` tokens."""
    decode_cost, memory = costs.decode(users, context), device.memory_bytes
    decode = _bound(device, decode_cost)
    need = footprint_of(users, 1)
    fits = memory is None or need.total <= memory
    offload = split = None
    if memory is not None and not fits:
        offload = _offload(device, memory, need, decode_cost)
        split = _split(device, memory, costs, footprint_of, users, decode)
    return DeviceBounds(
        device=device,
        fits=fits,
        users=None if memory is None else users_in(memory, footprint_of),
        first_token=_bound(device, costs.prefill(context)) if device.flops_per_s else None,
        decode=decode,
        tokens_per_s=1 / decode.seconds,
        offload=offload,
        split=split,
    )


def users_in(memory_bytes: int, footprint_of: FootprintOf) -> int:
    """Return how many users fit into a memory. Each further user needs as much as the second."""
    one, two = (_exact(footprint_of(n, 1)) for n in (1, 2))
    room = math.floor(memory_bytes / (1 + OVERHEAD)) - one
    return 0 if room < 0 else 1 + room // (two - one)


def _exact(footprint: Footprint) -> int:
    return footprint.weights + footprint.kv_cache + footprint.counts


def _bound(device: DeviceSpec, cost: StepCost) -> Bound:
    by_bytes = cost.n_bytes / device.bytes_per_s
    by_flops = cost.flops / device.flops_per_s if device.flops_per_s else 0.0
    return Bound(by_bytes, "bytes") if by_bytes >= by_flops else Bound(by_flops, "operations")


def _offload(device: DeviceSpec, memory: int, need: Footprint, cost: StepCost) -> Offload | None:
    """Return what it costs to leave the weights that do not fit in host memory; None if keys and
    values alone are too large, or the device computes in host memory."""
    room = math.floor(memory / (1 + OVERHEAD)) - need.kv_cache - need.counts
    if room < 0 or device.bus_bytes_per_s is None:
        return None
    host = need.weights - room
    step_bytes = round(cost.weight_bytes * host / need.weights)
    seconds, alone = step_bytes / device.bus_bytes_per_s, _bound(device, cost)
    return Offload(host, step_bytes, alone if alone.seconds > seconds else Bound(seconds, "bus"))


def _split(
    device: DeviceSpec,
    memory: int,
    costs: StepCosts,
    footprint_of: FootprintOf,
    users: int,
    decode: Bound,
) -> Split | None:
    """Return the fewest devices over which the model fits; None if one for each layer is too few,
    or there is no bus. A token passes one stage after another, so a step gets no faster."""
    if device.bus_bytes_per_s is None:
        return None
    least = max(2, footprint_of(users, 1).total // memory)  # a stage needs at least its share
    for n in range(least, min(MAX_STAGES, costs.config.n_layers) + 1):
        if footprint_of(users, n).total <= memory:
            step_bytes = (n - 1) * users * RESIDUAL_BYTES * costs.config.hidden_size
            seconds = decode.seconds + step_bytes / device.bus_bytes_per_s
            return Split(n, step_bytes, Bound(seconds, decode.by))
    return None
