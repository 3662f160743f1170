"""Pruned checkpoints, written from files made here and read by the safetensors library: remaining
tensors are the same to the byte, and a failed write leaves nothing."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpu.checkpoint import pruning, writer
from gpu.checkpoint.pruning import write_pruned
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.safetensors_files import BITS, INDEX, WEIGHTS, open_safetensors
from gpu.errors import ModelError

KEPT = {1: (0, 2, 5), 3: (1, 2, 3)}
"""Layers 0 and 2 have no experts."""
N_EXPERTS, WIDTH, INNER = 6, 7, 5
OF_MIXTRAL = {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def tensors(names: dict[str, str] | None = None) -> dict[str, Any]:
    """Return tensors of several dtypes, named as in Qwen or by `names`."""
    rng, called = np.random.default_rng(0), names or {}
    mlp = called.get("mlp", "mlp")
    found: dict[str, Any] = {
        "model.embed_tokens.weight": rng.normal(size=(11, WIDTH)).astype(np.float32),
        "model.layers.0.mlp.gate_proj.weight": rng.normal(size=(INNER, WIDTH)).astype(np.float16),
        "model.layers.2.mlp.up_proj.weight": rng.normal(size=(INNER, WIDTH)).astype(np.float16),
        "odd": np.arange(3, dtype=np.uint8),
    }
    for layer in KEPT:
        inner = f"model.layers.{layer}.{mlp}"
        found[f"{inner}.gate.weight"] = rng.normal(size=(N_EXPERTS, WIDTH)).astype(np.float16)
        for expert in range(N_EXPERTS):
            for part in ("gate_proj", "up_proj", "down_proj"):
                shape = (WIDTH, INNER) if part == "down_proj" else (INNER, WIDTH)
                name = f"{inner}.experts.{expert}.{called.get(part, part)}.weight"
                found[name] = rng.normal(size=shape).astype(np.float32)
    found["model.layers.1.mlp.shared_expert.up_proj.weight"] = np.ones((2, WIDTH), np.float32)
    found["model.layers.1.mlp.shared_expert_gate.weight"] = np.ones((1, WIDTH), np.float32)
    return found


def expected(whole: dict[str, Any], mlp: str = "mlp") -> dict[str, Any]:
    """Return the expected tensors: experts removed, the others renumbered."""
    found = {name: data for name, data in whole.items() if ".experts." not in name}
    for layer, kept in KEPT.items():
        router = f"model.layers.{layer}.{mlp}.gate.weight"
        found[router] = np.stack([whole[router][expert] for expert in kept])
        for new, old in enumerate(kept):
            before = f"model.layers.{layer}.{mlp}.experts."
            for name, data in whole.items():
                if name.startswith(f"{before}{old}."):
                    found[f"{before}{new}." + name.removeprefix(f"{before}{old}.")] = data
    return found


def expect_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, data in want.items():
        assert got[name].dtype == data.dtype, name
        assert np.array_equal(got[name], data), name


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with one weight file and the other files of a model."""
    folder = tmp_path / "whole"
    folder.mkdir()
    save_file(tensors(), folder / WEIGHTS, {"format": "pt"})
    config = {"model_type": "qwen3_moe", "num_experts": N_EXPERTS, "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps({**config, "unknown": ["kept"]}))
    (folder / "tokenizer.json").write_text('{"ä": 1}', "utf-8")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (folder / "pytorch_model.bin").write_bytes(b"the whole model again")
    (folder / "original").mkdir()
    return folder


def left_beside(folder: Path) -> set[str]:
    return {path.name for path in folder.parent.iterdir()}


def test_remaining_tensors_are_the_same_to_the_byte(source: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "pruned", []
    write_pruned(
        source, out, KEPT, {"notes.json": "{}"}, lambda done, message: seen.append((done, message))
    )
    want = expected(tensors())
    expect_same(load_file(out / WEIGHTS), want)
    assert {path.name for path in out.iterdir()} == {
        WEIGHTS, "config.json", "tokenizer.json", "chat_template.jinja", "notes.json",
        "additional_chat_templates",
    }  # fmt: skip
    assert (out / "additional_chat_templates" / "tool_use.jinja").read_text() == "{{ tools }}"
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    config = json.loads((out / "config.json").read_text())
    assert config == {**json.loads((source / "config.json").read_text()), "num_experts": 3}
    assert list(config)[:2] == ["model_type", "num_experts"], "in the order of the file"
    total = sum(data.nbytes for data in want.values()) / 1e6
    assert seen[-1] == (1.0, f"wrote {total:.0f} MB of weights")
    assert left_beside(out) == {"whole", "pruned"}
    names = Checkpoint.open(out).names()
    widths = [want[name].itemsize for name in names]
    assert widths == sorted(widths, reverse=True), "each at a multiple of its number's size"


def test_mixtrals_tensor_names_and_config_keys_are_known(source: Path, tmp_path: Path) -> None:
    whole = tensors(OF_MIXTRAL)
    save_file(whole, source / WEIGHTS)
    (source / "config.json").write_text('{"num_local_experts": 6}')
    write_pruned(source, tmp_path / "pruned", KEPT)
    expect_same(load_file(tmp_path / "pruned" / WEIGHTS), expected(whole, "block_sparse_moe"))
    assert json.loads((tmp_path / "pruned/config.json").read_text()) == {"num_local_experts": 3}


def test_experts_of_a_layer_in_one_tensor(source: Path, tmp_path: Path) -> None:
    """The layout of transformers in memory, which some checkpoints use too."""
    rng = np.random.default_rng(1)
    whole = {name: data for name, data in tensors().items() if ".experts." not in name}
    for layer in KEPT:
        for part, shape in (("gate_up", (2 * INNER, WIDTH)), ("down", (WIDTH, INNER))):
            data = rng.normal(size=(N_EXPERTS, *shape)).astype(np.float32)
            whole[f"model.layers.{layer}.mlp.experts.{part}_proj"] = data
    save_file(whole, source / WEIGHTS)
    write_pruned(source, tmp_path / "pruned", KEPT)
    stacked = {name: data for name, data in whole.items() if data.ndim == 3}
    places = {name: list(KEPT[int(name.split(".")[2])]) for name in stacked}
    want = expected(whole) | {name: stacked[name][places[name]] for name in stacked}
    expect_same(load_file(tmp_path / "pruned" / WEIGHTS), want)


def test_a_config_with_a_default_number_of_experts_gets_an_explicit_one(
    source: Path, tmp_path: Path
) -> None:
    (source / "config.json").write_text("{}")
    write_pruned(source, tmp_path / "pruned", KEPT)
    config = json.loads((tmp_path / "pruned/config.json").read_text())
    assert config == {"num_local_experts": 3, "num_experts": 3}


def test_shards_stay_shards(source: Path, tmp_path: Path) -> None:
    """A shard with only pruned experts is dropped; a single remaining shard keeps its name in the
    index."""
    whole = tensors()
    (source / WEIGHTS).unlink()
    gone = {name: data for name, data in whole.items() if ".1.mlp.experts.1." in name}
    shards = {"model-00001-of-00002.safetensors": {k: whole[k] for k in whole if k not in gone}}
    shards["model-00002-of-00002.safetensors"] = gone
    for file, of_file in shards.items():
        save_file(of_file, source / file)
    weight_map = {name: file for file, of_file in shards.items() for name in of_file}
    metadata = {"total_size": 1, "total_parameters": 1, "made": "by hand"}
    index = {"metadata": metadata, "weight_map": weight_map}
    (source / INDEX).write_text(json.dumps(index))
    out, want = tmp_path / "pruned", expected(whole)
    write_pruned(source, out, KEPT)
    assert sorted(path.name for path in out.glob("*.safetensors")) == [next(iter(shards))]
    expect_same(load_file(out / next(iter(shards))), want)
    assert set(Checkpoint.open(out).names()) == set(want)
    assert json.loads((out / INDEX).read_text())["metadata"] == {
        "total_size": sum(data.nbytes for data in want.values()),
        "total_parameters": sum(data.size for data in want.values()),
        "made": "by hand",
    }


def test_every_type_of_number_is_written_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS
    rng = np.random.default_rng(1)
    entries = [
        writer.TensorToWrite(dtype, dtype, (3, 4), (rng.integers(0, 2, 12 * bits // 8, np.uint8),))
        for dtype, bits in BITS.items()
    ]
    writer.write_safetensors(path, [*entries, writer.TensorToWrite("none", "F32", (0, 4), ())])
    read = open_safetensors(path)
    assert read["none"].shape == (0, 4)
    for entry in entries:
        assert (read[entry.name].dtype, read[entry.name].shape) == (entry.dtype, (3, 4))
        assert read[entry.name].data.tobytes() == entry.data[0].tobytes()


def test_no_tensor_is_copied_into_memory(tmp_path: Path) -> None:
    path, n = tmp_path / "whole.bin", 1 << 20
    path.write_bytes(bytes(range(256)) * (n // 256))
    whole = np.memmap(path, np.uint8, "r")
    entries = [
        writer.TensorToWrite("a", "U8", (n,), (whole,)),
        writer.TensorToWrite("b", "U8", (2, n // 2), (whole[n // 2 :], whole[: n // 2])),
    ]
    tracemalloc.start()
    writer.write_safetensors(tmp_path / WEIGHTS, entries)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n / 4
    found = load_file(tmp_path / WEIGHTS)
    assert found["a"].tobytes() == whole.tobytes()
    assert found["b"].tobytes() == whole[n // 2 :].tobytes() + whole[: n // 2].tobytes()
    assert {path.name for path in tmp_path.iterdir()} == {"whole.bin", WEIGHTS}


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({1: (0, 1)}, r"rows for 6 experts; .* but got none"),
        ({**KEPT, 2: (0, 1, 2)}, r"for the layers \[1, 3\], but got them for \[1, 2, 3\]"),
        ({1: (0, 6), 3: (0, 1)}, r"ascending order, from 0 to 5, but got \[0, 6\]"),
        ({1: (-1, 0), 3: (0, 1)}, r"ascending order, from 0 to 5, but got \[-1, 0\]"),
        ({1: (2, 0), 3: (0, 1)}, r"from 0 to 5, but got \[2, 0\]"),
        ({1: (2, 2), 3: (0, 1)}, r"from 0 to 5, but got \[2, 2\]"),
        ({1: (), 3: ()}, r"from 0 to 5, but got \[\]"),
        (
            {1: (0, 1), 3: (0,)},
            "expected the same number of experts in every layer, but got 1 to 2",
        ),
    ],
)
def test_wrong_experts_to_keep_are_refused(
    source: Path, tmp_path: Path, kept: dict[int, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        write_pruned(source, tmp_path / "pruned", kept)
    assert left_beside(source) == {"whole"}


def test_a_folder_that_is_not_empty_is_left_alone(source: Path, tmp_path: Path) -> None:
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "mine").write_text("here")
    file.write_text("here")
    for out in (full, file):
        with pytest.raises(ModelError, match="exists and is not an empty folder"):
            write_pruned(source, out, KEPT)
    assert (full / "mine").read_text() == file.read_text() == "here"
    with pytest.raises(ModelError, match="nowhere: not found; make this folder first"):
        write_pruned(source, tmp_path / "nowhere" / "pruned", KEPT)
    write_pruned(source, empty, KEPT)
    assert (empty / WEIGHTS).exists()


def test_a_write_that_fails_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", cut)
    with pytest.raises(ModelError, match=r"pruned: cannot be written \(No space left on device"):
        write_pruned(source, tmp_path / "pruned", KEPT)
    assert left_beside(source) == {"whole"}


def test_a_disk_that_is_too_small_is_noticed_before_writing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(100, 99, 1)
    monkeypatch.setattr(pruning.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"needs 0\.00 GB, but its disk has 0\.00 GB free"):
        write_pruned(source, tmp_path / "pruned", KEPT)
    assert left_beside(source) == {"whole"}
