"""The policy of a device follows from its adapter's description alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gpu.checks.rig import op_config
from gpu.info import AdapterInfo
from gpu.plans.capture_buffers import captured_rows
from gpu.step import MAX_ROWS
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DISCRETE, NARROW, NARROW_VENDORS, DevicePolicy
from gpu.webgpu.tiling import GPU, SOFTWARE
from gpu.webgpu.vendors import vendor_of


def policy(
    *features: str,
    software: bool = True,
    backend: str = "Vulkan",
    kind: str = "",
    workgroup_bytes: int = 32 << 10,
    vendor: str = "",
) -> DevicePolicy:
    limits = {"max-compute-workgroup-storage-size": workgroup_bytes}
    return DevicePolicy.of(
        AdapterInfo("", "", backend, kind, software, features, (), limits, vendor)
    )


def test_a_gpu_ignores_features_that_help_software_devices() -> None:
    found = policy("subgroup", "shader-int64", software=False)
    assert found.tuning == GPU
    assert found.lib == {}
    assert found.max_loop_rounds is None
    assert found.attention_loads == "coalesced"
    assert found.shared_attention_workgroups == 8
    assert not found.interleaves_weights
    assert not found.weights_in_textures


def test_only_a_discrete_gpu_takes_long_chunks_of_a_prompt() -> None:
    assert policy(software=False, kind=DISCRETE).max_rows == MAX_ROWS
    assert policy(software=False, kind=DISCRETE).shared_attention_workgroups == 36
    assert policy(software=False, kind="integrated GPU").max_rows == 128
    assert policy().max_rows == 128


def test_only_a_discrete_gpu_has_loops_unrolled() -> None:
    assert policy(software=False, kind=DISCRETE).tuning.unrolls_loops
    assert not policy(software=False, kind="integrated GPU").tuning.unrolls_loops
    assert not policy().tuning.unrolls_loops


@pytest.mark.parametrize(
    ("layers", "width", "weights"),
    [(30, 576, 270 << 20), (16, 2048, 2500 << 20), (32, 4096, 4500 << 20)],
)
def test_a_discrete_gpu_captures_its_longest_chunks(layers: int, width: int, weights: int) -> None:
    config = op_config(n_layers=layers, hidden_size=width)

    def rows(policy: DevicePolicy) -> int:
        device = SimpleNamespace(policy=policy, max_binding_bytes=2**31 - 1)
        n_bytes = {"weights": weights, "kv_cache": 0}
        memory = SimpleNamespace(device=device, n_bytes=n_bytes, max_rows=policy.max_rows)
        return captured_rows(config, cast("Memory", memory))

    assert rows(policy(software=False, kind=DISCRETE)) == 512
    assert 32 <= rows(policy(software=False)) <= 128


def test_a_discrete_gpu_splits_the_attention_of_more_rows() -> None:
    assert policy(software=False, kind=DISCRETE).split_rows == 32
    assert policy(software=False, kind="integrated GPU").split_rows == policy().split_rows == 8


def test_workgroups_merge_only_where_barriers_order_what_others_see() -> None:
    assert policy(software=False, kind=DISCRETE).merged_splits == 16
    for backend in ("Metal", "D3D12"):
        assert policy(software=False, kind=DISCRETE, backend=backend).merged_splits == 0
    assert (
        policy(software=False, kind="integrated GPU").merged_splits == policy().merged_splits == 0
    )


def test_a_gpu_with_many_cores_rounds_a_row_in_more_workgroups() -> None:
    assert policy().rounding_workgroups == 1
    assert policy(software=False, kind="integrated GPU").rounding_workgroups == 16
    assert policy(software=False, kind=DISCRETE).rounding_workgroups == 32


def test_a_discrete_gpu_samples_with_more_lanes_if_it_has_the_memory() -> None:
    assert policy(software=False, kind=DISCRETE).sample_lanes == 256
    assert policy(software=False, kind=DISCRETE, workgroup_bytes=16 << 10).sample_lanes == 128
    assert policy(software=False).sample_lanes == 128
    assert policy(software=False).sum_parts == 16
    assert (policy().sample_lanes, policy().sum_parts) == (128, 1)


def test_large_tiles_need_more_workgroup_memory_than_every_gpu_has() -> None:
    assert policy(software=False).tuning.shared_m == 8
    assert policy(software=False, workgroup_bytes=16 << 10).tuning.shared_m == 4
    assert policy(software=False, workgroup_bytes=32 << 10).tuning.max_m == 16
    assert policy(software=False, workgroup_bytes=31 << 10).tuning.max_m == 8


@pytest.mark.parametrize("vendor", NARROW_VENDORS)
def test_a_gpu_of_a_phone_takes_more_columns_at_a_time(vendor: str) -> None:
    found = policy(software=False, vendor=vendor).tuning
    assert found == NARROW
    assert policy(software=False, vendor="NVIDIA").tuning == GPU


@pytest.mark.parametrize(
    ("vendor_id", "name", "vendor"),
    [
        (0x10DE, "", "NVIDIA"),
        (0x4D4F4351, "some chip", "Qualcomm"),
        (0, "Apple M2 Max", "Apple"),
        (0, "Adreno (TM) 740", "Qualcomm"),
        (65541, "llvmpipe (LLVM 15.0.6, 256 bits)", ""),
    ],
)
def test_a_vendor_is_known_by_number_or_name(vendor_id: int, name: str, vendor: str) -> None:
    assert vendor_of(vendor_id, name) == vendor


@pytest.mark.parametrize(("us", "every"), [(None, 8), (0.0, 1), (0.2, 1), (0.4, 8), (30.0, 8)])
def test_layers_are_timed_in_every_step_only_where_timestamps_are_cheap(
    us: float | None, every: int
) -> None:
    assert policy(software=False).timed_every == 8
    assert policy(software=False).with_timestamp_cost(us).timed_every == every


@pytest.mark.parametrize(
    ("features", "backend", "lib"),
    [
        ((), "Vulkan", {}),
        (("shader-int64",), "DX12", {"words": "words_64"}),
        (
            ("shader-int64",),
            "Vulkan",
            {"words": "words_64", "weight_store": "weight_store_texture"},
        ),
    ],
)
def test_a_software_device_loads_as_wide_as_it_can(
    features: tuple[str, ...], backend: str, lib: dict[str, str]
) -> None:
    found = policy(*features, backend=backend)
    assert found.tuning == SOFTWARE
    assert found.lib == lib | {"strip_summaries": "strip_summaries_own"}
    assert found.max_loop_rounds == 65_535


def test_attention_shuffles_only_with_subgroups() -> None:
    assert policy("subgroup").attention_loads == "shuffle"
    assert policy().shared_attention_workgroups is None
    assert policy().attention_loads == "own"


def test_an_open_device_has_the_policy_of_its_description(device: Device) -> None:
    assert device.policy == DevicePolicy.of(device.info)
