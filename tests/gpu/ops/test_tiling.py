"""How products are cut."""

from __future__ import annotations

import pytest

from gpu.webgpu.device import Device
from gpu.webgpu.lanes import can_trade
from gpu.webgpu.tiling import GPU, SOFTWARE, SOFTWARE_LOADS, Tuning, even_strands

TUNINGS = [GPU, SOFTWARE, SOFTWARE_LOADS]


@pytest.mark.parametrize("tuning", TUNINGS)
def test_strands_depend_on_the_matrix_alone(tuning: Tuning) -> None:
    for blocks in (1, 2, 18, 48, 255):
        strands = {tuning.tile(rows, 960, blocks).strands for rows in (1, 2, 4, 8, 16, 32, 64, 128)}
        assert len(strands) == 1


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("n_rows", [1, 2, 4, 8, 16, 32, 64, 128])
def test_a_tile_has_no_more_rows_than_the_step(tuning: Tuning, n_rows: int) -> None:
    tile = tuning.tile(n_rows, 576, 18)
    assert n_rows % tile.m == 0
    assert tile.n % 2 == 0, "gate and up lie side by side"
    assert tile.strands * tile.columns <= 256


@pytest.mark.parametrize(("blocks", "strands"), [(18, 9), (48, 16), (64, 16), (1, 8), (17, 9)])
def test_strands_leave_few_lanes_idle_in_the_last_round(blocks: int, strands: int) -> None:
    assert even_strands(blocks, 16) == strands


def test_a_software_device_gets_an_even_number_of_workgroups() -> None:
    assert SOFTWARE.tile(1, 576, 18).n == 4
    assert SOFTWARE.tile(1, 3072, 18).n == 8


@pytest.mark.parity
def test_lanes_trade_where_subgroups_have_eight(device: Device) -> None:
    if "SwiftShader" in device.info.name:
        assert not can_trade(device.wgpu), "its subgroups have four lanes"
    elif "llvmpipe" in device.info.name:
        assert can_trade(device.wgpu)
    assert device.tuning.trade == (device.info.software and can_trade(device.wgpu))
