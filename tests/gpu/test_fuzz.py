"""Fuzzing of model files: every file is read, or it is refused with a ModelError (a text that its
tokenizer cannot read with InvalidRequest), within a bound of memory."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from gpu.architectures import ENCODERS
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.reader import Checkpoint
from gpu.config import MODEL_TYPES, GenerationDefaults, ModelConfig
from gpu.config.sentence_transformers import read_encoder
from gpu.errors import InvalidRequest, ModelError
from gpu.gguf.header import read_header
from gpu.lora.adapter import Lora
from gpu.text.tokenizer import Tokenizer
from tests.gpu.gguf import gguf_models
from tests.gpu.lora import random_loras
from tests.gpu.models import random_bert, random_llama
from tests.gpu.models.test_families import GPT2, SIZES
from tests.gpu.ops.mutations import json_files, mutants, safetensors_files
from tests.gpu.text import made_tokenizers
from tests.gpu.text.made_tokenizers import SPECIALS
from tests.real_weights import real_weights

QUICK, LONG, LONG_OF_REAL = 60, 3000, 300
MAX_BYTES = 64 << 20
"""Bound of memory for a file of some KB."""
SENTENCE_PIECES = Path(__file__).parent / "text" / "sentence_piece" / "bpe.model"


@dataclass(frozen=True)
class Target:
    """A file of a model: its path, its mutated contents, and a function that reads it.

    original    contents that can be read, for a file of which few mutations can
    most_bytes  bound of the memory that reading takes
    """

    path: Path
    contents: st.SearchStrategy[bytes]
    read: Callable[[], object]
    original: bytes | None = None
    most_bytes: int = MAX_BYTES


def safetensors(folder: Path) -> Target:
    path = folder / "model.safetensors"
    return Target(path, safetensors_files(*small_file()), lambda: read_all(folder))


def small_file() -> tuple[dict[str, Any], bytes]:
    """A header and its data."""
    sizes = {
        "a": ("F32", [3, 2], 24),
        "b": ("BF16", [5], 10),
        "c": ("F16", [], 2),
        "d": ("I8", [4], 4),
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, n_bytes) in sizes.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    return header, bytes(range(1, at + 1))


def read_all(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    for name in checkpoint.names():
        if checkpoint.is_readable(name):
            checkpoint.read_f32(name)
            checkpoint.read_f16(name)


def index(folder: Path) -> Target:
    names = ("one.safetensors", "two.safetensors")
    header, body = small_file()
    text = json.dumps(header).encode()
    for name in names:
        (folder / name).write_bytes(len(text).to_bytes(8, "little") + text + body)
    weight_map = {"a": names[0], "b": names[1], "c": names[1]}
    base = {"metadata": {"total_size": 80}, "weight_map": weight_map}
    path = folder / "model.safetensors.index.json"
    return Target(path, json_files(base), lambda: read_all(folder))


def config(folder: Path) -> Target:
    shutil.copyfile(
        random_llama.folder("derived_head") / "model.safetensors", folder / "model.safetensors"
    )
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 512}  # fmt: skip
    common = {"rms_norm_eps": 1e-5, "eos_token_id": [1, 2], "bos_token_id": 0,
              "tie_word_embeddings": True, "hidden_act": "silu",
              "rope_parameters": rope}  # fmt: skip

    def of(model_type: str) -> st.SearchStrategy[bytes]:
        sizes = GPT2 if model_type == "gpt2" else SIZES | common
        return json_files({"model_type": model_type, **sizes})

    def read() -> None:
        found = ModelConfig.from_folder(folder)
        Inventory.of(found, Checkpoint.open(folder), "q4")

    return Target(folder / "config.json", st.sampled_from(MODEL_TYPES).flatmap(of), read)


def generation_config(folder: Path) -> Target:
    base = {"temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
            "do_sample": True, "eos_token_id": [1, 2]}  # fmt: skip
    return Target(
        folder / "generation_config.json",
        json_files(base),
        lambda: GenerationDefaults.from_folder(folder),
    )


def gguf(folder: Path) -> Target:
    whole = gguf_models.write(random_llama.folder("derived_head"), folder / "whole.gguf", "F16")
    path = folder / "model.gguf"

    def read() -> None:
        ModelConfig.from_folder(path)
        Tokenizer.load(path).encode("a b")
        read_all(path)

    data = whole.read_bytes()
    return Target(path, mutants(data, 20_000), read, data)


def tokenizer_json(folder: Path) -> Target:
    base = json.loads((random_llama.folder("derived_head") / "tokenizer.json").read_text("utf-8"))
    model = base["model"]
    kept = dict(list(model["vocab"].items())[:300])
    merges = [
        m for m in model["merges"] if "".join(m if isinstance(m, list) else m.split(" ")) in kept
    ]
    base["model"] = model | {"vocab": kept, "merges": merges}
    return Target(folder / "tokenizer.json", json_files(base), lambda: use_tokenizer(folder))


def tokenizer_config(folder: Path) -> Target:
    source = random_llama.folder("derived_head")
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    first, _, last = SPECIALS
    base = {"bos_token": first, "eos_token": {"content": last, "special": True},
            "add_bos_token": True, "chat_template": [{"name": "default", "template": "{{ 1 }}"}],
            "added_tokens_decoder": {"0": {"content": first, "special": True}}}  # fmt: skip
    return Target(folder / "tokenizer_config.json", json_files(base), lambda: use_tokenizer(folder))


def sentence_pieces(folder: Path) -> Target:
    path = folder / "tokenizer.model"
    data = SENTENCE_PIECES.read_bytes()
    return Target(path, mutants(data), lambda: use_tokenizer(folder), data)


def use_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    tokenizer.decode(tokenizer.encode("Once 12 é ☃\n"))  # some vocabularies have no snowman


def adapter_config(folder: Path) -> Target:
    made = random_loras.folder(random_loras.LLAMA, "all")
    shutil.copyfile(made / "adapter_model.safetensors", folder / "adapter_model.safetensors")
    base = json.loads((made / "adapter_config.json").read_text())
    return Target(folder / "adapter_config.json", json_files(base), lambda: open_lora(folder))


def adapter(folder: Path) -> Target:
    made = random_loras.folder(random_loras.LLAMA, "all")
    shutil.copyfile(made / "adapter_config.json", folder / "adapter_config.json")
    path = folder / "adapter_model.safetensors"
    data = (made / path.name).read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    return Target(path, safetensors_files(header, data[8 + n :]), lambda: open_lora(folder), data)


def open_lora(folder: Path) -> None:
    model = random_loras.base(random_loras.LLAMA)
    lora = Lora.open("tone", folder, ModelConfig.from_folder(model), Checkpoint.open(model))
    for module in lora.modules:
        assert lora.a(module).shape[0] == lora.b(module).shape[1]


def word_pieces(folder: Path) -> Target:
    base = json.loads(made_tokenizers.word_piece().to_str())
    return Target(folder / "tokenizer.json", json_files(base), lambda: use_tokenizer(folder))


def encoder_config(folder: Path) -> Target:
    def of(model_type: str) -> st.SearchStrategy[bytes]:
        return json_files(AutoConfig.for_model(model_type, **random_bert.SIZES).to_dict())

    read = functools.partial(ModelConfig.of_encoder, folder)
    return Target(folder / "config.json", st.sampled_from(sorted(ENCODERS)).flatmap(of), read)


def sentence_file(name: str, folder: Path, base: Any) -> Target:
    """A file that sentence-transformers writes beside an encoder."""
    path = random_bert.write(folder, max_seq_length=64) / name
    return Target(path, json_files(base), lambda: read_encoder(folder))


def modules(folder: Path) -> Target:
    kinds = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    base = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    return sentence_file("modules.json", folder, base)


def pooling(folder: Path) -> Target:
    base = {"word_embedding_dimension": 60, "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": False, "include_prompt": True}  # fmt: skip
    return sentence_file("1_Pooling/config.json", folder, base)


def prompts(folder: Path) -> Target:
    base = {"prompts": {"query": "find ", "document": ""}, "default_prompt_name": "query",
            "similarity_fn_name": "cosine"}  # fmt: skip
    return sentence_file("config_sentence_transformers.json", folder, base)


def real_gguf(folder: Path) -> Target:
    """SmolLM2: its header with changes, most of them before the tokens, and no data."""
    whole = real_weights("SmolLM2-135M-Instruct").read_bytes()
    head = whole[: read_header(folder, np.frombuffer(whole, np.uint8)).start]
    path = folder / "model.gguf"

    def read() -> None:
        os.truncate(path, len(whole))
        ModelConfig.from_folder(path)
        Checkpoint.open(path)
        Tokenizer.load(path).encode("a b")

    contents = mutants(head, 2000) | mutants(head)
    return Target(path, contents, read, head, 2 * MAX_BYTES)  # two copies of all strings


def real_safetensors(folder: Path) -> Target:
    """MiniLM: its header with changes, and no data."""
    whole = (real_weights("all-MiniLM-L6-v2") / "model.safetensors").read_bytes()
    head = whole[: 8 + int.from_bytes(whole[:8], "little")]
    path = folder / "model.safetensors"

    def read() -> None:
        os.truncate(path, len(whole))
        Checkpoint.open(folder)

    contents = safetensors_files(json.loads(head[8:]), b"") | mutants(head)
    return Target(path, contents, read, head)


def real_tokenizer(folder: Path) -> Target:
    """MiniLM's WordPiece, of 30,522 tokens."""
    base = (real_weights("all-MiniLM-L6-v2") / "tokenizer.json").read_bytes()
    path = folder / "tokenizer.json"
    return Target(path, mutants(base, 3000) | mutants(base), lambda: use_tokenizer(folder), base)


TARGETS = (
    safetensors, index, config, generation_config, gguf, tokenizer_json, tokenizer_config,
    word_pieces, sentence_pieces, adapter_config, adapter, encoder_config, modules, pooling,
    prompts,
)  # fmt: skip
REAL = (real_gguf, real_safetensors, real_tokenizer)

long = pytest.mark.parametrize(
    "n", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)], ids=["", "long"]
)


@long
@pytest.mark.parametrize("make", TARGETS, ids=lambda make: make.__name__)
def test_files_are_read_or_refused(tmp_path: Path, make: Callable[[Path], Target], n: int) -> None:
    expect_read_or_refused(make(tmp_path), n)


@pytest.mark.slow
@pytest.mark.parametrize("make", REAL, ids=lambda make: make.__name__)
def test_changed_files_of_published_models_are_read_or_refused(
    tmp_path: Path, make: Callable[[Path], Target]
) -> None:
    expect_read_or_refused(make(tmp_path), LONG_OF_REAL)


def expect_read_or_refused(target: Target, n: int) -> None:
    """Read `n` contents of a file: some can be read, and others are refused."""
    refused: list[bool] = []

    @settings(
        max_examples=n,
        derandomize=n == QUICK,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.contents)
    def whatever_it_holds(contents: bytes) -> None:
        target.path.write_bytes(contents)
        tracemalloc.start()
        try:
            target.read()
            refused.append(False)
        except (ModelError, InvalidRequest):
            refused.append(True)
        finally:
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert most < target.most_bytes

    if target.original is not None:
        whatever_it_holds = example(target.original)(whatever_it_holds)
    whatever_it_holds()
    assert any(refused)
    assert not all(refused)
