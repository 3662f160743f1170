"""Rows that lie abreast: where every word goes, which matrices lie so, and that no bit of a product
or an embedding depends on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.checkpoint import uploader, weights
from gpu.checkpoint.abreast import SOFTWARE_ROWS, abreast, one_by_one, rows_abreast
from gpu.checkpoint.packing import FORMATS, row_words
from gpu.webgpu.device import Device
from tests.gpu import driving, random_models
from tests.gpu.on_device import stored_and_computed
from tests.gpu.rig import limited


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("k", [32, 33, 300])
def test_blocks_of_all_rows_in_turn_and_then_their_grids(dtype: str, k: int) -> None:
    n, n_rows = 4, 12
    words, blocks, grid_bytes = FORMATS[dtype].block_words, -(-k // 32), FORMATS[dtype].grid_bytes
    packed = np.arange(n_rows * row_words(dtype, k), dtype=np.uint32).reshape(n_rows, -1)
    laid = abreast(dtype, k, packed, n, np.zeros_like(packed))
    want = []
    for first in range(0, n_rows, n):
        rows = packed[first : first + n]
        for block in range(blocks):
            want += [row[block * words : (block + 1) * words] for row in rows]
        if grid_bytes:
            numbers = rows[:, blocks * words :].copy().view(f"u{grid_bytes}")
            want.append(np.ascontiguousarray(numbers.T).reshape(-1).view(np.uint32))
    assert np.array_equal(laid.reshape(-1), np.concatenate(want))
    assert np.array_equal(one_by_one(dtype, k, laid, n), packed)


def test_which_rows_lie_abreast(device: Device) -> None:
    software, gpu = as_software(device), as_software(device, False)
    for dtype, n in (("f32", 8), ("f16", 8), ("q8", 8), ("q4", 8)):
        assert rows_abreast(software, dtype, 64, 48, 1) == n
        assert rows_abreast(gpu, dtype, 64, 48, 1) == 1
    assert rows_abreast(software, "f16", 64, 50, 1) == 1
    assert rows_abreast(software, "f16", 64, 48, 6) == 8
    assert rows_abreast(limited(software, 23 * 128), "f16", 64, 48, 6) == 1
    assert rows_abreast(limited(software, 24 * 128), "f16", 64, 48, 6) == 8


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["f16", "q8", "q4"])
@pytest.mark.parametrize("name", ["qwen2", "mixtral"])
def test_no_bit_depends_on_it(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    """Embedding, products of one row and of many, experts and the output head."""
    folder = random_models.folder(name)

    def laid(software: bool) -> tuple[set[int], list[bytes], bytes]:
        for module in (uploader, weights):
            monkeypatch.setattr(
                module,
                "rows_abreast",
                lambda device, *of: rows_abreast(as_software(device, software), *of),
            )
        runner = driving.load(device, folder, dtype)
        widths = {matrix.abreast for matrix in runner.model.matrices()}
        return widths, *stored_and_computed(runner)

    (widths, *row_after_row), (widths_abreast, *side_by_side) = laid(False), laid(True)
    assert widths == {1}
    assert SOFTWARE_ROWS in widths_abreast
    assert row_after_row == side_by_side


def as_software(device: Device, software: bool = True) -> Device:
    return replace(device, info=replace(device.info, software=software))
