"""Disk cache of quantised weights: the same bits, or packed again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gpu.checkpoint import weight_cache as kept
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.weight_cache import open_weight_cache
from gpu.checkpoint.weights import WeightLoader
from gpu.checks.rig import limited
from gpu.config import ModelConfig
from gpu.models.registry import MODELS
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama
from tests.gpu.on_device import packed_rows

PLENTY = 1 << 30

Bits = dict[str, npt.NDArray[np.uint32]]
Load = Callable[..., tuple[Bits, int]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model for this test alone."""
    return Path(shutil.copytree(random_llama.folder("derived_head"), tmp_path / "model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "MIN_WEIGHTS", 0)
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def load(device: Device, folder: Path, cache: Path, packed: list[str]) -> Load:
    """Load the model; return the words of its matrices and the number of chunks that were
    packed."""

    def loaded(
        dtype: str = "q4", limit_bytes: int = PLENTY, on: Device | None = None
    ) -> tuple[Bits, int]:
        packed.clear()
        config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
        memory = Memory(on or device)
        with (
            open_weight_cache(checkpoint, config, dtype, limit_bytes) as kept,
            WeightLoader(checkpoint, memory, dtype, weight_cache=kept) as loader,
        ):
            model = MODELS[config.model_type](config, loader, memory, 64)
        return {m.name: packed_rows(memory, m) for m in model.matrices()}, len(packed)

    return loaded


def files(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


def same(a: Bits, b: Bits) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_the_second_start_packs_nothing_and_has_the_same_bits(
    load: Load, cache: Path, dtype: str
) -> None:
    without, n = load(dtype, 0)
    assert n > 0
    assert not files(cache)
    first, n_first = load(dtype)
    second, n_second = load(dtype)
    assert (n_first, n_second) == (n, 0)
    assert same(first, without)
    assert same(second, without)
    assert len(files(cache)) == 1


def test_the_cache_file_is_a_safetensors_file(load: Load, cache: Path) -> None:
    from safetensors import safe_open

    bits, _ = load()
    with safe_open(files(cache)[0], "numpy") as file:
        assert set(file.keys()) == set(bits)
        for name in bits:
            assert np.array_equal(file.get_tensor(name), bits[name])


def test_shards_of_another_size_are_cut_from_the_cached_matrix(
    load: Load, cache: Path, device: Device
) -> None:
    """Another device may have a smaller largest binding."""
    whole, _ = load()
    largest = max(words.nbytes for words in whole.values())
    parts, n_packed = load(on=limited(device, largest // 3))
    assert n_packed == 0
    assert same(whole, parts)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_float_types_are_not_cached(load: Load, cache: Path, dtype: str) -> None:
    load(dtype)
    assert not files(cache)


def test_small_models_are_not_cached(
    load: Load, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MIN_WEIGHTS", 1 << 24)
    load()
    assert not files(cache)


# ---- changed sources -------------------------------------------------------------------------


def rewrite(folder: Path, *, keep_time: bool = False) -> None:
    """Flip the sign of a weight in the middle."""
    path = folder / "model.safetensors"
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 | 3] ^= 0x80
    path.write_bytes(data)
    later = 0 if keep_time else 1_000_000_000
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + later))


def test_a_changed_weight_file_is_noticed(load: Load, folder: Path, cache: Path) -> None:
    old, _ = load()
    rewrite(folder)
    new, n_packed = load()
    assert n_packed > 0
    assert same(new, load("q4", 0)[0])
    assert not same(new, old)


def test_other_weights_of_the_same_size_and_time_are_noticed(
    load: Load, folder: Path, cache: Path
) -> None:
    load()
    rewrite(folder, keep_time=True)
    assert load()[1] > 0


def test_another_config_and_other_code_are_noticed(
    load: Load, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    monkeypatch.setattr(kept, "_code_digest", lambda: "other")
    assert load()[1] > 0
    assert load()[1] == 0
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    assert load()[1] > 0
    assert len(files(cache)) == 3


# ---- damage ----------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytearray], bytes]] = {
    "nothing left": lambda data: b"",
    "cut short": lambda data: bytes(data[:-100]),
    "longer": lambda data: bytes(data) + b"\0\0\0\0",
    "header length": lambda data: b"\xff" * 8 + bytes(data[8:]),
    "header": lambda data: bytes(data[:9]) + b"!" + bytes(data[10:]),
    "another key": lambda data: bytes(data.replace(b'"key":', b'"kez":', 1)),
    "another shape": lambda data: bytes(data.replace(b'"shape":[', b'"shape":[1', 1)),
    "one bit of a matrix": lambda data: bytes(data[:-1]) + bytes([data[-1] ^ 1]),
    "zeros in a matrix": lambda data: bytes(data[:-4096]) + bytes(4096),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_cache_file_is_noticed_and_replaced(load: Load, cache: Path, what: str) -> None:
    want, _ = load()
    (path,) = files(cache)
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[what](bytearray(whole)))
    for n_start in range(3):
        got, n_packed = load()
        assert same(got, want)
        assert n_packed > 0 or n_start > 0
    assert n_packed == 0
    assert path.read_bytes() == whole


# ---- the cache folder ------------------------------------------------------------------------


def test_a_load_that_fails_leaves_nothing(folder: Path, load: Load, cache: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2:] = b"\xff\xff"  # NaN, in the last tensor
    path.write_bytes(data)
    with pytest.raises(Exception, match="NaN"):
        load()
    assert not files(cache)


def test_the_least_recently_used_file_is_deleted_first(load: Load, cache: Path) -> None:
    load("q8")
    (q8,) = files(cache)
    load("q4")
    (q4,) = set(files(cache)) - {q8}
    long_ago = cache / f"{kept.PREFIX}0{kept.SUFFIX}"
    long_ago.write_bytes(bytes(1000))
    os.utime(long_ago, (1, 1))
    os.utime(q4, (2, 2))
    os.utime(q8, (3, 3))
    assert load("q4")[1] == 0  # was just used, so it is not the oldest
    q4_bytes = q4.read_bytes()
    q4.unlink()
    load("q4", q8.stat().st_size + len(q4_bytes))
    assert files(cache) == sorted([q4, q8])
    q4.unlink()
    load("q4", q8.stat().st_size + len(q4_bytes) - 1)
    assert files(cache) == [q4]


def test_a_model_beyond_the_limit_is_not_cached(load: Load, cache: Path) -> None:
    load("q4", 1000)
    assert not files(cache)


def test_abandoned_unfinished_files_are_deleted(load: Load, cache: Path) -> None:
    cache.mkdir()
    old, new = (cache / f"{kept.PREFIX}{n}{kept.UNFINISHED}" for n in "ab")
    stranger = cache / "tuning-1.json"
    for path in (old, new, stranger):
        path.touch()
    os.utime(old, (1, 1))
    os.utime(stranger, (1, 1))
    load()
    assert not old.exists()
    assert new.exists()
    assert stranger.exists()


def test_an_unwritable_folder_does_not_fail_loading(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, _ = load("q4", 0)
    monkeypatch.setenv("TOKENGLASS_CACHE", os.devnull)
    assert same(load()[0], want)


def test_a_disk_error_while_writing_does_not_fail_loading(
    load: Load, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, _ = load("q4", 0)

    def full(self: kept.WeightCacheWriter) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept.WeightCacheWriter, "_header", full)
    assert same(load()[0], want)
    assert not files(cache)
