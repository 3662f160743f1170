"""GGUF files give the same model as a folder."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from gpu import Engine, Inventory, TensorSummary
from gpu.checkpoint.packing import U32, unpack
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.weight_cache import NoWeightCache
from gpu.checkpoint.weights import WeightLoader
from gpu.config import GenerationDefaults, ModelConfig
from gpu.errors import ModelError
from gpu.gguf import file as file_module
from gpu.gguf.file import open_gguf
from gpu.gguf.types import TYPES_BY_NAME
from gpu.load_options import LoadOptions
from gpu.models.registry import MODELS
from gpu.pytorch.llama import TorchLlama
from gpu.pytorch.loading import Loader
from gpu.step import Floats
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.gguf import gguf_models
from tests.gpu.gguf.shapes import BIASES
from tests.gpu.models import random_llama
from tests.gpu.on_device import stored_numbers
from tests.gpu.text import made_tokenizers

QUANT_TYPES = random_llama.Shape("gguf_blocks", 4, 2, 64, 256, 512, 401, tied=True, n_layers=1)
LLAMA3 = random_llama.Shape(
    "gguf_llama3", 4, 1, 128, 64, 64, 260, n_layers=1,
    rope={"rope_theta": 5e5, **random_llama.LLAMA3, "original_max_position_embeddings": 8192},
)  # fmt: skip
LINEAR = random_llama.Shape(
    "gguf_linear", 2, 2, 32, 64, 64, 260, n_layers=1, rope={"rope_type": "linear", "factor": 4.0}
)

IM_END = "<|im_end|>"

Make = Callable[..., tuple[Path, Path]]


# ---- the same model --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [BIASES, QUANT_TYPES, LINEAR, LLAMA3], ids=lambda s: s.name)
def test_the_config_equals_the_folders(make: Make, shape: random_llama.Shape) -> None:
    extra: dict[str, Any] = {}
    if shape is LINEAR:
        extra = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    folder, path = make(shape, **extra)
    if shape is LLAMA3:
        path = with_rope_factors(folder, path)
    got, want = ModelConfig.from_folder(path), ModelConfig.from_folder(folder)
    for name in want.__dataclass_fields__:
        if name not in ("torch_dtype", "eos_ids", "bos_id"):
            assert getattr(got, name) == getattr(want, name), name
    tokenizer = Tokenizer.load(folder)
    assert got.eos_ids == tokenizer.eos_ids


def test_known_end_of_turn_tokens_end_the_text(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma's files name only <eos>, which never occurs in a chat; here it is <|begin|>, 0."""
    folder, _ = make(BIASES)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|begin|>"}')
    special = gguf_models.write(folder, tmp_path / "special.gguf")
    assert ModelConfig.from_folder(special).eos_ids == (0, made_tokenizers.SPECIALS.index(IM_END))
    monkeypatch.setattr(gguf_models, "CONTROL", gguf_models.NORMAL)
    text = gguf_models.write(folder, tmp_path / "text.gguf")
    assert ModelConfig.from_folder(text).eos_ids == (0,)


def test_recommended_settings_are_those_that_the_converter_writes(tmp_path: Path) -> None:
    """llama.cpp's converter writes what generation_config.json says, whose numbers a float32 does
    not hold exactly."""
    path, plain = tmp_path / "model.gguf", tmp_path / "plain.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_sampling_temp(0.6)
    writer.add_sampling_top_k(-1)
    writer.add_sampling_top_p(0.95)
    writer.add_sampling_penalty_repeat(1.05)
    gguf_models.finish(writer)
    gguf_models.finish(gguf.GGUFWriter(plain, "llama"))
    assert GenerationDefaults.from_folder(path) == GenerationDefaults(0.6, 0, 0.95, None, 1.05)
    assert GenerationDefaults.from_folder(plain) == GenerationDefaults()


def test_the_weights_are_the_folders(make: Make) -> None:
    folder, path = make(BIASES)
    got, want = Checkpoint.open(path), Checkpoint.open(folder)
    assert set(got.names()) == set(want.names())
    assert got.parameters() == want.parameters()
    for name in want.names():
        assert got.shape(name) == want.shape(name)
        assert np.array_equal(got.read_f32(name), want.read_f32(name)), name
        some = slice(3, 17)
        assert np.array_equal(got.read_f32(name, some), want.read_f32(name, some)), name
        assert np.array_equal(got.read_f16(name), want.read_f16(name)), name


@pytest.mark.parametrize("kind", gguf_models.KINDS)
def test_every_type_is_read_as_by_the_gguf_package(make: Make, kind: str) -> None:
    _, path = make(QUANT_TYPES, kind)
    got = Checkpoint.open(path)
    known = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    name = "model.layers.0.mlp.down_proj.weight"
    stored = known["blk.0.ffn_down.weight"]
    want = gguf.quants.dequantize(stored.data, stored.tensor_type)
    assert got.dtype(name) == kind
    assert got.shape(name) == (256, 512)
    assert np.array_equal(got.read_f32(name), want)
    assert np.array_equal(got.read_f32(name, slice(5, 9)), want[5:9])
    assert np.array_equal(np.concatenate(list(got.pieces(name, 1000))), want.reshape(-1))
    assert np.unique(want).size > 10
    gguf_type = TYPES_BY_NAME[kind]
    assert got.n_bytes(name) == want.size // gguf_type.block_size * gguf_type.type_size
    summary = TensorSummary.from_folder(path, name)
    assert summary.n == want.size


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K"])
def test_an_engine_gives_the_same_text_for_a_file_as_for_a_folder(
    make: Make, tmp_path: Path, kind: str
) -> None:
    folder, path = make(QUANT_TYPES, kind)
    checkpoint = Checkpoint.open(path)
    same = Path(shutil.copytree(folder, tmp_path / "same"))
    save_file(
        {name: checkpoint.read_f32(name) for name in checkpoint.names()},
        same / "model.safetensors",
    )
    ids = random_llama.ids("tiny", 20)
    logits = []
    for place in (path, same):
        engine = Engine.load(place, LoadOptions(dtype="f32", backend="torch", context=64))
        logits.append(engine.logits(ids))
        assert engine.info.model.parameters == Inventory.from_folder(folder).parameters
        is_quantised = place == path and kind != "F32"
        assert engine.info.model.conversion == (f"{kind} converted to f32" if is_quantised else "")
        engine.close()
    assert np.array_equal(*logits)
    assert np.ptp(logits[0]) > 0.1


def with_rope_factors(folder: Path, path: Path, factor: float | None = None) -> Path:
    """Copy the file at `path` and add the tensor of rotary factors that llama.cpp writes."""
    from gpu.bench.peers.gguf_file import rope_factors

    factors = rope_factors(ModelConfig.from_folder(folder))
    assert factors is not None
    if factor is not None:
        factors = factors * np.float32(factor)
    reader = gguf.GGUFReader(path)
    target = path.with_name("factors.gguf")
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("llama."):
            value = field.contents()
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(
                field.name, value
            )
    gguf_models.add_tokenizer(writer, folder)
    writer.add_tensor("rope_freqs.weight", factors)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    gguf_models.finish(writer)
    return target


def test_rope_factors_other_than_llama_3s_are_refused(make: Make) -> None:
    folder, path = make(LLAMA3)
    with pytest.raises(ModelError, match=r"expected rope_freqs.weight to be Llama 3"):
        ModelConfig.from_folder(with_rope_factors(folder, path, factor=1.5))


# ---- models in several files -------------------------------------------------------------------


@pytest.fixture
def parts(make: Make, tmp_path: Path) -> tuple[Path, list[Path]]:
    """A whole file, and the same model in three."""
    _, whole = make(BIASES, "Q8_0")
    return whole, gguf_models.split(whole, tmp_path / "model", 3)


@pytest.mark.parametrize("named", [0, 2])
def test_any_part_opens_the_whole_model(parts: tuple[Path, list[Path]], named: int) -> None:
    whole, files = parts
    got, want = Checkpoint.open(files[named]), Checkpoint.open(whole)
    assert set(got.names()) == set(want.names())
    for name in want.names():
        assert np.array_equal(got.read_f32(name), want.read_f32(name))
    assert got.paths() == tuple(files)
    assert ModelConfig.from_folder(files[named]) == ModelConfig.from_folder(whole)
    assert Tokenizer.load(files[named]).encode("a b") == Tokenizer.load(whole).encode("a b")


def test_many_parts_are_read_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Config, tokenizer and weights share the opened files."""
    _, whole = make(BIASES, "Q8_0")
    files = gguf_models.split(whole, tmp_path / "model", 12)
    opened: list[Path] = []
    read_header = file_module.read_header

    def noted(path: Path, data: Any) -> Any:
        opened.append(path)
        return read_header(path, data)

    monkeypatch.setattr(file_module, "read_header", noted)
    ModelConfig.from_folder(files[0])
    Tokenizer.load(files[0])
    Checkpoint.open(files[5])
    assert opened == files


def test_parts_that_do_not_belong_together_are_refused(parts: tuple[Path, list[Path]]) -> None:
    _, files = parts
    first, second, third = (path.read_bytes() for path in files)
    files[2].unlink()
    with pytest.raises(ModelError, match=r"00003-of-00003\.gguf: cannot be read"):
        open_gguf(files[0])
    files[2].write_bytes(second)
    with pytest.raises(ModelError, match=r"split\.no is 1 of 3; expected 2 of 3"):
        open_gguf(files[0])
    files[2].write_bytes(third.replace(b"split.no", b"split.xx"))
    with pytest.raises(ModelError, match=r"split\.no is null of 3"):
        open_gguf(files[0])
    number = struct.pack("<H", 1)
    at = second.index(b"split.no") + len(b"split.no") + 4
    assert second[at : at + 2] == number
    files[2].write_bytes(second[:at] + struct.pack("<H", 2) + second[at + 2 :])
    with pytest.raises(ModelError, match="is also in another file of the model"):
        open_gguf(files[0])
    files[2].write_bytes(third)
    key = b"split.tensors.count"
    at = first.index(key) + len(key) + 4
    files[0].write_bytes(first[:at] + struct.pack("<i", 99) + first[at + 4 :])
    with pytest.raises(
        ModelError, match="expected 99 tensors in all files together, but they have"
    ):
        open_gguf(files[0])


# ---- blocks stored without conversion ----------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), [("Q8_0", "q8"), ("Q4_0", "q4"), ("Q4_1", "q4")])
def test_blocks_are_stored_as_they_are(
    make: Make, device: Device, kind: str, dtype: str, packed: list[str]
) -> None:
    """The numbers of the file to the bit, in the order of the device; nothing is quantised except
    the embedding of a q4 model, which has eight bits."""
    _, path = make(BIASES, kind)
    config, checkpoint = ModelConfig.from_folder(path), Checkpoint.open(path)
    memory = Memory(device)
    model = MODELS["llama"](config, WeightLoader(checkpoint, memory, dtype), memory, 64)
    ends = {"model.embed_tokens.weight", "lm_head.weight"}
    assert set(packed) == (ends if dtype == "q4" else set())
    exact = MODELS["llama"](config, WeightLoader(checkpoint, memory, "f32"), memory, 64)
    for got, want in zip(model.layer_matrices(), exact.layer_matrices(), strict=True):
        assert np.array_equal(stored_numbers(memory, got), stored_numbers(memory, want)), got.name


@pytest.mark.parametrize(("kind", "dtype"), [("Q8_0", "q8"), ("Q4_0", "q4"), ("Q4_1", "q4")])
def test_pytorch_computes_with_the_same_numbers(make: Make, kind: str, dtype: str) -> None:
    _, path = make(BIASES, kind)
    checkpoint, name = Checkpoint.open(path), "model.layers.0.mlp.up_proj.weight"
    load = Loader(checkpoint, dtype, lambda n: None)
    assert np.array_equal(load.matrix(name, *checkpoint.shape(name)), checkpoint.read_f32(name))
    assert str(load.conversion) == f"{kind} as they are"


def test_q4_k_keeps_its_integers(make: Make, device: Device, packed: list[str]) -> None:
    """Scales and minimums are products of two numbers there; they are rounded to float16, on the
    device and in PyTorch alike."""
    _, path = make(QUANT_TYPES, "Q4_K")
    checkpoint, name = Checkpoint.open(path), "model.layers.0.mlp.up_proj.weight"
    words, exact = checkpoint.read_packed(name, slice(None)), checkpoint.read_f32(name)
    n, k = exact.shape
    scales_mins = words[:, k // 8 :].view(np.float16).astype(np.float64)[:, : k // 16]
    scales, mins = (np.repeat(scales_mins[:, first::2], 32, axis=1) for first in (0, 1))
    numbers = unpack("q4", words, k)
    assert np.all(np.abs(numbers - exact) <= 2.0**-11 * (15 * scales + np.abs(mins)) + 2.0**-24)
    assert np.abs(numbers - exact).max() > 0
    load = Loader(checkpoint, "q4", lambda n: None)
    assert np.array_equal(load.matrix(name, n, k), numbers)
    said = "Q4_K as they are, but with scales in float16"
    assert str(load.conversion) == said
    memory = Memory(device)
    loader = WeightLoader(checkpoint, memory, "q4")
    model = MODELS["llama"](ModelConfig.from_folder(path), loader, memory, 64)
    assert set(packed) == {"model.embed_tokens.weight"}
    assert str(loader.conversion) == f"{said} and converted to q8"
    [up] = [each for each in model.layer_matrices() if "gate_up" in each.name]
    assert np.array_equal(stored_numbers(memory, up)[1::2], numbers)


class Kept(NoWeightCache):
    """Weight cache that keeps the names of what it is given."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def add(self, name: str, shape: tuple[int, int], rows: U32) -> None:
        self.names.add(name)


def test_only_parts_of_another_type_are_quantised(make: Make, device: Device) -> None:
    """As in Q3_K_M, which has some values in Q4_K."""

    def loaded(kind: str, **kinds: str) -> tuple[dict[str, Floats], set[str]]:
        """Return the numbers of the layers' matrices, and the names of those that are cached."""
        _, path = make(QUANT_TYPES, kind, kinds=kinds)
        memory, kept = Memory(device), Kept()
        load = WeightLoader(Checkpoint.open(path), memory, "q4", weight_cache=kept)
        model = MODELS["llama"](ModelConfig.from_folder(path), load, memory, 64)
        found = {each.name: stored_numbers(memory, each) for each in model.layer_matrices()}
        return found, kept.names

    copied, _ = loaded("Q4_K")
    quantised, _ = loaded("Q3_K")
    mixed, kept = loaded("Q4_K", attn_v="Q3_K", ffn_up="Q3_K")
    n_qk = (QUANT_TYPES.n_heads + QUANT_TYPES.n_kv_heads) * QUANT_TYPES.head_dim
    for name, numbers in mixed.items():
        assert not np.array_equal(copied[name], quantised[name])
        is_other = np.zeros(len(numbers), bool)
        if "qkv" in name:
            is_other[n_qk:] = True
        elif "gate_up" in name:
            is_other[1::2] = True
        expected = np.where(is_other[:, np.newaxis], quantised[name], copied[name])
        assert np.array_equal(numbers, expected), name
        assert (name in kept) == is_other.any()


def test_matrices_that_have_more_bits_in_the_file_keep_more(make: Make, device: Device) -> None:
    """As in Q4_K_M, which has some values and down projections in Q6_K: stored as q4, these are q8,
    and so is what is fused with them; on the device, in PyTorch and by the list of tensors."""
    kinds = {"attn_v": "Q5_1", "blk.1.ffn_down": "Q8_0", "blk.0.ffn_up": "F16"}
    _, path = make(BIASES, "Q4_0", kinds=kinds)
    config, checkpoint = ModelConfig.from_folder(path), Checkpoint.open(path)
    memory, exact = Memory(device), Memory(device)
    load = WeightLoader(checkpoint, memory, "q4")
    model = MODELS["llama"](config, load, memory, 64)
    in_f32 = MODELS["llama"](config, WeightLoader(checkpoint, exact, "f32"), exact, 64)
    tensors = {tensor.name: tensor for tensor in Inventory.of(config, checkpoint, "q4").tensors}
    longer = set()
    for got, want in zip(model.layer_matrices(), in_f32.layer_matrices(), strict=True):
        sources = [tensors[source] for source in got.sources]
        assert {source.device_dtype for source in sources} == {got.dtype}
        assert sum(source.device_bytes or 0 for source in sources) == got.n_bytes
        if got.dtype == "q8":
            longer.add(got.name)
        numbers, saved = stored_numbers(memory, got), stored_numbers(exact, want)
        error = np.sqrt(np.square(numbers - saved).mean() / np.square(saved).mean())
        is_exact = all(checkpoint.is_packed(source, got.dtype) for source in got.sources)
        assert error < (1e-9 if is_exact else 0.01), got.name
    qkv = {f"layer{i:02}.attn.qkv" for i in range(BIASES.n_layers)}
    assert longer == {*qkv, "layer01.mlp.down", "layer00.mlp.gate_up"}

    torch_model = TorchLlama(config, checkpoint, "q4", "f32", 1, 64)
    n_kv = BIASES.n_kv_heads * BIASES.head_dim
    stored = {each.name: stored_numbers(memory, each) for each in model.layer_matrices()}
    for i, layer in enumerate(torch_model.layers):
        k, v, down = (part.weight.numpy() for part in (layer.k, layer.v, layer.mlp.down))
        of_keys = stored[f"layer{i:02}.attn.qkv"][-2 * n_kv : -n_kv]
        assert np.array_equal(np.sort(of_keys, axis=0), np.sort(k, axis=0)), "rows are reordered"
        assert np.array_equal(stored[f"layer{i:02}.attn.qkv"][-n_kv:], v)
        assert np.array_equal(stored[f"layer{i:02}.mlp.down"], down)


@pytest.mark.parametrize(
    ("kind", "dtype", "said"),
    [
        ("Q8_0", "q8", "Q8_0 as they are"),
        ("Q8_0", "q4", "Q8_0 as they are and converted to q4"),  # the vocabulary has eight bits
        ("Q4_0", "q4", "Q4_0 as they are and converted to q8"),
        ("Q4_1", "q4", "Q4_1 as they are and converted to q8"),
        ("Q5_1", "f16", "Q5_1 converted to f16"),
        ("F16", "q8", ""),
    ],
)
def test_the_conversion_of_types_is_reported(
    make: Make, device: Device, kind: str, dtype: str, said: str
) -> None:
    _, path = make(BIASES, kind)
    config, memory = ModelConfig.from_folder(path), Memory(device)
    load = WeightLoader(Checkpoint.open(path), memory, dtype)
    MODELS["llama"](config, load, memory, 64)
    assert str(load.conversion) == said


@pytest.mark.parametrize(
    ("kind", "at", "number"),
    [("Q8_0", 0, np.inf), ("Q8_0", 0, np.nan), ("Q4_0", 0, 9000), ("Q4_1", 0, np.nan),
     ("Q4_1", 2, np.inf)],
)  # fmt: skip
def test_a_non_finite_scale_or_minimum_is_refused_without_conversion(
    make: Make, kind: str, at: int, number: float
) -> None:
    _, path = make(BIASES, kind)
    checkpoint = Checkpoint.open(path)
    name = "model.layers.0.mlp.up_proj.weight"
    data = checkpoint._tensors[name].data.copy()
    data[at : at + 2] = np.array([number], np.float16).view(np.uint8)
    checkpoint._tensors[name] = replace(checkpoint._tensors[name], data=data)
    with pytest.raises(ModelError, match=r"'model\.layers\.0\.mlp\.up_proj\.weight': the scale"):
        checkpoint.read_packed(name, slice(0, 4))
    assert checkpoint.read_packed(name, slice(1, 4)).shape[0] == 3
