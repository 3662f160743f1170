"""Llama models of different sizes with random weights, and transformers' results for them.

`folder(name)` writes a model folder once per process; `reference(name)` is transformers' own model
loaded from that folder (float32, eager attention), so a wrong reading of the folder shows too.
Weights are scaled so that attention is peaked here and flat there and logits differ clearly: with
the usual initialisation (0.02) a model is so dull that a wrong kernel can hide in it.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gpu.step import Captured, Floats
from tests.gpu.text import made_tokenizers

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Shape:
    """A configuration. `old`: config.json as written before transformers 5; `shards`: several
    weight files; `head_dim` None: left out of config.json, derived from hidden_size."""

    name: str
    n_heads: int
    n_kv_heads: int
    head_dim: int | None
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    n_layers: int = 2
    context: int = 512
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope: dict[str, Any] = field(default_factory=dict)
    eps: float = 1e-5
    dtype: str = "float32"
    old: bool = False
    shards: bool = False


_LINEAR = {"rope_type": "linear", "factor": 4.0}
SHAPES = (
    Shape("tiny", 1, 1, 8, 12, 20, 97, n_layers=1),
    Shape("odd36", 4, 4, 8, 36, 100, 97, n_layers=3),
    Shape("odd100_tied", 10, 5, 12, 100, 172, 301, tied=True),
    Shape("odd172_bias", 4, 1, 20, 172, 36, 1009, attention_bias=True, dtype="bfloat16"),
    Shape("gqa8", 8, 1, 16, 104, 90, 333, mlp_bias=True),
    Shape("head100_all_bias", 4, 2, 100, 100, 260, 512, attention_bias=True, mlp_bias=True),
    Shape("head128_llama3", 4, 1, 128, 256, 320, 2048, rope={"rope_theta": 5e5, **LLAMA3}),
    Shape("vocab50000_tied", 4, 2, 16, 64, 96, 50_000, tied=True, dtype="float16"),
    Shape("derived_head", 8, 4, None, 64, 172, 512, n_layers=5, old=True),
    Shape("linear_old", 6, 2, 32, 126, 130, 500, rope=_LINEAR, old=True),
    Shape("llama3_old_shards", 9, 3, 64, 144, 250, 777, rope=LLAMA3, old=True, shards=True),
    Shape("deep_shards", 4, 1, 24, 60, 68, 260, n_layers=12, tied=True, shards=True),
    Shape("head80_theta", 5, 5, 80, 205, 401, 1537, rope={"rope_theta": 1e6}, eps=1e-3),
    Shape("gqa6_wide", 12, 2, 48, 132, 1030, 640, n_layers=1, context=100, dtype="bfloat16"),
    Shape("long_context", 6, 2, 16, 48, 64, 300, context=1300, tied=True),
)
NAMES = tuple(shape.name for shape in SHAPES)
_BY_NAME = {shape.name: shape for shape in SHAPES}


@cache
def folder(name: str) -> Path:
    """Return the model folder of a shape, written on first use and removed at exit."""
    path = Path(tempfile.mkdtemp(prefix=f"llama-{name}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return write(path, _BY_NAME[name])


@lru_cache(maxsize=4)
def reference(name: str) -> Reference:
    """Return transformers' model of a shape."""
    return Reference(folder(name))


def write(path: Path, shape: Shape, seed: int = 0) -> Path:
    """Write config.json, generation_config.json, *.safetensors and a tokenizer."""
    model = LlamaForCausalLM(_config(shape))
    _randomise(model, torch.Generator().manual_seed(seed))
    model.to(getattr(torch, shape.dtype))
    n_bytes = sum(weight.nbytes for weight in model.parameters())
    model.save_pretrained(path, max_shard_size=n_bytes // 3 if shape.shards else "10GB")
    _rewrite_config(path / "config.json", shape)
    small = shape.vocab_size < 256 + len(made_tokenizers.SPECIALS)
    tokenizer = (
        made_tokenizers.ascii_level()
        if small
        else made_tokenizers.byte_level(min(shape.vocab_size, 400))
    )
    special = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}
    return made_tokenizers.save(path, tokenizer, special)


def ids(name: str, n: int, seed: int = 0) -> list[int]:
    """Return random token ids of a shape's vocabulary."""
    rng = np.random.default_rng(seed)
    return [int(id) for id in rng.integers(0, _BY_NAME[name].vocab_size, n)]


class Reference:
    """transformers' LlamaForCausalLM of a model folder: float32, eager attention, on the CPU."""

    def __init__(self, path: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Floats:
        """Return the logits, float32 (len(ids), vocab_size)."""
        logits: Floats = self.model(torch.tensor([list(ids)])).logits[0].numpy()
        return logits

    @torch.no_grad()
    def captured(self, ids: Sequence[int]) -> Captured:
        """Return the statistics of one forward pass over `ids`, by hooks on the modules."""
        norms: dict[str, list[torch.Tensor]] = {}
        cosines: dict[str, list[torch.Tensor]] = {}
        handles = []
        stream = torch.empty(0)  # that the next update is added to

        def keep(key: str) -> Callable[..., None]:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                nonlocal stream
                hidden = (output[0] if isinstance(output, tuple) else output)[0].double()
                norms.setdefault(key, []).append(hidden.norm(dim=-1))
                if key in ("embedding", "residual"):
                    stream = hidden
                else:
                    cosine = torch.nn.functional.cosine_similarity(stream, hidden, dim=-1, eps=0)
                    cosines.setdefault(key, []).append(cosine)
                    stream = stream + hidden

            return hook

        llama = self.model.model
        handles.append(llama.embed_tokens.register_forward_hook(keep("embedding")))
        for layer in llama.layers:
            handles.append(layer.register_forward_hook(keep("residual")))
            handles.append(layer.self_attn.o_proj.register_forward_hook(keep("attention")))
            handles.append(layer.mlp.down_proj.register_forward_hook(keep("mlp")))
        try:
            attentions = self.model(torch.tensor([list(ids)]), output_attentions=True).attentions
        finally:
            for handle in handles:
                handle.remove()
        entropy = [
            -torch.xlogy(p, p).sum(-1).T / np.log(2) for p in (a[0].double() for a in attentions)
        ]
        return Captured(
            embedding=norms["embedding"][0].float().numpy(),
            residual=torch.stack(norms["residual"], 1).float().numpy(),
            attention=torch.stack(norms["attention"], 1).float().numpy(),
            mlp=torch.stack(norms["mlp"], 1).float().numpy(),
            attention_cosine=torch.stack(cosines["attention"], 1).float().numpy(),
            mlp_cosine=torch.stack(cosines["mlp"], 1).float().numpy(),
            entropy=torch.stack(entropy, 1).float().numpy(),
        )


def _config(shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.context,
        rms_norm_eps=shape.eps,
        tie_word_embeddings=shape.tied,
        attention_bias=shape.attention_bias,
        mlp_bias=shape.mlp_bias,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, **shape.rope},
        bos_token_id=0,
        eos_token_id=2,
    )


ENLARGED = ("q_proj", "k_proj", "embed_tokens", "lm_head")


@torch.no_grad()
def _randomise(model: LlamaForCausalLM, generator: torch.Generator) -> None:
    """Draw weights: matrices keep the size of their input; queries, keys and output enlarge it."""
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            gain = (
                2.0
                if any(part in name for part in ("q_proj", "k_proj", "embed", "lm_head"))
                else 1.0
            )
            weight.normal_(0.0, gain / weight.shape[1] ** 0.5, generator=generator)
        elif name.endswith("bias"):
            weight.normal_(0.0, 0.3, generator=generator)
        else:
            weight.uniform_(0.5, 1.5, generator=generator)


def _rewrite_config(path: Path, shape: Shape) -> None:
    config = json.loads(path.read_text())
    if shape.head_dim is None:
        config.pop("head_dim")
    if shape.old:
        rope = config.pop("rope_parameters")
        config["torch_dtype"] = config.pop("dtype")
        config["rope_theta"] = rope.pop("rope_theta")
        kind = rope.pop("rope_type")
        key = "rope_type" if kind == "llama3" else "type"
        config["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    path.write_text(json.dumps(config, indent=2))
