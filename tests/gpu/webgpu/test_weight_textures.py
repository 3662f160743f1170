"""Weights in textures: layout, rows per texture, and results bit-identical to buffers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.checkpoint.interleaved import max_shard_rows, rows_interleaved
from gpu.checkpoint.packing import FORMATS
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_models
from tests.gpu.on_device import stored_and_computed


@pytest.fixture(name="textures")
def textures_of(device: Device) -> Device:
    """The device with weights in textures."""
    return with_textures(device, True)


def with_textures(device: Device, wanted: bool) -> Device:
    return replace(device, policy=replace(device.policy, weights_in_textures=wanted))


def with_side(device: Device, texels: int) -> Device:
    limits = {**device.info.limits, "max-texture-dimension-2d": texels}
    return replace(device, info=replace(device.info, limits=limits))


@pytest.mark.parametrize("interleaved", [1, 4])
def test_texture_lines_are_read_where_they_were_written(textures: Device, interleaved: int) -> None:
    memory = Memory(textures)
    tensor = memory.weights("weight", 12, 20, interleaved)
    assert (tensor.buffer.width, tensor.buffer.height) == (5 * interleaved, 12 // interleaved)
    assert memory.n_bytes["weights"] == tensor.n_bytes == 12 * 20 * 4
    rows = np.arange(1, 241, dtype=np.uint32).reshape(12, 20)
    memory.write(tensor, rows[8:], at=8 * 80)
    assert np.array_equal(memory.read(tensor), np.where(np.arange(12)[:, None] < 8, 0, rows))
    memory.write(tensor, rows[:4])
    memory.write(tensor, rows[4:8], at=4 * 80)
    assert np.array_equal(memory.read(tensor), rows)


@pytest.mark.parametrize(("n_rows", "at"), [(2, 0), (4, 160)])
def test_parts_of_a_texture_line_are_refused(textures: Device, n_rows: int, at: int) -> None:
    memory = Memory(textures)
    tensor = memory.weights("weight", 12, 20, 4)
    rows = np.ones((n_rows, 20), np.uint32)
    with pytest.raises(
        ValueError, match=rf"lines of 320 bytes, but got {n_rows * 80} bytes at {at}"
    ):
        memory.write(tensor, rows, at=at)
    assert not memory.read(tensor).any()


def test_a_texture_holds_as_many_lines_as_the_device_takes(textures: Device) -> None:
    narrow = with_side(textures, 64)
    assert max_shard_rows(narrow, 32, 1) == 64
    assert max_shard_rows(narrow, 32, 8) == 64 * 8
    assert max_shard_rows(narrow, 36, 8) == 0  # lines of 72 texels
    assert (
        max_shard_rows(with_side(textures, 1 << 30), 1 << 20, 1) == textures.max_binding_bytes >> 22
    )


def test_rows_too_long_for_a_texture_line_get_their_own(textures: Device) -> None:
    policy = replace(textures.policy, interleaves_weights=True)
    software = replace(textures, policy=policy)
    assert rows_interleaved(with_side(software, 64), "f16", 64, 48, 1) == 8
    assert rows_interleaved(with_side(software, 63), "f16", 64, 48, 1) == 1


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(pytest.param("qwen2", dtype, marks=pytest.mark.slow) for dtype in FORMATS),
        *(pytest.param("mixtral", dtype, marks=pytest.mark.slow) for dtype in ("f32", "f16", "q8")),
        ("mixtral", "q4"),
    ],
)
def test_no_bit_depends_on_weight_textures(device: Device, name: str, dtype: str) -> None:
    """Embedding, matmuls of one row and of many, experts and the output head, also with matrices in
    several textures."""
    folder = random_models.folder(name)

    def logits(on: Device) -> tuple[int, list[bytes], bytes]:
        runner = driving.load(on, folder, dtype)
        n_shards = max(len(matrix.shards) for matrix in runner.model.matrices())
        return n_shards, *stored_and_computed(runner)

    _, *in_buffers = logits(with_textures(device, False))
    _, *in_textures = logits(with_textures(device, True))
    longest = {"f32": 100, "f16": 200, "q8": 120, "q4": 80}[dtype]
    n_shards, *in_several = logits(with_side(with_textures(device, True), longest))
    assert n_shards > 1
    assert in_buffers == in_textures == in_several
