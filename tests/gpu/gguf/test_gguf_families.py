"""GGUF files of every architecture, as llama.cpp's converter writes them, hold the same
model as the folder they were converted from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from gpu.checkpoint.auto_dtype import choose_dtype
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.gguf.file import open_gguf
from gpu.models.registry import MODELS
from gpu.pytorch.llama import TorchLlama
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.gguf import gguf_models
from tests.gpu.models import random_models
from tests.gpu.models.model_cases import CASES, YARN, Case, sized
from tests.gpu.on_device import stored_numbers
from tests.gpu.ops import expert_cases


def changed(name: str, **settings: Any) -> Case:
    return replace(CASES[name], settings=CASES[name].settings | settings)


ALL = {
    **{
        name: CASES[name]
        for name in (
            "qwen2", "mistral_plain", "smollm3", "granite", "granite_bias", "qwen3", "olmo2",
            "olmo2_bias", "phi3_longrope_partial", "gpt2", "gpt_neox",
        )
    },
    # files give the scale of scores only in 27B models, and no absence of the logit cap
    "gemma2": changed("gemma2", query_pre_attn_scalar=12),
    "gemma3": changed("gemma3", query_pre_attn_scalar=12),
    "gemma3_linear": changed("gemma3_linear", query_pre_attn_scalar=20),
    "phi3": changed("phi3", hidden_size=96, intermediate_size=64),  # whole blocks
    "mixtral": Case(
        "MixtralConfig",
        sized(2, 64, 4, 2, 32) | {"num_local_experts": 3, "num_experts_per_tok": 2},
    ),
    "qwen2_moe": Case(
        "Qwen2MoeConfig",
        sized(2, 64, 4, 2, 96)
        | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 64},
    ),
    "qwen3_moe": Case(
        "Qwen3MoeConfig",
        sized(2, 64, 4, 2, 96)
        | {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
        | {"norm_topk_prob": True, "head_dim": 20, "rope_parameters": YARN},
    ),
    "olmoe": expert_cases.CASES["olmoe"],
}  # fmt: skip
IDS = random_models.ids(24)

Make = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: Any) -> Make:
    """Make the model folder of a case, and its GGUF file."""
    folders: dict[str, Path] = {}

    def made(name: str, kind: str = "F32", **changes: Any) -> tuple[Path, Path]:
        if name not in folders:
            folders[name] = random_models.write(tmp_path_factory.mktemp(name), ALL[name])
        path = tmp_path_factory.mktemp(f"{name}_{kind}") / "model.gguf"
        return folders[name], gguf_models.write(folders[name], path, kind, **changes)

    return made


class NotedMemory(Memory):
    """A memory that records its uploads."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.tensors: list[Tensor] = []

    def zeros(self, *args: Any, **named: Any) -> Tensor:
        tensor = super().zeros(*args, **named)
        self.tensors.append(tensor)
        return tensor


def loaded(device: Device, path: Path, dtype: str) -> tuple[Any, NotedMemory]:
    config, memory = ModelConfig.from_folder(path), NotedMemory(device)
    load = WeightLoader(Checkpoint.open(path), memory, dtype)
    return MODELS[config.model_type](config, load, memory, 64), memory


# ---- the same model --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_file_holds_the_model_of_its_folder(make: Make, device: Device, name: str) -> None:
    """The config, the tensors by name and every buffer on the device are the same. Files hold
    Gemma's gains, checkpoints gain - 1: subtracting 1 loses the last bit, which adding 1 again
    does not need."""
    folder, path = make(name)
    configs = ModelConfig.from_folder(path), ModelConfig.from_folder(folder)
    frequencies = [c.rope.inv_freq(c.rope_dim) * c.rope.attention_factor for c in configs]
    assert np.allclose(*frequencies, rtol=1e-6)
    got, want = map(asdict, configs)
    if name == "mistral_plain":  # without a window it is a Llama, which is what files call it
        want["model_type"] = "llama"
    not_said = ("torch_dtype", "eos_ids", "bos_id", "rope")
    assert [field for field in want if field not in not_said and got[field] != want[field]] == []
    weights, expected = Checkpoint.open(path), Checkpoint.open(folder)
    assert set(weights.names()) == set(expected.names())
    for tensor in expected.names():
        found, numbers = weights.read_f32(tensor), expected.read_f32(tensor)
        assert weights.shape(tensor) == expected.shape(tensor) == found.shape, tensor
        is_gain = "gemma" in name and tensor.endswith("norm.weight")
        assert np.abs(found - numbers).max() <= (2.0**-24 if is_gain else 0), tensor
        if found.ndim == 2:
            assert np.array_equal(weights.read_f32(tensor, None, slice(3, 9)), found[:, 3:9])
            assert np.array_equal(weights.read_f16(tensor, slice(1, 7)), found[1:7].astype("f2"))
    memories = [loaded(device, place, "f32")[1] for place in (path, folder)]
    for ours, theirs in zip(*(memory.tensors for memory in memories), strict=True):
        if not ours.name.startswith("rope_cos_sin"):  # of a config that is equal
            assert np.array_equal(memories[0].read(ours), memories[1].read(theirs)), ours.name


def test_quantised_experts_give_the_logits_of_their_dequantised_weights(
    make: Make, device: Device, tmp_path: Path
) -> None:
    """The logits are those of a folder that holds the dequantised numbers."""
    folder, path = make("qwen2_moe", "Q5_0")
    checkpoint = Checkpoint.open(path)
    assert checkpoint.dtype("model.layers.1.mlp.experts.5.down_proj.weight") == "Q5_0"
    assert checkpoint.dtype("model.layers.1.mlp.shared_expert.up_proj.weight") == "Q5_0"
    same = Path(shutil.copytree(folder, tmp_path / "same"))
    save_file(
        {name: checkpoint.read_f32(name) for name in checkpoint.names()}, same / "model.safetensors"
    )
    got, want = (
        driving.all_logits(driving.load(device, place, n_slots=1), IDS) for place in (path, same)
    )
    assert np.array_equal(got, want)
    assert np.ptp(want) > 0.1


@pytest.mark.parametrize(("kind", "dtype"), [("Q8_0", "q8"), ("Q4_0", "q4")])
@pytest.mark.parametrize("name", ["qwen2_moe", "mixtral", "phi3"])
def test_blocks_are_stored_as_they_are(
    make: Make, device: Device, name: str, kind: str, dtype: str, packed: list[str]
) -> None:
    """To the bit the numbers of the file, experts and parts of fused matrices too: nothing is
    quantised but the vocabulary of a q4 model, which has eight bits."""
    _, path = make(name, kind)
    model, memory = loaded(device, path, dtype)
    exact = {"f32"} if "moe" in name or name == "mixtral" else set()
    assert {matrix.dtype for matrix in model.layer_matrices()} == {dtype, *exact}
    ends = {"model.embed_tokens.weight", "lm_head.weight"}
    routers = {end for end in packed if "gate.weight" in end}
    assert set(packed) - routers == (ends if dtype == "q4" else set())
    plain, plain_memory = loaded(device, path, "f32")
    for ours, theirs in zip(model.layer_matrices(), plain.layer_matrices(), strict=True):
        assert np.array_equal(stored_numbers(memory, ours), stored_numbers(plain_memory, theirs)), (
            ours.name
        )


@pytest.mark.parametrize("name", ["qwen2_moe", "mixtral", "phi3"])
def test_matrices_with_more_bits_are_those_that_the_list_of_tensors_names(
    make: Make, device: Device, name: str
) -> None:
    """Also of experts, which are one matrix, and of parts of a fused tensor."""
    kinds = {"attn_v": "Q5_1", "attn_qkv": "Q5_1", "blk.1.ffn_down": "Q8_0"}
    _, path = make(name, "Q4_0", kinds=kinds)
    model, _ = loaded(device, path, "q4")
    tensors = {tensor.name: tensor for tensor in Inventory.from_folder(path, "q4").tensors}
    found = set()
    for matrix in model.matrices():
        sources = [tensors[source] for source in matrix.sources]
        assert {source.device_dtype for source in sources} == {matrix.dtype}, matrix.name
        assert sum(source.device_bytes or 0 for source in sources) == matrix.n_bytes
        found.add((matrix.name.rpartition(".")[2], matrix.dtype))
    assert found >= {
        ("qkv", "q8"),
        ("out", "q4"),
        ("gate_up", "q4"),
        ("down", "q4"),
        ("down", "q8"),
    }


@pytest.mark.ci
def test_a_mixture_of_types_is_computed_alike_wherever_its_experts_are(
    make: Make, device: Device
) -> None:
    """On the device, a few at a time, and in PyTorch."""
    kinds = {"attn_v": "Q5_1", "blk.1.ffn_down": "Q8_0"}
    _, path = make("qwen2_moe", "Q4_0", kinds=kinds)
    first = driving.all_logits(driving.load(device, path, "q4", n_slots=1), IDS)
    few = driving.all_logits(driving.load(device, path, "q4", n_slots=1, expert_slots=3), IDS)
    assert np.array_equal(first, few)
    config, checkpoint = ModelConfig.from_folder(path), Checkpoint.open(path)
    torch_model = TorchLlama(config, checkpoint, "q4", "f32", 1, 64)
    inventory = {tensor.name: tensor for tensor in Inventory.from_folder(path, "q4").tensors}
    name = "model.layers.1.mlp.experts.0.down_proj.weight"
    assert inventory[name].device_dtype == "q8"
    found = torch_model.layers[1].mlp.experts[0].down.weight.numpy()
    assert np.array_equal(found, checkpoint.read_f32(name)), "Q8_0 as it is"


def test_auto_says_nothing_of_routers(make: Make) -> None:
    """They are f32 in every model, and saved so in files of four bits."""
    _, path = make("qwen2_moe", "Q4_0")
    inventory = Inventory.from_folder(path)
    assert set(inventory.saved_types) == {"Q4_0"}
    reason = choose_dtype(inventory.saved_types).reason
    assert reason == "the layers are saved as Q4_0, which q4 holds exactly"


Change = Callable[[str, Any], list[tuple[str, Any]]]


def rewritten(path: Path, target: Path, change: Change) -> Path:
    """Write the file with other tensors: `change` maps each name and data to new ones."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, "llama")
    gguf_models.copy_values(reader, writer)
    for tensor in reader.tensors:
        for name, data in change(tensor.name, tensor.data):
            writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    gguf_models.finish(writer)
    return target


def test_each_expert_may_have_a_tensor_of_its_own(make: Make, tmp_path: Path) -> None:
    """The layout of early Mixtral files."""

    def parted(name: str, data: Any) -> list[tuple[str, Any]]:
        module, together, suffix = name.partition("_exps")
        each = enumerate(data if together else [])
        return [(f"{module}.{i}{suffix}", part) for i, part in each] or [(name, data)]

    _, path = make("mixtral", "Q8_0")
    old = rewritten(path, tmp_path / "old.gguf", parted)
    got, want = Checkpoint.open(old), Checkpoint.open(path)
    assert set(got.names()) == set(want.names())
    assert ModelConfig.from_folder(old) == ModelConfig.from_folder(path)
    for name in want.names():
        assert np.array_equal(got.read_f32(name), want.read_f32(name)), name
        assert got.dtype(name) == want.dtype(name)


# ---- what files do not say, and what is refused ------------------------------------------------


def config(make: Make, name: str, **changes: Any) -> ModelConfig:
    return ModelConfig.from_folder(make(name, **changes)[1])


def test_27b_models_are_recognised_by_their_number_of_layers(make: Make) -> None:
    """Only these scale scores by another number than the size of a head."""
    assert config(make, "gemma2", block_count=46).attn_scale == 14**-0.5
    assert config(make, "gemma2", block_count=45).attn_scale == 12**-0.5
    assert config(make, "gemma3", block_count=62).attn_scale == 12**-0.5  # 48 / 4


def test_windows_of_gemma_3(make: Make) -> None:
    every_third = config(make, "gemma3", **{"attention.sliding_window_pattern": 3})
    assert every_third.sliding_windows == (17, 17, None, 17, 17, None, 17)
    assert config(make, "gemma3", **{"attention.sliding_window": None}).sliding_windows == ()


def test_phi_4_has_no_window(make: Make) -> None:
    assert config(make, "phi3").sliding_windows == (21, 21)
    assert config(make, "phi3", **{"attention.sliding_window": 0}).sliding_windows == ()


def test_metadata_that_old_files_spell_otherwise_is_read(make: Make) -> None:
    for key in ("rope.scale_linear", "rope.scaling.factor"):
        rope = config(make, "qwen2", **{key: 4.0}).rope
        assert (rope.scaling, rope.factor) == ("linear", 4.0)
    assert config(make, "qwen2", **{"rope.scale_linear": 1.0}).rope.scaling == "default"
    left_out = {"expert_feed_forward_length": None, "expert_shared_feed_forward_length": None}
    experts = config(make, "qwen2_moe", **left_out).experts
    assert experts is not None
    assert (
        experts.intermediate_size,
        experts.shared_intermediate_size,
        experts.norm_topk_prob,
    ) == (32, 64, False)
    said = config(make, "qwen2_moe", expert_weights_norm=True).experts
    assert said is not None
    assert said.norm_topk_prob


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("olmo2", "attention.sliding_window", 4096, "OLMo 3 is not supported"),
        ("granite", "rope.scaling.finetuned", False, "without it there are no positions"),
        ("qwen3_moe", "expert_gating_func", 2, "a softmax"),
        ("qwen3_moe", "expert_weights_scale", 2.5, "1, the only value"),
        ("qwen3_moe", "expert_used_count", None, "expert_used_count is missing"),
        ("qwen3_moe", "rope.scaling.yarn_attn_factor", 0.5, "1 or left out"),
        ("qwen2", "attention.causal", False, "the engine writes text"),
        ("olmoe", "attention.clamp_kqv", 8.0, "0, the only value"),
        ("qwen2", "rope.dimension_count", 8, "12, the whole head"),
        ("qwen2", "attention.value_length", 8, "12, as the key_length"),
        ("qwen2", "rope.scaling.type", "longrope", "original_context_length is missing"),
    ],
)  # fmt: skip
def test_unsupported_files_are_refused(
    make: Make, name: str, key: str, value: Any, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        config(make, name, **{key: value})


def test_values_of_another_kind_are_read_or_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a key holds, the only error is a ModelError."""
    others = (np.array([1, 2]), np.array([], np.int32), ["a", "b"], "x", 2.5, -1, True)
    left_out = ("attention.scale", "attention.sliding_window_pattern", "expert_count")
    n_refused = dict.fromkeys(("granite", "gemma2", "gemma3", "phi3", "qwen2_moe"), 0)
    for name in n_refused:
        path = make(name)[1]
        file = open_gguf(path)
        arch = file.values["general.architecture"]
        for key in {*file.values, *(f"{arch}.{key}" for key in left_out)}:
            for other in others:
                said = replace(file, values={**file.values, key: other})
                monkeypatch.setattr("gpu.config.gguf.open_gguf", lambda _, said=said: said)
                try:
                    ModelConfig.from_folder(path)
                except ModelError:
                    n_refused[name] += 1
    assert min(n_refused.values()) > 60, n_refused


def test_invalid_experts_are_refused(make: Make, tmp_path: Path) -> None:
    def flat(name: str, data: Any) -> list[tuple[str, Any]]:
        return [(name, data[0] if name == "blk.0.ffn_up_exps.weight" else data)]

    def twice(name: str, data: Any) -> list[tuple[str, Any]]:
        again = [("blk.0.ffn_up.2.weight", data[1])] if name == "blk.0.ffn_up_exps.weight" else []
        return [(name, data), *again]

    _, path = make("mixtral")
    changes = ((flat, r"expected \(experts, rows, columns\)"), (twice, r"w3.* is in two tensors"))
    for change, words in changes:
        with pytest.raises(ModelError, match=words):
            Checkpoint.open(rewritten(path, tmp_path / "changed.gguf", change))
