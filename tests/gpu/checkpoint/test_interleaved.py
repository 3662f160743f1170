"""Interleaved rows: the position of every word, the matrices that use the layout, and results that
do not depend on it in any bit."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.checkpoint import uploader, weights
from gpu.checkpoint.interleaved import INTERLEAVED_ROWS, deinterleave, interleave, rows_interleaved
from gpu.checkpoint.packing import FORMATS, row_words
from gpu.checks.rig import limited, with_info
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_models
from tests.gpu.on_device import stored_and_computed


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("k", [32, 33, 300])
def test_blocks_of_interleaved_rows_alternate_and_their_scales_follow(dtype: str, k: int) -> None:
    n, n_rows = 4, 12
    words, blocks, scale_bytes = FORMATS[dtype].block_words, -(-k // 32), FORMATS[dtype].scale_bytes
    packed = np.arange(n_rows * row_words(dtype, k), dtype=np.uint32).reshape(n_rows, -1)
    interleaved = interleave(dtype, k, packed, n, np.zeros_like(packed))
    want = []
    for first in range(0, n_rows, n):
        rows = packed[first : first + n]
        for block in range(blocks):
            want += [row[block * words : (block + 1) * words] for row in rows]
        if scale_bytes:
            numbers = rows[:, blocks * words :].copy().view(f"u{scale_bytes}")
            want.append(np.ascontiguousarray(numbers.T).reshape(-1).view(np.uint32))
    assert np.array_equal(interleaved.reshape(-1), np.concatenate(want))
    assert np.array_equal(deinterleave(dtype, k, interleaved, n), packed)


def test_rows_are_interleaved_on_software_devices_only(device: Device) -> None:
    software, gpu = as_software(device), as_software(device, False)
    for dtype, n in (("f32", 8), ("f16", 8), ("q8", 8), ("q4", 8)):
        assert rows_interleaved(software, dtype, 64, 48, 1) == n
        assert rows_interleaved(gpu, dtype, 64, 48, 1) == 1
    assert rows_interleaved(software, "f16", 64, 50, 1) == 1
    assert rows_interleaved(software, "f16", 64, 48, 6) == 8
    assert rows_interleaved(limited(software, 23 * 128), "f16", 64, 48, 6) == 1
    assert rows_interleaved(limited(software, 24 * 128), "f16", 64, 48, 6) == 8


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("dtype", [pytest.param("f16", marks=pytest.mark.slow), "q8", "q4"])
@pytest.mark.parametrize("name", ["qwen2", "mixtral"])
def test_results_are_the_same_to_the_bit(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    """Embedding, matmuls of one row and of many, experts and the output head."""
    folder = random_models.folder(name)

    def interleaved(software: bool) -> tuple[set[int], list[bytes], bytes]:
        for module in (uploader, weights):
            monkeypatch.setattr(
                module,
                "rows_interleaved",
                lambda device, *of: rows_interleaved(as_software(device, software), *of),
            )
        runner = driving.load(device, folder, dtype)
        widths = {matrix.interleaved for matrix in runner.model.matrices()}
        return widths, *stored_and_computed(runner)

    (widths, *one_by_one), (widths_interleaved, *in_groups) = interleaved(False), interleaved(True)
    assert widths == {1}
    assert INTERLEAVED_ROWS in widths_interleaved
    assert one_by_one == in_groups


def as_software(device: Device, software: bool = True) -> Device:
    return with_info(device, software=software)
