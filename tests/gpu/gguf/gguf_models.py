"""GGUF files for tests: a model folder converted, and damaged files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.gpu.gguf import gguf_converter

KINDS = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K",
    "Q5_K", "Q6_K", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S",
)  # fmt: skip
IQ1_M_SCALE = np.array([0x00, 0x00, 0x40, 0x10], np.uint8)
"""0x1400, 0.001 as a float16: its lowest four bits first, each as the upper half of a byte."""
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6


def write(
    folder: Path,
    path: Path,
    kind: str = "F32",
    kinds: Mapping[str, str] = MappingProxyType({}),
    **changes: Any,
) -> Path:
    """Write the model of a folder as GGUF with matrices of type `kind`.

    kinds    types of the matrices whose names contain these words, such as {"attn_v": "Q6_K"}
    changes  metadata that differs from the folder's; None removes it
    """
    arch = changes.pop("architecture", None) or gguf_converter.architecture(folder)
    pre = changes.pop("pre", None)
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**gguf_converter.values(folder), **changes}.items():
        if value is not None:
            _add(writer, f"{arch}.{key}", value)
    add_tokenizer(writer, folder)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    for name, data in gguf_converter.tensors(folder):
        own = next((kinds[word] for word in kinds if word in name), kind)
        chosen = gguf.GGMLQuantizationType["F32" if _is_exact(name, data) else own]
        writer.add_tensor(name, packed(data, chosen), raw_dtype=chosen)
    finish(writer)
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)
        case _:
            writer.add_uint32(key, value)


def _is_exact(name: str, data: npt.NDArray[Any]) -> bool:
    """Return whether a tensor is never quantised: vectors, routers and positions."""
    return data.ndim == 1 or ".ffn_gate_inp." in name or name == "position_embd.weight"


def packed(data: npt.NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> npt.NDArray[Any]:
    """Return data packed by the gguf package, or random blocks of a type that it cannot pack."""
    if kind.name.endswith("_K") or kind.name.startswith("IQ"):
        return random_blocks(data, kind)
    found: npt.NDArray[Any] = gguf.quants.quantize(data, kind)
    return found


def random_blocks(data: npt.NDArray[Any], kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """Return blocks of random bytes with small scales, the same at every call for the same data."""
    block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    n = data.size // block
    rng = np.random.default_rng(int(np.abs(data).sum() * 1000))
    blocks = rng.integers(0, 256, (n, n_bytes), np.uint8)
    scales = rng.uniform(1e-4, 1e-3, (n, 2)).astype(np.float16).view(np.uint8)
    if kind.name in ("Q3_K", "Q6_K"):
        blocks[:, -2:] = scales[:, :2]
    elif kind.name == "Q2_K":
        blocks[:, -4:] = scales
    elif kind.name == "IQ1_M":  # its scale is in the upper bits of its last four words
        blocks[:, -7::2] = blocks[:, -7::2] & 15 | IQ1_M_SCALE
    elif kind.name.startswith("IQ"):
        blocks[:, :2] = scales[:, :2]
    else:
        blocks[:, :4] = scales
    return blocks.reshape(*data.shape[:-1], -1)


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Add the byte-level BPE of tokenizer.json, with tokenizer_config.json and the ids of
    config.json."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    vocab = {**tokenizer["model"]["vocab"]}
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    vocab |= {text: token["id"] for text, token in added.items()}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    assert [vocab[token] for token in tokens] == list(range(len(tokens)))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([_type(added.get(token)) for token in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    for name in ("bos", "eos", "unk", "sep", "pad", "mask"):
        token = config.get(f"{name}_token")
        if token is not None:
            getattr(writer, f"add_{name}_token_id")(vocab[token])
    writer.add_add_bos_token(bool(config.get("add_bos_token", False)))
    if templates := config.get("chat_template"):
        writer.add_chat_template(templates)


def _type(added: dict[str, Any] | None) -> int:
    if added is None:
        return NORMAL
    return CONTROL if added["special"] else USER_DEFINED


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def split(path: Path, stem: Path, n_parts: int) -> list[Path]:
    """Split a file into `n_parts` as llama.cpp's gguf-split does: metadata in the first, tensors in
    the order of the file."""
    reader = gguf.GGUFReader(path)
    found = []
    for i, tensors in enumerate(np.array_split(np.arange(len(reader.tensors)), n_parts)):
        target = Path(f"{stem}-{i + 1:05}-of-{n_parts:05}.gguf")
        writer = gguf.GGUFWriter(target, "llama")
        if i == 0:
            copy_values(reader, writer)
        writer.add_uint16(gguf.Keys.Split.LLM_KV_SPLIT_NO, i)
        writer.add_uint16(gguf.Keys.Split.LLM_KV_SPLIT_COUNT, n_parts)
        writer.add_int32(gguf.Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT, len(reader.tensors))
        for tensor in (reader.tensors[n] for n in tensors):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        finish(writer)
        found.append(target)
    return found


def copy_values(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub_type)
