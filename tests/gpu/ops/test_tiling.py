"""Tiling of matmuls."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.tuning.tile_choices import tile_choices
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import NARROW
from gpu.webgpu.subgroup_shuffle import can_shuffle
from gpu.webgpu.tiling import (
    GPU,
    M_SIZES,
    MAX_SLOTS,
    QUAD,
    SOFTWARE,
    SOFTWARE_LOADS,
    Tuning,
    even_split_k,
)

OF_GPUS = [
    tuning
    for default in (GPU, NARROW, replace(GPU, max_m=8))
    for choice in tile_choices(default, max_rows=128)
    for tuning in (default, *choice.candidates(default))
]
"""The defaults of GPUs, and everything that may be chosen in place of them."""
TUNINGS = [GPU, SOFTWARE, SOFTWARE_LOADS]
BLOCKS = (1, 2, 9, 11, 16, 18, 22, 26, 48, 64, 90, 255, 256)


@pytest.mark.parametrize("tuning", TUNINGS)
def test_split_k_depends_on_the_matrix_alone(tuning: Tuning) -> None:
    for blocks in (1, 2, 18, 48, 255):
        split_k = {
            tuning.tile(rows, 960, blocks, may_share=may_share).split_k
            for rows in (1, 2, 4, 8, 16, 32, 64, 128)
            for may_share in (False, True)
        }
        assert len(split_k) == 1


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("n_rows", [1, 2, 4, 8, 16, 32, 64, 128])
def test_a_tile_has_no_more_rows_than_the_step(tuning: Tuning, n_rows: int) -> None:
    tile = tuning.tile(n_rows, 576, 18)
    assert n_rows % tile.m == 0
    assert (tile.sums_n or tile.n) % 2 == 0, "gate and up lie side by side"
    assert tile.lanes <= 256
    assert tile.split_k == 1 or tile.split_k % 4 == 0, "lanes are added in quads"


def test_many_rows_share_blocks_on_a_gpu() -> None:
    assert GPU.tile(16, 576, 18, may_share=True).loads == "coalesced"
    assert GPU.tile(32, 576, 18, may_share=True).loads == "shared"
    assert GPU.tile(128, 576, 18, may_share=True).group == (64, 64)
    assert GPU.tile(128, 576, 18).loads == "coalesced", "there is a norm to fold in"
    assert GPU.tile(128, 8192, 18, may_share=True).group == (128, 64)
    assert GPU.tile(512, 2048, 18, may_share=True).group == (128, 64)
    assert GPU.tile(128, 8064, 18, may_share=True).group == (64, 64), "few workgroups"
    small = replace(GPU, shared_m=4)
    assert small.tile(128, 8192, 18, may_share=True).group == (64, 64)
    assert SOFTWARE.tile(128, 576, 18, may_share=True).loads == "shuffle"


def test_many_rows_of_experts_share_blocks_in_tiles_of_64_rows() -> None:
    def group(tuning: Tuning, n_rows: int, n: int) -> tuple[int, int]:
        return tuning.tile(n_rows, n, 18, may_share=True, of_expert=True).group

    assert group(GPU, 128, 8200) == group(GPU, 32, 65) == (64, 128)
    assert group(GPU, 32, 64) == (64, 64), "few columns"
    assert group(replace(GPU, shared_m=4), 128, 8200) == (64, 64), "little workgroup memory"
    assert group(GPU, 31, 8200) == GPU.tile(16, 8200, 18).group, "few rows"
    assert group(SOFTWARE, 128, 8200) == SOFTWARE.tile(128, 8200, 18).group


def test_the_largest_vocabulary_fits_in_a_grid() -> None:
    """That of Gemma 3, with the hidden size of its 27B model."""
    for tuning in OF_GPUS:
        tile = tuning.tile(1, 262_208, 168)
        assert -(-262_208 // tile.group[1]) <= 65_535
        assert tile.lanes <= 256


@pytest.mark.parametrize("dtype", FORMATS)
def test_lanes_and_workgroup_memory_suffice_for_few_rows(dtype: str) -> None:
    for tuning, m, blocks, in_quads in product(OF_GPUS, M_SIZES, BLOCKS, (False, True)):
        tile = tuning.tile(m, 8200, blocks, in_quads=in_quads, dtype=dtype)
        assert tile.lanes <= 256
        assert tile.quads * tile.rounds <= MAX_SLOTS
        assert (tile.split_k // QUAD) % tile.quads == 0, "lanes have equally many chains"
        assert tile.group[1] % tile.sums_n == 0
        assert m * tile.group[1] // tile.sums_n <= tile.lanes, "all sums have a lane"
        assert tile.workgroup_bytes <= (32 if m > 8 else 16) << 10
        assert m * tile.n * tile.quads * tile.quarters <= 64, "more sums than registers"


@pytest.mark.parametrize(("blocks", "split_k"), [(18, 9), (48, 16), (64, 16), (1, 8), (17, 9)])
def test_split_k_leaves_few_lanes_idle_in_the_last_round(blocks: int, split_k: int) -> None:
    assert even_split_k(blocks, 16) == split_k


def test_a_software_device_gets_an_even_number_of_workgroups() -> None:
    assert SOFTWARE.tile(1, 576, 18).n == 4
    assert SOFTWARE.tile(1, 3072, 18).n == 8


@pytest.mark.parity
def test_software_devices_shuffle_if_subgroups_have_eight_lanes(device: Device) -> None:
    if "SwiftShader" in device.info.name:
        assert not can_shuffle(device.wgpu), "its subgroups have four lanes"
    elif "llvmpipe" in device.info.name:
        assert can_shuffle(device.wgpu)
    assert device.tuning.subgroup_shuffle == (device.info.software and can_shuffle(device.wgpu))
