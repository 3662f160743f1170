"""Matrices that share one checkpoint tensor with others, as uploaded to the device: whole, and in
shards."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.weights import TensorSlice, WeightLoader, rotary_order
from gpu.checks.rig import Array, Arrays, limited, op_config
from gpu.errors import ModelError
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.on_device import stored_numbers

WIDTH = 50
ROW_BYTES = 64 * 4


@pytest.fixture(params=[1, 3], ids=["whole", "shards"])
def shards(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def loader(device: Device, weight: Array, n: int, shards: int) -> WeightLoader:
    """A loader of one tensor, whose matrices of n rows are cut into at least `n_shards` shards."""
    limit = -(-n // shards) * ROW_BYTES
    return WeightLoader(
        Arrays({"fused": weight, "bias": weight[:, 0]}), Memory(limited(device, limit)), "f32"
    )


def check(device: Device, matrix: Matrix, want: Array, shards: int) -> None:
    assert len(matrix.shards) >= shards
    assert matrix.sources == ("fused",)
    assert np.array_equal(stored_numbers(Memory(device), matrix), want)


def fused(*shape: int) -> Array:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("rotary_dim", [0, 4, 12])
def test_query_key_and_value_interleaved_by_head(
    device: Device, shards: int, rotary_dim: int
) -> None:
    """GPT-NeoX: query, key and value of a head, then those of the next."""
    n_heads, d = 4, 12
    config = op_config(n_heads=n_heads, n_kv_heads=n_heads, head_dim=d, hidden_size=WIDTH)
    weight = fused(3 * n_heads * d, WIDTH)
    rows = np.arange(len(weight)).reshape(n_heads, 3, d)
    q, k, v = (TensorSlice("fused", rows[:, part].reshape(-1), len(weight)) for part in range(3))
    load = loader(device, weight, len(weight), shards)
    by_head = weight.reshape(n_heads, 3, d, WIDTH).swapaxes(0, 1).copy()
    by_head[:2] = by_head[:2][:, :, rotary_order(d, rotary_dim)]
    matrix = load.qkv("qkv", q, k, v, config, rotary_dim)
    check(device, matrix, by_head.reshape(-1, WIDTH), shards)
    q, k, v = (TensorSlice("bias", cut.rows, cut.n_all) for cut in (q, k, v))
    biases = load.qkv_biases("qkv.bias", q, k, v, config, rotary_dim)
    assert np.array_equal(load.memory.read(biases), by_head[..., 0].reshape(-1))


def test_gate_and_up_in_one(device: Device, shards: int) -> None:
    """Phi 3: gate and up stacked."""
    weight = fused(2 * 30, WIDTH)
    gate, up = (TensorSlice("fused", rows, 60) for rows in np.split(np.arange(60), 2))
    matrix = loader(device, weight, 60, shards).gate_up("gate_up", gate, up, 30, WIDTH)
    want = np.stack([weight[:30], weight[30:]], axis=1).reshape(60, WIDTH)
    check(device, matrix, want, shards)


def test_a_matrix_that_was_saved_transposed(device: Device, shards: int) -> None:
    """GPT-2."""
    weight = fused(WIDTH, 40)
    source = TensorSlice("fused", np.arange(40), 40, transposed=True)
    matrix = loader(device, weight, 40, shards).matrix("up", source, 40, WIDTH)
    check(device, matrix, weight.T, shards)


def test_a_tensor_of_another_shape_is_refused(device: Device) -> None:
    load = loader(device, fused(40, WIDTH), 40, 1)
    source = TensorSlice("fused", np.arange(20), 41)
    with pytest.raises(ModelError, match=r"fused has shape \(40, 50\), but .* \(41, 50\)"):
        load.matrix("half", source, 20, WIDTH)
    transposed = TensorSlice("fused", np.arange(40), 40, transposed=True)
    with pytest.raises(ModelError, match=r"fused has shape \(40, 50\), but .* \(50, 40\)"):
        load.matrix("up", transposed, 40, WIDTH)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(12, 0), (12, 8), (80, 20), (16, 16)])
def test_rows_without_rotation_keep_their_order(head_dim: int, rotary_dim: int) -> None:
    order = rotary_order(head_dim, rotary_dim)
    assert sorted(order) == list(range(head_dim))
    assert np.array_equal(order[:rotary_dim], rotary_order(rotary_dim))
    assert np.array_equal(order[rotary_dim:], np.arange(rotary_dim, head_dim))
