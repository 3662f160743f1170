"""Choices of a device policy in words: what the engine does on an adapter, and why."""

from __future__ import annotations

from typing import NamedTuple

from gpu.info import AdapterInfo
from gpu.webgpu.device_policy import CHEAP_TIMESTAMP_US, NARROW_VENDORS, ROWS, DevicePolicy
from gpu.webgpu.tiling import Tuning


class PolicyChoice(NamedTuple):
    """One choice of a policy."""

    name: str
    value: str
    reason: str


def policy_choices(info: AdapterInfo, measured: Tuning | None) -> tuple[PolicyChoice, ...]:
    """Return how the engine uses an adapter, and why. `measured`: the tuning that was fastest on
    it, if it was autotuned."""
    policy = DevicePolicy.of(info)
    device = "a software device" if info.software else "a GPU"
    has = "has" if "subgroup" in info.features else "lacks"
    words = "64-bit integers" if policy.loads_64_bits else "32-bit words"
    return (
        _matmul(policy.tuning, info, measured),
        _activations(measured),
        PolicyChoice(
            "attention",
            f"{policy.attention_loads}, splits of {policy.kv_split_size} keys",
            f"{device} that {has} subgroups" if info.software else device,
        ),
        _attention_of_prompts(policy),
        PolicyChoice(
            "weights",
            f"{'textures' if policy.weights_in_textures else 'buffers'} in {words}, rows "
            + ("interleaved" if policy.interleaves_weights else "one after the other"),
            f"fastest measured on {device}" if info.software else "coalesced loads",
        ),
        PolicyChoice("rows", f"{policy.row_lanes} lanes", f"default for {device}"),
        PolicyChoice(
            "rounding to int8",
            f"at least {policy.rounding_workgroups} workgroups"
            if policy.rounding_workgroups > 1
            else "a workgroup for each row",
            f"default for {device}" if info.software else "predicted best; not measured yet",
        ),
        PolicyChoice(
            "sampling", f"at most {policy.sample_lanes} lanes a row", f"default for {device}"
        ),
        PolicyChoice(
            "prompt chunk",
            f"{policy.max_rows} tokens",
            "weights are read less often"
            if policy.max_rows > ROWS
            else "other work waits for less than a second",
        ),
        PolicyChoice(
            "steps in flight",
            str(policy.steps_in_flight),
            "results would come a step late" if info.software else "the GPU never waits",
        ),
        _layer_times(policy, info),
    )


def _matmul(default: Tuning, info: AdapterInfo, measured: Tuning | None) -> PolicyChoice:
    if measured is not None:
        reason = "fastest when measured on this adapter"
        return PolicyChoice("matmul", str(measured), reason)
    if info.software:
        reason = "default for a software device"
    elif info.vendor in NARROW_VENDORS:
        reason = f"predicted best for {info.vendor}; --probe has confirmed no other"
    else:
        reason = "default for a GPU; --probe has confirmed no other"
    return PolicyChoice("matmul", str(default), reason)


def _activations(measured: Tuning | None) -> PolicyChoice:
    if measured is None:
        reason = "int8 is taken only where it was measured to be faster"
        return PolicyChoice("activations of q8 and q4 weights", "f32", reason)
    q8 = measured.q8_activations
    reason = "int8 is faster" if q8 else "int8 gained too little when measured"
    return PolicyChoice("activations of q8 and q4 weights", "q8" if q8 else "f32", reason)


def _attention_of_prompts(policy: DevicePolicy) -> PolicyChoice:
    least = policy.shared_attention_workgroups
    if least is None:
        return PolicyChoice("attention of prompts", "as above", "default for a software device")
    reason = "predicted faster; not measured yet"
    return PolicyChoice("attention of prompts", f"shared from {least} workgroups on", reason)


def _layer_times(policy: DevicePolicy, info: AdapterInfo) -> PolicyChoice:
    if "timestamp-query-inside-passes" not in info.features:
        reason = "the driver takes no timestamps inside a pass"
        return PolicyChoice("layer times", "never", reason)
    every = f"every {policy.timed_every}th token"
    if info.software:
        return PolicyChoice("layer times", every, "timestamps interrupt the step")
    reason = (
        f"every token where a timestamp takes at most {CHEAP_TIMESTAMP_US} µs, measured at a start"
    )
    return PolicyChoice("layer times", every, reason)
