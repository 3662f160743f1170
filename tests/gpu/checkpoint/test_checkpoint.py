"""Reading of safetensors: exact values, row by row, and an error for every kind of malformed
file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.errors import ModelError


def write_file(path: Path, header: Any, body: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + text + body)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def save(folder: Path, tensors: dict[str, Any], file: str = "model.safetensors") -> Path:
    """Write with the safetensors library, which is independent of the reader under test."""
    from safetensors.torch import save_file

    save_file(tensors, folder / file)
    return folder


@pytest.fixture
def torch() -> Any:
    import torch

    return torch


# ---- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1,), (7,), (5, 3), (33, 20), (3, 5, 2), (0, 4), ()])
def test_float_tensors_are_read_exactly(
    tmp_path: Path, torch: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    odd = torch.randint(0, 2, (3,), dtype=torch.uint8)  # leaves what follows unaligned
    weight = (torch.randn(shape) * 100).to(getattr(torch, dtype))
    checkpoint = Checkpoint.open(save(tmp_path, {"a.odd": odd, "w": weight}))
    expected = weight.float().numpy()
    got = checkpoint.read_f32("w")
    assert got.dtype == np.float32
    assert got.shape == shape
    assert np.array_equal(got, expected)
    assert np.array_equal(checkpoint.read_f16("w"), weight.to(torch.float16).numpy())
    assert checkpoint.shape("w") == shape
    assert checkpoint.dtype("w") == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]


def test_every_finite_bfloat16_is_read_exactly(tmp_path: Path, torch: Any) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    patterns = patterns[(patterns & 0x7F80) != 0x7F80]
    weight = torch.from_numpy(patterns.view(np.int16)).view(torch.bfloat16)
    got = Checkpoint.open(save(tmp_path, {"w": weight})).read_f32("w")
    assert np.array_equal(got.view(np.uint32), weight.float().numpy().view(np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_are_the_rows_of_the_whole(tmp_path: Path, torch: Any, dtype: str) -> None:
    checkpoint = Checkpoint.open(
        save(
            tmp_path, {"w": torch.randn(10, 6).to(getattr(torch, dtype)), "scalar": torch.ones(())}
        )
    )
    whole = checkpoint.read_f32("w")
    for rows in (slice(0, 10), slice(3, 4), slice(7, 100), slice(4, 4), slice(None, -2)):
        assert np.array_equal(checkpoint.read_f32("w", rows), whole[rows])
        assert np.array_equal(checkpoint.read_f16("w", rows), whole[rows].astype(np.float16))
    assert checkpoint.read_f32("scalar", slice(0, 1)) == 1.0


def test_a_read_array_may_be_modified_without_changing_the_file(tmp_path: Path, torch: Any) -> None:
    checkpoint = Checkpoint.open(save(tmp_path, {"w": torch.ones(4, 4)}))
    first = checkpoint.read_f32("w")
    first[:] = 7
    assert type(first) is np.ndarray
    assert np.array_equal(checkpoint.read_f32("w"), np.ones((4, 4), np.float32))


def test_float16_overflow_is_refused(tmp_path: Path, torch: Any) -> None:
    largest = torch.tensor([[1.0], [65504.0], [-65519.0]])  # the last rounds down to 65504
    over = torch.tensor([[1.0], [-65520.0]])  # and this one up to infinity
    checkpoint = Checkpoint.open(save(tmp_path, {"largest": largest, "over": over}))
    assert checkpoint.read_f16("largest")[:, 0].tolist() == [1.0, 65504.0, -65504.0]
    assert checkpoint.read_f32("over")[1, 0] == -65520.0
    assert checkpoint.read_f16("over", slice(0, 1)).tolist() == [[1.0]]
    with pytest.raises(ModelError, match=r"tensor 'over' holds 65520, .* load .* dtype f32"):
        checkpoint.read_f16("over")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_that_are_not_finite_are_refused(
    tmp_path: Path, torch: Any, dtype: str, value: float
) -> None:
    weight = torch.tensor([1.0, value], dtype=getattr(torch, dtype))
    checkpoint = Checkpoint.open(save(tmp_path, {"w": weight}))
    for read in (checkpoint.read_f32, checkpoint.read_f16):
        with pytest.raises(ModelError, match="tensor 'w' holds NaN or infinity"):
            read("w")


def test_names_membership_and_parameters(tmp_path: Path, torch: Any) -> None:
    tensors = {
        "model.embed_tokens.weight": torch.zeros(10, 4),
        "lm_head.weight": torch.zeros(10, 4),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
        "model.norm.weight": torch.zeros(4),
    }
    checkpoint = Checkpoint.open(save(tmp_path, tensors))
    assert set(checkpoint.names()) == set(tensors)
    assert "lm_head.weight" in checkpoint
    assert "lm_head.bias" not in checkpoint
    assert checkpoint.parameters() == 84
    assert checkpoint.parameters(tie_embeddings=True) == 44


def test_an_unknown_tensor_is_refused(tmp_path: Path, torch: Any) -> None:
    checkpoint = Checkpoint.open(
        save(tmp_path, {"ids": torch.zeros(3, dtype=torch.int64), "w": torch.zeros(3)})
    )
    for ask in (checkpoint.shape, checkpoint.dtype, checkpoint.read_f32, checkpoint.read_f16):
        with pytest.raises(ModelError, match="tensor 'b' is missing"):
            ask("b")
    for read in (checkpoint.read_f32, checkpoint.read_f16):
        with pytest.raises(ModelError, match="dtype I64; expected one of F32, F16, BF16"):
            read("ids")


# ---- malformed files -------------------------------------------------------------------------

ONE = {"w": entry("F32", [2], 0, 8)}
EIGHT = bytes(8)


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        (b"{ ", b"", "header: not valid JSON"),
        (b"[]", b"", r"header must be a JSON object, but is \[\]"),
        (b"{\xff}", b"", "header: not valid JSON"),
        (b'{"w": 1, "w": 2}', b"", "'w' is given twice"),
        ({"w": 3}, b"", "tensor 'w': its entry must be a JSON object, but is 3"),
        ({"w": entry("F31", [2], 0, 8)}, EIGHT, "tensor 'w': dtype must be one of .*'F31'"),
        ({"w": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, EIGHT, "dtype must be"),
        ({"w": {"shape": [2], "data_offsets": [0, 8]}}, EIGHT, "dtype is missing"),
        ({"w": {"dtype": "F32", "data_offsets": [0, 8]}}, EIGHT, "shape is missing"),
        ({"w": {"dtype": "F32", "shape": [2]}}, EIGHT, "data_offsets is missing"),
        ({"w": entry("F32", [-2], 0, 8)}, EIGHT, "shape must be a list of sizes"),
        ({"w": entry("F32", [0, 2**61], 0, 0)}, b"", r"sizes with a product below 2\^48"),
        ({"w": entry("F32", [2.0], 0, 8)}, EIGHT, "shape must be a list of sizes"),  # type: ignore[list-item]
        ({"w": entry("F32", [True, 2], 0, 8)}, EIGHT, "shape must be a list of sizes"),
        ({"w": {**ONE["w"], "data_offsets": [0]}}, EIGHT, r"data_offsets must be \[begin, end\]"),
        ({"w": entry("F32", [2], 8, 0)}, EIGHT, "begin ≤ end"),
        ({"w": entry("F32", [2], -8, 0)}, EIGHT, "data_offsets must be"),
        ({"w": entry("F32", [2], 0, 8)}, bytes(7), "ends at byte 8 .* the file ends at 7"),
        ({"w": entry("F32", [2**31, 2**31], 0, 2**64)}, EIGHT, "the file ends at 8"),
        ({"w": entry("F32", [3], 0, 8)}, EIGHT, "needs 12 bytes, but data_offsets span 8"),
        ({"w": entry("F32", [2**62, 4], 0, 0)}, b"", "needs .* bytes, but data_offsets span 0"),
        ({**ONE, "v": entry("F32", [2], 4, 12)}, bytes(12), "'v' overlaps tensor 'w'"),
        ({**ONE, "v": entry("F32", [2], 0, 8)}, EIGHT, "overlaps"),
        (
            {**ONE, "v": entry("F32", [2], 12, 20)},
            bytes(20),
            "gap after tensor 'w'.* byte 8, .* 12",
        ),
        ({"w": entry("F32", [2], 4, 12)}, bytes(12), "gap after the header"),
        (ONE, bytes(9), "1 bytes follow the last tensor"),
        ({}, bytes(9), "9 bytes follow the last tensor"),
    ],
)
def test_an_inconsistent_header_is_refused(
    tmp_path: Path, header: Any, body: bytes, message: str
) -> None:
    write_file(tmp_path / "model.safetensors", header, body)
    with pytest.raises(ModelError, match=message) as caught:
        Checkpoint.open(tmp_path)
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 10_000, 100_000_001, 2**63, 2**64 - 1])
def test_a_wrong_header_length_is_refused(tmp_path: Path, length: int) -> None:
    write_file(tmp_path / "model.safetensors", ONE, EIGHT, length)
    with pytest.raises(ModelError, match=f"header says it has {length} bytes"):
        Checkpoint.open(tmp_path)


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path, torch: Any) -> None:
    path = save(tmp_path, {"w": torch.randn(4, 4), "b": torch.randn(4)}) / "model.safetensors"
    whole = path.read_bytes()
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(ModelError):
            Checkpoint.open(tmp_path)


def test_metadata_and_empty_tensors_are_accepted(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "e": entry("F32", [0, 3], 0, 0), **ONE}
    write_file(tmp_path / "model.safetensors", header, EIGHT)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names() == ("e", "w")
    assert checkpoint.read_f32("e").shape == (0, 3)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected model\.safetensors"):
        Checkpoint.open(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"'pytorch_model\.bin' must be converted"):
        Checkpoint.open(tmp_path)
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        Checkpoint.open(tmp_path)


# ---- shards ----------------------------------------------------------------------------------


def write_index(folder: Path, weight_map: Any) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_one_checkpoint(tmp_path: Path, torch: Any) -> None:
    first, second = {"a": torch.randn(3)}, {"b": torch.randn(2, 2), "left.over": torch.zeros(1)}
    save(tmp_path, first, "model-00001-of-00002.safetensors")
    save(tmp_path, second, "model-00002-of-00002.safetensors")
    write_index(
        tmp_path,
        {"b": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"},
    )
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names() == ("b", "a")
    assert np.array_equal(checkpoint.read_f32("a"), first["a"].numpy())
    assert np.array_equal(checkpoint.read_f32("b"), second["b"].numpy())


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"w": "absent.safetensors"}, r"absent\.safetensors: not found"),
        (
            {"w": "here.safetensors", "v": "here.safetensors"},
            "expected tensor 'v' in here.safetensors",
        ),
        (
            {"w": "../outside.safetensors"},
            "w must be the name of a .safetensors file in the same folder",
        ),
        (
            {"w": "sub/inside.safetensors"},
            "w must be the name of a .safetensors file in the same folder",
        ),
        (
            {"w": "..\\outside.safetensors"},
            "w must be the name of a .safetensors file in the same folder",
        ),
        ({"w": "/etc/passwd"}, "w must be the name of a .safetensors file in the same folder"),
        ({"w": ".."}, "w must be the name of a .safetensors file in the same folder"),
        ({"w": "here.safetensors/../../outside.safetensors"}, "w must be the name of"),
        ({"w": ""}, "w must be the name of a .safetensors file in the same folder"),
        ({"w": 3}, "w must be a string"),
        ({"w": "zero\0byte"}, "name of a .safetensors file in the same folder"),
        ({}, "weight_map must be an object that names"),
        (["w"], "weight_map must be an object"),
    ],
)
def test_an_inconsistent_index_is_refused(tmp_path: Path, weight_map: Any, message: str) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for path in ("here.safetensors", "sub/inside.safetensors", "../outside.safetensors"):
        write_file(folder / path, ONE, EIGHT)
    write_index(folder, weight_map)
    with pytest.raises(ModelError, match=message):
        Checkpoint.open(folder)
