"""GGUF files that are malformed or of an unknown kind are refused with the reason."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.gguf.file import is_gguf, open_gguf
from gpu.gguf.header import MAX_TEXT_BYTES
from gpu.text.tokenizer import Tokenizer
from tests.gpu.gguf.shapes import BIASES

Make = Callable[..., tuple[Path, Path]]


def header(n_tensors: int = 0, n_values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tensor(name: str = "t", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return string(name) + sizes + struct.pack("<IQ", kind, offset)


def value(key: str, kind: int, data: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + data


FULL = bytes(4096)
MALFORMED = {
    "nothing": (b"", "too few"),
    "another format": (b"PK\3\4" + FULL, "not a GGUF file"),
    "an old version": (header(version=1) + FULL, "GGUF version 1"),
    "big-endian": (header(version=3 << 24) + FULL, "little-endian"),
    "tensors without end": (header(n_tensors=2**63) + FULL, "of each are supported"),
    "values without end": (header(n_values=2**40) + FULL, "of each are supported"),
    "more values than there are": (
        header(n_values=3) + value("k", 4, struct.pack("<I", 1)), "are left"),
    "a key without end": (header(n_values=1) + struct.pack("<Q", 2**60) + FULL, "are left"),
    "a key that is not text": (header(n_values=1) + struct.pack("<Q", 2) + b"\xff\xfe" + FULL,
                               "not UTF-8"),
    "an unknown value": (header(n_values=1) + value("k", 99, b"") + FULL, "value type 99"),
    "an array without end": (
        header(n_values=1) + value("k", 9, struct.pack("<IQ", 4, 2**62)) + FULL, "are left"),
    "strings without end": (
        header(n_values=1) + value("k", 9, struct.pack("<IQ", 8, 2**61)) + FULL, "ends before"),
    "an array of arrays": (
        header(n_values=1) + value("k", 9, struct.pack("<IQ", 9, 1)) + FULL,
        "expected strings or numbers"),
    "a key twice": (
        header(n_values=2) + 2 * value("k", 4, struct.pack("<I", 1)) + FULL, "given twice"),
    "an alignment of 0": (
        header(n_values=1) + value("general.alignment", 4, struct.pack("<I", 0)) + FULL,
        "general.alignment"),
    "five dimensions": (header(n_tensors=1) + tensor(dims=(1,) * 5) + FULL, "5 dimensions"),
    "an unknown type": (header(n_tensors=1) + tensor(kind=4) + FULL, "type 4; supported: F32"),
    "a product past 2^64": (
        header(n_tensors=1) + tensor(dims=(2**32, 2**32)) + FULL, "below 2\\^48"),
    "a product past 2^64 beside a zero": (
        header(n_tensors=1) + tensor(dims=(2**61, 0)) + FULL, "below 2\\^48"),
    "half a block": (header(n_tensors=1) + tensor(dims=(33,), kind=8) + FULL, "multiple of 32"),
    "a tensor past the end": (
        header(n_tensors=1) + tensor(dims=(32, 1 << 20)) + FULL, "it is truncated"),
    "an offset past the end": (
        header(n_tensors=1) + tensor(offset=2**63) + FULL, "it is truncated"),
    "an odd offset": (header(n_tensors=1) + tensor(offset=8) + FULL, "multiple of 32"),
    "tensors over each other": (
        header(n_tensors=2) + tensor("a") + tensor("b", offset=96) + FULL, "where tensor 'a' ends"),
    "a tensor twice": (header(n_tensors=2) + 2 * tensor() + FULL, "given twice"),
}  # fmt: skip


@pytest.mark.parametrize("fault", MALFORMED)
def test_an_inconsistent_file_is_refused(tmp_path: Path, fault: str) -> None:
    data, words = MALFORMED[fault]
    path = tmp_path / "malformed.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=words) as refused:
        open_gguf(path)
    assert str(refused.value).startswith(str(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        ModelConfig.from_folder(tmp_path / "none.gguf")
    (tmp_path / "folder.gguf").mkdir()
    assert not is_gguf(tmp_path / "folder.gguf")


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
def test_a_model_without_its_sizes_is_refused(make: Make, key: str) -> None:
    _, path = make(BIASES, **{key: None})
    with pytest.raises(ModelError, match="is missing"):
        ModelConfig.from_folder(path)


def test_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.gguf"
    entries = value("general.architecture", 8, string("llama")) + value("split.count", 2, b"\3\0")
    path.write_bytes(header(n_values=2) + entries + FULL)
    with pytest.raises(ModelError, match="one of 3 files of a model"):
        ModelConfig.from_folder(path)


def test_another_architecture_is_refused_by_name(make: Make) -> None:
    _, path = make(BIASES, architecture="mamba")
    for open_ in (ModelConfig.from_folder, Checkpoint.open):
        with pytest.raises(ModelError, match="'mamba' is not supported in a GGUF file"):
            open_(path)


def test_an_unknown_tensor_is_refused(make: Make) -> None:
    """Here: biases that only Llama has, which would be left out."""
    _, path = make(BIASES, architecture="qwen2")
    with pytest.raises(ModelError, match=r"'blk\.0\.\w+\.bias' is not known for qwen2 models"):
        Checkpoint.open(path)


@pytest.mark.parametrize("n_bytes", [MAX_TEXT_BYTES, 1 << 40])
def test_strings_that_would_fill_the_memory_are_refused(tmp_path: Path, n_bytes: int) -> None:
    """The file is sparse: as long as its strings say, without taking space."""
    path = tmp_path / "long.gguf"
    path.write_bytes(header(n_values=1) + string("key") + struct.pack("<IQ", 8, n_bytes))
    os.truncate(path, n_bytes + 4096)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"its strings up to .* at most 33,554,432"):
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


N_MUTANTS = 150


def test_mutated_headers_are_read_or_refused(make: Make, tmp_path: Path) -> None:
    """Bytes of the header are replaced, removed or doubled: the result is a model or a ModelError,
    never another error, and never a read past the end."""
    _, path = make(BIASES, "Q8_0")
    original = path.read_bytes()
    end = min(len(original), 30_000)
    rng = np.random.default_rng(5)
    n_refused = 0
    target = tmp_path / "mutated.gguf"
    for _ in range(N_MUTANTS):
        data = bytearray(original)
        for _ in range(int(rng.integers(1, 4))):
            at, size = int(rng.integers(0, end)), int(rng.integers(1, 9))
            match int(rng.integers(0, 4)):
                case 0:
                    data[at : at + size] = rng.bytes(size)
                case 1:
                    del data[at : at + size]
                case 2:
                    data[at:at] = data[at : at + size]
                case 3:  # a length or a count
                    data[at : at + 8] = struct.pack("<Q", int(2 ** rng.uniform(0, 64)) % 2**64)
        target.write_bytes(data)
        try:
            ModelConfig.from_folder(target)
            Tokenizer.load(target)
            checkpoint = Checkpoint.open(target)
            for name in checkpoint.names():
                checkpoint.read_f32(name)
        except ModelError:
            n_refused += 1
    assert 30 < n_refused < N_MUTANTS
