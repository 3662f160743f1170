"""The inventory is made from headers alone; here it is compared with what a runner loads and
reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.device import Device
from tests.golden import tale
from tests.gpu.engine import driving
from tests.gpu.models import random_llama, random_models

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NAMES = (
    "tiny",
    "odd100_tied",
    "odd172_bias",
    "gqa8",
    "head100_all_bias",
    "llama3_old_shards",
    "deep_shards",
)


def taken(name: str, dtype: str | None = None) -> Inventory:
    return Inventory.from_folder(random_llama.folder(name), dtype)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_the_files_is_listed_once(name: str) -> None:
    inventory, checkpoint = taken(name), Checkpoint.open(random_llama.folder(name))
    saved = [tensor for tensor in inventory.tensors if tensor.n_bytes]
    assert sorted(tensor.name for tensor in saved) == sorted(checkpoint.names())
    for tensor in saved:
        assert (tensor.shape, tensor.dtype) == (
            checkpoint.shape(tensor.name),
            checkpoint.dtype(tensor.name),
        )
        assert tensor.n_bytes == math.prod(tensor.shape) * {"F32": 4, "BF16": 2}[tensor.dtype]
        assert tensor.kind != "unused"
    assert inventory.n_bytes == sum(tensor.n_bytes for tensor in saved)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_counted_once(name: str) -> None:
    inventory = taken(name)
    model = random_llama.reference(name).model
    assert inventory.parameters == sum(p.numel() for p in set(model.parameters()))
    assert sum(tensor.parameters for tensor in inventory.tensors) == inventory.parameters
    assert math.fsum(tensor.share for tensor in inventory.tensors) == pytest.approx(1, abs=1e-12)


def test_tensors_come_in_the_order_of_a_pass() -> None:
    kinds = [(t.kind, t.layer) for t in taken("deep_shards").tensors]
    assert kinds[0] == ("embedding", None)
    assert kinds[-2:] == [("norm", None), ("head", None)]
    layers = [layer for _, layer in kinds[1:-2]]
    assert layers == sorted(layers, key=lambda layer: layer if layer is not None else -1)
    assert set(layers) == set(range(12))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_device_bytes_equal_those_of_a_runner(device: Device, name: str, dtype: str) -> None:
    runner, inventory = driving.load(device, random_llama.folder(name), dtype), taken(name, dtype)
    assert inventory.device_bytes == runner.memory.weights
    tensors = {tensor.name: tensor for tensor in inventory.tensors}
    for matrix in runner.model.matrices():
        sources = [tensors[source] for source in matrix.sources]
        assert {source.device_dtype for source in sources} == {matrix.dtype}
        assert sum(source.device_bytes or 0 for source in sources) == matrix.n_bytes


@pytest.mark.parametrize("name", NAMES)
def test_the_dispatches_that_read_a_tensor_are_named(device: Device, name: str) -> None:
    """A matrix is bound by the dispatches that the inventory names, and by no other."""
    runner, inventory = driving.load(device, random_llama.folder(name), "q8"), taken(name, "q8")
    plan = runner.plan_for(1, 1, capture=False).plan
    bound: dict[str, set[str]] = {}
    for dispatch in plan.dispatches:
        for tensor in dispatch.tensors.values():
            bound.setdefault(tensor.name, set()).add(dispatch.label)
    tensors = {tensor.name: tensor for tensor in inventory.tensors}
    for matrix in runner.model.matrices():
        for source in matrix.sources:
            for shard in matrix.shards:
                assert set(tensors[source].read_by) == bound[shard.tensor.name]
    labels = {dispatch.label for dispatch in plan.dispatches}
    for tensor in inventory.tensors:
        assert set(tensor.read_by) <= labels, tensor.name


def test_token_bytes_exclude_the_rows_of_other_tokens(device: Device) -> None:
    for name in ("gqa8", "odd100_tied"):
        for dtype in FORMATS:
            runner = driving.load(device, random_llama.folder(name), dtype)
            inventory = taken(name, dtype)
            table = runner.model.embedding
            row = table.n_bytes // table.n
            unread = 0 if runner.config.tie_embeddings else table.n_bytes
            assert inventory.token_bytes == runner.memory.weights - unread + row


def test_a_tied_head_is_listed_whether_it_was_saved_or_not(tmp_path: Path) -> None:
    not_saved = {tensor.name: tensor for tensor in taken("odd100_tied", "f16").tensors}
    saved = {tensor.name: tensor for tensor in with_saved_head(tmp_path).tensors}
    for tensors, n_bytes in ((not_saved, 0), (saved, 301 * 100 * 4)):
        head, table = tensors[HEAD], tensors[EMBEDDING]
        assert (head.tied_to, head.kind, head.shape) == (EMBEDDING, "head", (301, 100))
        assert (head.n_bytes, head.parameters, head.device_bytes, head.token_bytes) == (
            n_bytes, 0, 0, 0,
        )  # fmt: skip
        assert head.device_dtype is None
        assert table.read_by == ("embed", "head")
        assert table.tied_to is None


def with_saved_head(folder: Path) -> Inventory:
    """A tied model whose output matrix was saved too."""
    from safetensors.numpy import load_file, save_file

    source = random_llama.folder("odd100_tied")
    weights = load_file(source / "model.safetensors")
    save_file({**weights, HEAD: weights[EMBEDDING]}, folder / "model.safetensors")
    (folder / "config.json").write_text((source / "config.json").read_text())
    return Inventory.from_folder(folder, "f16")


def test_an_untied_model_has_its_own_head() -> None:
    tensors = {tensor.name: tensor for tensor in taken("gqa8", "q4").tensors}
    assert all(tensor.tied_to is None for tensor in tensors.values())
    assert tensors[EMBEDDING].read_by == ("embed",)
    assert tensors[HEAD].read_by == ("head",)
    assert tensors[HEAD].device_dtype == "q8"
    assert tensors["model.layers.0.mlp.up_proj.weight"].device_dtype == "q4"
    assert tensors["model.layers.0.mlp.up_proj.bias"].device_dtype == "f32"


def test_without_a_storage_type_device_figures_are_none() -> None:
    inventory = taken("gqa8")
    assert (inventory.dtype, inventory.device_bytes, inventory.token_bytes) == (None, None, None)
    assert all(t.device_dtype is t.device_bytes is t.token_bytes is None for t in inventory.tensors)


def test_tensors_that_the_engine_does_not_read_are_unused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    source = random_llama.folder("tiny")
    unused = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": 0,
        "model.layers.0.self_attn.q_proj.bias": 8,
        "model.layers.1.mlp.up_proj.weight": 8,
        "vision.tower": 8,
    }
    weights = load_file(source / "model.safetensors") | {
        name: np.zeros(8, np.float32) for name in unused
    }
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    inventory = Inventory.from_folder(tmp_path, "f16")
    last = inventory.tensors[-len(unused) :]
    assert {tensor.name: tensor.parameters for tensor in last} == unused
    for tensor in last:
        assert (tensor.kind, tensor.read_by, tensor.device_bytes) == ("unused", (), 0)
    assert inventory.device_bytes == taken("tiny", "f16").device_bytes


def test_an_unknown_storage_type_is_refused() -> None:
    with pytest.raises(ModelError, match=r"dtype 'q5' is not supported; supported: f32, .*"):
        taken("tiny", "q5")


# ---- rotary frequencies ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gqa8", "head80_theta", "linear_old", "head128_llama3"])
def test_frequencies_are_those_of_transformers(name: str) -> None:
    rope = taken(name).rope
    model = random_llama.reference(name).model.model
    expected = model.rotary_emb.inv_freq.double().numpy()
    assert np.asarray(rope.inv_freq) == pytest.approx(expected, rel=1e-6)
    assert np.asarray(rope.wavelength) == pytest.approx(2 * math.pi / expected, rel=1e-6)
    assert len(rope.inv_freq) == rope.head_dim // 2


def test_wavelengths_without_scaling_are_listed_beside_the_scaled_ones() -> None:
    plain, linear, llama3 = (taken(n).rope for n in ("gqa8", "linear_old", "head128_llama3"))
    assert plain.scaling == "default"
    assert plain.unscaled == plain.wavelength
    assert plain.original_context is None
    assert linear.wavelength == pytest.approx([4 * length for length in linear.unscaled])
    assert llama3.original_context == 64
    low, high = llama3.low_freq_factor, llama3.high_freq_factor
    assert low is not None
    assert high is not None
    for length, before in zip(llama3.wavelength, llama3.unscaled, strict=True):
        if before > 64 / low:
            assert length == pytest.approx(8 * before)
        elif before < 64 / high:
            assert length == before
        else:
            assert before < length < 8 * before


def test_an_inventory_can_be_sent_as_json() -> None:
    import msgspec

    inventory = taken("odd172_bias", "q8")
    sent: Any = json.loads(msgspec.json.encode(inventory))
    assert msgspec.convert(sent, Inventory) == inventory


def test_a_folder_and_its_opened_checkpoint_give_the_same_inventory() -> None:
    folder = tale().folder
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    assert Inventory.of(config, checkpoint, "f32") == Inventory.from_folder(folder, "f32")


ARTICLES = {
    "qwen2": ["norm1", "W_Q", "W_K", "W_V", "W_O", "norm2", "W_gate", "W_up", "W_down"],
    "phi3": ["norm1", "W_Q W_K W_V", "W_O", "norm2", "W_gate W_up", "W_down"],
    "olmo2": ["W_Q", "W_K", "W_V", "", "", "W_O", "", "W_gate", "W_up", "W_down", ""],
    "gemma2": ["norm1", "W_Q", "W_K", "W_V", "W_O", "", "norm2", "W_gate", "W_up", "W_down", ""],
    "gpt_neox": ["norm1", "W_Q W_K W_V", "W_O", "norm2", "W_up", "W_down"],
}
"""Names in papers of the tensors of a layer but biases. Norms after attention and MLP have none."""


@pytest.mark.parametrize("name", ARTICLES)
def test_tensors_have_their_names_in_papers(name: str) -> None:
    """By what reads a tensor, whatever the file calls it."""
    tensors = Inventory.from_folder(random_models.folder(name)).tensors
    weights = [tensor for tensor in tensors if not tensor.name.endswith(".bias")]
    assert [tensor.article for tensor in weights if tensor.layer == 0] == ARTICLES[name]
    assert weights[0].article == "W_E"
    assert [tensor.article for tensor in weights[-2:]] == ["final norm", "W_unembed"]


def test_positions_biases_and_tied_heads_have_names_in_papers() -> None:
    tensors = Inventory.from_folder(random_models.folder("gpt2")).tensors
    names = [tensor.article for tensor in tensors if not tensor.layer]
    assert names == [
        "W_E", "W_pos", "norm1", "norm1 bias", "W_Q W_K W_V", "W_Q W_K W_V bias", "W_O", "W_O bias",
        "norm2", "norm2 bias", "W_up", "W_up bias", "W_down", "W_down bias",
        "final norm", "final norm bias", "W_unembed",
    ]  # fmt: skip


def test_no_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_args: object) -> None:
        raise AssertionError("an inventory reads no weights")

    for reader in ("read_f32", "read_f16", "pieces"):
        monkeypatch.setattr(Checkpoint, reader, forbidden)
    assert taken("odd36", "f16").parameters > 0


def test_the_runner_reads_no_tensor_listed_as_unused(device: Device) -> None:
    runner: WgpuRunner = driving.load(device, random_llama.folder("head100_all_bias"), "f32")
    read = {source for matrix in runner.model.matrices() for source in matrix.sources}
    used = {t.name for t in taken("head100_all_bias").tensors if t.kind != "unused"}
    assert read <= used


@pytest.mark.parametrize("name", random_models.WITH_EXPERTS[::2])
def test_experts_are_counted_alike_alone_and_stacked(tmp_path: Path, name: str) -> None:
    """transformers saves a tensor per expert, or one for all experts of a layer."""
    folder, model = random_models.folder(name), random_models.reference(name).model
    model.save_pretrained(tmp_path, save_original_format=False)
    alone, stacked = (Inventory.from_folder(path, "q8") for path in (folder, tmp_path))
    assert len(stacked.tensors) < len(alone.tensors)
    for inventory in (alone, stacked):
        assert all(tensor.kind != "unused" for tensor in inventory.tensors)
        assert inventory.parameters == sum(p.numel() for p in set(model.parameters()))
    assert alone.device_bytes == stacked.device_bytes
    rounding = len(alone.tensors) / 2  # half a byte of each
    assert abs((stacked.token_bytes or 0) - (alone.token_bytes or 0)) <= rounding
    config = ModelConfig.from_folder(folder)
    assert config.experts is not None
    used = config.experts.experts_per_token / config.experts.n_experts
    routed = [t for t in stacked.tensors if ".experts." in t.name]
    assert all(t.token_bytes == round(used * (t.device_bytes or 0)) for t in routed)
    assert {t.layer for t in routed} == {i for i in range(config.n_layers) if config.moe_of(i)}
    routers = [
        t for t in alone.tensors if t.name.endswith(("mlp.gate.weight", "expert_gate.weight"))
    ]
    assert all(t.device_dtype == "f32" for t in routers)
