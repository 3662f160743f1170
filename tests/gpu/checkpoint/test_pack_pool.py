"""PackPool: order of the chunks, reuse of memory, and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpu.checkpoint.pack_pool import MAX_WAITING, WORKERS, PackBuffer, Packed, PackPool
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.weights import WeightLoader
from gpu.checks.rig import Array, Arrays
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.models.registry import MODELS
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.models import random_models


def filled(value: int, buffer: PackBuffer) -> Packed:
    words = buffer.words((2, 3))
    words[:] = value
    return words


def test_chunks_are_written_in_order_and_reuse_memory() -> None:
    ahead, got, memory = PackPool(), [], set()

    def put(packed: Packed) -> None:
        got.append(packed.copy())
        memory.add(packed.ctypes.data)

    for i in range(40):
        ahead.add(partial(filled, i), put)
    ahead.finish()
    assert [int(found[1, 2]) for found in got] == list(range(40))
    assert len(memory) <= WORKERS + MAX_WAITING + 1


def test_a_limited_number_of_chunks_is_packed_ahead() -> None:
    """Only a limited number: pending chunks take memory."""
    ahead, begun, most = PackPool(), threading.Semaphore(0), WORKERS + MAX_WAITING + 1

    def fill(buffer: PackBuffer) -> Packed:
        begun.release()
        return buffer.words((1, 1))

    got: list[Packed] = []
    for _ in range(most):
        ahead.add(fill, got.append)
    for _ in range(most):
        assert begun.acquire(timeout=5)
    assert not got
    ahead.add(fill, got.append)
    assert len(got) == 1
    ahead.finish()
    assert len(got) == most + 1


def refused(_: PackBuffer) -> Packed:
    raise ModelError("no such weights")


@pytest.mark.parametrize("n_after", [0, 3, 30])
def test_an_error_ends_packing(n_after: int) -> None:
    """Earlier chunks are written, later ones are not."""
    ahead, got = PackPool(), []
    with pytest.raises(ModelError, match="no such weights"):
        run(ahead, n_after, lambda packed: got.append(int(packed[0, 0])))
    assert got == [0, 1]
    ahead.add(partial(filled, 7), lambda packed: got.append(int(packed[0, 0])))
    ahead.finish()
    assert got == [0, 1, 7]


def run(ahead: PackPool, n_after: int, put: Callable[[Packed], None]) -> None:
    ahead.add(partial(filled, 0), put)
    ahead.add(partial(filled, 1), put)
    ahead.add(refused, put)
    for _ in range(n_after):
        ahead.add(partial(filled, 2), put)
    ahead.finish()


def test_a_buffer_grows_and_does_not_shrink() -> None:
    buffer = PackBuffer()
    small, large = buffer.numbers((2, 3)), buffer.numbers((20, 30))
    assert small.shape == (2, 3)
    assert large.shape == (20, 30)
    large[:] = 4
    assert np.all(buffer.numbers((5, 7)) == 4)


# ---- loading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "q4"])
@pytest.mark.parametrize("name", ["gemma3", "gpt_neox", "mixtral"])
def test_matrices_are_the_same_packed_ahead_or_one_by_one(
    device: Device, name: str, dtype: str
) -> None:
    """One is packed while another is uploaded; padding of rows is zero though buffers are
    reused."""
    folder = random_models.folder(name)
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    found: list[list[Array]] = []
    for by_with in (False, True):
        memory = Memory(device)
        load = WeightLoader(checkpoint, memory, dtype)
        if by_with:
            with load:
                model = MODELS[config.model_type](config, load, memory, 64)
        else:
            model = MODELS[config.model_type](config, load, memory, 64)
        shards = [shard for matrix in model.matrices() for shard in matrix.shards]
        found.append([memory.read(shard.tensor) for shard in shards])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


def test_an_error_while_packing_is_raised_at_the_end_at_the_latest(device: Device) -> None:
    good, bad = np.ones((8, 32), np.float32), np.full((8, 32), 1e6, np.float32)
    load = WeightLoader(Arrays({"good": good, "bad": bad}), Memory(device), "q4")
    with pytest.raises(ModelError, match="bad cannot be stored as q4"), load:  # noqa: PT012
        load.matrix("bad", "bad", 8, 32)
        load.matrix("good", "good", 8, 32)


def test_another_exception_is_not_hidden(device: Device, tmp_path: Path) -> None:
    load = WeightLoader(Arrays({"good": np.ones((8, 32), np.float32)}), Memory(device), "q4")
    with pytest.raises(ModelError, match="no tensor missing"), load:  # noqa: PT012
        load.matrix("good", "good", 8, 32)
        load.matrix("missing", "missing", 8, 32)
