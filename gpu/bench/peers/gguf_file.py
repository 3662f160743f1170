"""A model as a GGUF file, as llama.cpp reads it.

The format and the names are those of llama.cpp's `gguf` package (MODEL_ARCH.LLAMA). llama.cpp
rotates the pairs (2j, 2j + 1) of a head where Hugging Face rotates (j, j + head_dim / 2), so the
rows of the query and key projections are reordered, as its converter does. The benchmark uses ids:
the vocabulary names them, `<0>`, `<1>` and so on, with the tokenizer that takes the longest word of
a list (llama.cpp calls it RWKV's), and no token ends a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.bench.peers.peer import PeerMissing
from gpu.bench.subject import BenchModel
from gpu.checkpoint.packing import FORMATS
from gpu.config import ModelConfig

QUANTS = {"f32": "F32", "f16": "F16", "q8": "Q8_0", "q4": "Q4_0"}
"""The GGUF type closest to ours: blocks of 32 weights with one float16 scale for q8 and q4."""

BLOCK = 32

NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the file and the checkpoint tensor it is made of. `heads`: reorder its rows."""

    name: str
    source: str
    heads: int = 0


def write(subject: BenchModel, dtype: str, path: Path) -> None:
    """Write the file. Raises PeerMissing if the `gguf` package is not installed."""
    try:
        import gguf
    except ModuleNotFoundError:
        raise PeerMissing("the gguf package is not installed (pip install gguf)") from None
    config = subject.config
    writer = gguf.GGUFWriter(path, "llama")
    _write_header(writer, config, context=config.context)
    found = list(entries(subject))
    factors = rope_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    for entry in found:
        kind = _kind(gguf, dtype, entry, subject.checkpoint.shape(entry.source))
        writer.add_tensor(entry.name, _data(gguf, subject, entry, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def entries(subject: BenchModel) -> Iterator[Entry]:
    """Yield every tensor of the file but the rotary factors, in layer order."""
    config, checkpoint = subject.config, subject.checkpoint
    yield Entry("token_embd.weight", "model.embed_tokens.weight")
    for i in range(config.n_layers):
        for theirs, ours in NAMES.items():
            heads = {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}.get(ours, 0)
            for suffix in ("", ".weight", ".bias"):
                source = f"model.layers.{i}.{theirs}{suffix}"
                if source in checkpoint:
                    yield Entry(f"blk.{i}.{ours}{suffix}", source, heads)
    yield Entry("output_norm.weight", "model.norm.weight")
    if not config.tie_embeddings:
        yield Entry("output.weight", "lm_head.weight")


def rope_factors(config: ModelConfig) -> npt.NDArray[np.float32] | None:
    """Return plain rotary frequencies over the model's own (head_dim / 2,); None if equal."""
    exponents = np.arange(0, config.head_dim, 2) / config.head_dim
    plain = config.rope.theta**-exponents
    factors = plain / config.rope.inv_freq(config.head_dim)
    return None if np.allclose(factors, 1) else factors.astype(np.float32)


def interleaved(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Return the rows of each head in the order 0, d/2, 1, d/2 + 1, …"""
    by_half = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(by_half.swapaxes(1, 2)).reshape(rows.shape)


def _write_header(writer: Any, config: ModelConfig, context: int) -> None:
    writer.add_context_length(context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([f"<{id}>" for id in range(config.vocab_size)])


def _kind(gguf: Any, dtype: str, entry: Entry, shape: tuple[int, ...]) -> Any:
    """Return the GGUF type of a tensor: vectors float32, rows that are not whole blocks float16 (as
    in llama.cpp), the rest as our format stores them."""
    types = gguf.GGMLQuantizationType
    if len(shape) == 1:
        return types.F32
    vocabulary = entry.name in ("token_embd.weight", "output.weight")
    name = QUANTS[FORMATS[dtype].vocabulary if vocabulary else dtype]
    if name.startswith("Q") and shape[1] % BLOCK:
        return types.F16
    return types[name]


def _data(gguf: Any, subject: BenchModel, entry: Entry, kind: Any) -> npt.NDArray[Any]:
    data = subject.checkpoint.read_f32(entry.source)
    if entry.heads:
        data = interleaved(data, entry.heads)
    quantised: npt.NDArray[Any] = gguf.quants.quantize(data, kind)
    return quantised
