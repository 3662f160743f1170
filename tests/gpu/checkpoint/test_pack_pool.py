"""Ahead of matrices packed ahead: their order, their memory, and what goes wrong with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpu.checkpoint.ahead import AHEAD, WORKERS, Ahead, Packed, Room
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.models.registry import MODELS
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu import random_models
from tests.gpu.rig import Array, Arrays


def filled(value: int, room: Room) -> Packed:
    words = room.words((2, 3))
    words[:] = value
    return words


def test_they_are_put_in_order_and_reuse_their_memory() -> None:
    ahead, got, memory = Ahead(), [], set()

    def put(packed: Packed) -> None:
        got.append(packed.copy())
        memory.add(packed.ctypes.data)

    for i in range(40):
        ahead.add(partial(filled, i), put)
    ahead.finish()
    assert [int(found[1, 2]) for found in got] == list(range(40))
    assert len(memory) <= WORKERS + AHEAD + 1


def test_some_are_filled_before_they_are_asked_for() -> None:
    """And no more than that: what is not in place takes memory."""
    ahead, begun, most = Ahead(), threading.Semaphore(0), WORKERS + AHEAD + 1

    def fill(room: Room) -> Packed:
        begun.release()
        return room.words((1, 1))

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


def refused(_: Room) -> Packed:
    raise ModelError("no such weights")


@pytest.mark.parametrize("n_after", [0, 3, 30])
def test_what_goes_wrong_ends_it(n_after: int) -> None:
    """With what was added before it in place, and nothing that came after."""
    ahead, got = Ahead(), []
    with pytest.raises(ModelError, match="no such weights"):
        run(ahead, n_after, lambda packed: got.append(int(packed[0, 0])))
    assert got == [0, 1]
    ahead.add(partial(filled, 7), lambda packed: got.append(int(packed[0, 0])))
    ahead.finish()
    assert got == [0, 1, 7]


def run(ahead: Ahead, n_after: int, put: Callable[[Packed], None]) -> None:
    ahead.add(partial(filled, 0), put)
    ahead.add(partial(filled, 1), put)
    ahead.add(refused, put)
    for _ in range(n_after):
        ahead.add(partial(filled, 2), put)
    ahead.finish()


def test_a_room_grows_and_does_not_shrink() -> None:
    room = Room()
    small, large = room.numbers((2, 3)), room.numbers((20, 30))
    assert small.shape == (2, 3)
    assert large.shape == (20, 30)
    large[:] = 4
    assert np.all(room.numbers((5, 7)) == 4)


# ---- loading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "q4"])
@pytest.mark.parametrize("name", ["gemma3", "gpt_neox", "mixtral"])
def test_matrices_are_the_same_ahead_and_one_by_one(device: Device, name: str, dtype: str) -> None:
    """One is packed while another is uploaded; where rows have padding, others lay before."""
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


def test_what_cannot_be_loaded_is_told_at_the_end_at_the_latest(device: Device) -> None:
    good, bad = np.ones((8, 32), np.float32), np.full((8, 32), 1e6, np.float32)
    load = WeightLoader(Arrays({"good": good, "bad": bad}), Memory(device), "q4")
    with pytest.raises(ModelError, match="bad cannot be stored as q4"), load:  # noqa: PT012
        load.matrix("bad", "bad", 8, 32)
        load.matrix("good", "good", 8, 32)


def test_another_mistake_is_not_hidden(device: Device, tmp_path: Path) -> None:
    load = WeightLoader(Arrays({"good": np.ones((8, 32), np.float32)}), Memory(device), "q4")
    with pytest.raises(ModelError, match="no tensor missing"), load:  # noqa: PT012
        load.matrix("good", "good", 8, 32)
        load.matrix("missing", "missing", 8, 32)
