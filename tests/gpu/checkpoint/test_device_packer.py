"""DevicePacker: the bits of `pack` on every device, what it leaves to the host, and its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest

from gpu.checkpoint import device_packer, pack_pool, uploader
from gpu.checkpoint.device_packer import LANE_BLOCKS, DevicePacker
from gpu.checkpoint.packing import pack, row_words
from gpu.checkpoint.weights import WeightLoader
from gpu.checks.rig import Array, Arrays
from gpu.errors import ModelError
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.inexact import WAYS
from tests.gpu.other_devices import make_inexact

POISON = 0xDEADBEEF
RNG = np.random.default_rng(0)


def normal(n: int, k: int, size: float = 0.05) -> Array:
    return RNG.normal(0, size, (n, k)).astype(np.float32)


def between_levels(n: int, k: int) -> Array:
    """Rows whose numbers lie halfway between levels, or beside that."""
    halves = (RNG.integers(0, 30, (n, k)) / 2).astype(np.float32)
    halves.reshape(n, -1, 32)[..., :2] = 0, 15
    return np.asarray(
        np.nextafter(halves, np.float32(99) * RNG.integers(-1, 2, (n, k))), np.float32
    )


ROWS = {
    "normal": normal(400, 2304),
    "bfloat16": (normal(64, 1024).view(np.uint32) & 0xFFFF0000).view(np.float32),
    "float16": normal(64, 1024).astype(np.float16).astype(np.float32),
    "blocks that are odd in number": normal(33, 32 * 33),
    "one block": normal(1, 32),
    "zeros": np.zeros((5, 64), np.float32),
    "zeros with a sign": -np.zeros((5, 64), np.float32),
    "equal numbers": np.full((5, 64), 0.3, np.float32),
    "few numbers that are not zero": normal(64, 320) * (RNG.random((64, 320)) < 0.05),
    "scales that are subnormal in float16": normal(64, 320, 3e-7),
    "scales below those": normal(64, 320, 1e-9),
    "large numbers": normal(64, 320, 9000),
    "the largest numbers": np.where(normal(9, 320) > 0, 65519, -65504).astype(np.float32),
    "a distant middle": (1000 + normal(64, 320, 0.01)).astype(np.float32),
    "many sizes": normal(256, 320, 1) * 10.0 ** RNG.integers(-8, 4, (256, 320)).astype(np.float32),
    "integers": RNG.integers(-8, 8, (64, 320)).astype(np.float32),
    "between levels": between_levels(64, 320),
}
LEFT = {
    "subnormal numbers": np.full((3, 32), 1e-40, np.float32),
    "squares that are subnormal": normal(3, 32, 1e-20),
    "a range whose square is": np.nextafter(np.float32(1e-9), normal(3, 32, 1), dtype=np.float32),
}
"""Rows that the device leaves to the host."""


@pytest.fixture
def packer(device: Device) -> Iterator[DevicePacker]:
    made = DevicePacker(device)
    yield made
    made.close()


@pytest.fixture(params=[None, *WAYS], ids=str)
def every_packer(
    request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DevicePacker]:
    """On the device as it is, and inexact in every way."""
    if request.param:
        make_inexact(monkeypatch, request.param)
    made = DevicePacker(device)
    yield made
    made.close()


@pytest.fixture
def by_host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each chunk that the host packs into a matrix, after the first of a storage type."""
    found: list[int] = []

    def noted(dtype: str, rows: Array, name: str = "", out: Array | None = None) -> Array:
        if out is not None:
            found.append(len(rows))
        return pack(dtype, rows, name, out)

    monkeypatch.setattr(device_packer, "pack", noted)
    return found


def packed(packer: DevicePacker, dtype: str, rows: Array) -> Array:
    out = np.full((len(rows), row_words(dtype, rows.shape[1])), POISON, np.uint32)
    packer.pack(dtype, rows, "w", out)
    return out


@pytest.mark.parity
@pytest.mark.parametrize("dtype", LANE_BLOCKS)
def test_a_device_gives_the_bits_of_the_host(
    every_packer: DevicePacker, by_host: list[int], dtype: str
) -> None:
    for name, rows in ROWS.items():
        assert np.array_equal(packed(every_packer, dtype, rows), pack(dtype, rows)), name
    assert not by_host
    assert every_packer._is_exact == {dtype: True}


@pytest.mark.parity
@pytest.mark.parametrize("name", LEFT)
def test_numbers_that_may_be_taken_for_zero_are_left_to_the_host(
    packer: DevicePacker, by_host: list[int], name: str
) -> None:
    rows = normal(9, 64)
    rows[3:6, 32:] = LEFT[name]
    for n_chunks in (1, 2):
        assert np.array_equal(packed(packer, "q4", rows), pack("q4", rows))
        assert by_host == [9] * n_chunks
    assert np.array_equal(packed(packer, "q4", rows[:3]), pack("q4", rows[:3]))
    assert by_host == [9, 9], "the next chunk is the device's again"


@pytest.mark.parametrize("dtype", LANE_BLOCKS)
@pytest.mark.parametrize("bad", [65520.0, -1e6, np.inf])
def test_numbers_that_float16_cannot_hold_are_refused_by_name(
    packer: DevicePacker, dtype: str, bad: float
) -> None:
    rows = normal(4, 64)
    rows[2, 40] = bad * (127 if dtype == "q8" else 1)
    with pytest.raises(ModelError, match=f"w cannot be stored as {dtype}"):
        packed(packer, dtype, rows)


@pytest.mark.parametrize("dtype", LANE_BLOCKS)
def test_rows_come_in_chunks_and_of_every_length(
    packer: DevicePacker, by_host: list[int], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Longer rows before shorter ones leave their words behind, and more rows than a chunk has are
    cut; rows that are no whole blocks, or longer than a chunk, are the host's."""
    monkeypatch.setattr(device_packer, "CHUNK_WEIGHTS", 2048)
    for n, k in [(9, 1024), (70, 96), (3, 2048)]:
        rows = normal(n, k)
        assert np.array_equal(packed(packer, dtype, rows), pack(dtype, rows))
    assert not by_host
    for n, k in [(7, 33), (7, 31), (2, 2080)]:
        rows = normal(n, k)
        assert np.array_equal(packed(packer, dtype, rows), pack(dtype, rows))
    assert by_host == [7, 7, 1, 1]


@pytest.fixture
def wrong_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that gives other bits."""
    run = DevicePacker._run

    def wrong(self: DevicePacker, dtype: str, rows: Array, out: Array) -> bool:
        is_whole = run(self, dtype, rows, out)
        out[0, 0] ^= 1
        return is_whole

    monkeypatch.setattr(DevicePacker, "_run", wrong)


@pytest.mark.usefixtures("wrong_bits")
def test_a_device_with_other_bits_packs_no_more(
    packer: DevicePacker, by_host: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    rows = normal(8, 64)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert np.array_equal(packed(packer, "q4", rows), pack("q4", rows))
            assert not packer.packs("q4")
    assert packer.packs("q8")
    assert by_host == [8] * 3
    (record,) = caplog.records
    assert "quantises weights inexactly, so the host does it" in record.getMessage()


# ---- the loader ---------------------------------------------------------------------------------


@pytest.fixture
def packers(monkeypatch: pytest.MonkeyPatch) -> list[DevicePacker]:
    """Those of loaders, which let the device pack from the first weight on."""
    monkeypatch.setattr(uploader, "DEVICE_PACKS_FROM", 0)
    made: list[DevicePacker] = []

    def noted(device: Device) -> DevicePacker:
        made.append(DevicePacker(device))
        return made[-1]

    monkeypatch.setattr(uploader, "DevicePacker", noted)
    return made


def loaded(device: Device, dtype: str) -> Array:
    """Return the words of a matrix on the device."""
    memory = Memory(device)
    with WeightLoader(Arrays({"w": ROWS["normal"]}), memory, dtype) as load:
        matrix = load.matrix("w", "w", *ROWS["normal"].shape)
    return memory.read(matrix.shards[0].tensor)


@pytest.mark.parametrize("dtype", LANE_BLOCKS)
def test_a_loader_packs_on_the_device_and_frees_its_memory(
    device: Device, packers: list[DevicePacker], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    found = loaded(device, dtype)
    assert len(packers) == 1
    assert packers[0]._is_exact == {dtype: True}
    with pytest.raises(Exception, match="destroyed"):
        packed(packers[0], dtype, ROWS["normal"])
    monkeypatch.setattr(uploader, "DEVICE_PACKS_FROM", ROWS["normal"].size)
    assert np.array_equal(found, loaded(device, dtype))
    assert len(packers) == 1, "the host packs what is little"


@pytest.mark.usefixtures("wrong_bits")
def test_threads_pack_for_a_device_with_other_bits(
    device: Device, packers: list[DevicePacker], by_host: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that threads have read already are packed where they are."""
    monkeypatch.setattr(uploader, "CHUNK_WEIGHTS", {"q4": 2304})
    monkeypatch.setattr(pack_pool, "WORKERS", 1)
    found = loaded(device, "q4")
    n_rows = ROWS["normal"].shape[0]
    assert 1 <= sum(by_host) < n_rows, "the rest is packed by threads"
    monkeypatch.setattr(uploader, "DEVICE_PACKS_FROM", ROWS["normal"].size)
    assert np.array_equal(found, loaded(device, "q4"))


def test_a_loader_that_fails_frees_the_memory(device: Device, packers: list[DevicePacker]) -> None:
    bad = Arrays({"bad": np.full((8, 32), 1e6, np.float32)})
    load = WeightLoader(bad, Memory(device), "q4")
    with pytest.raises(ModelError, match="bad cannot be stored as q4"), load:
        load.matrix("bad", "bad", 8, 32)
    assert len(packers) == 1
    assert load._device_packer is None
