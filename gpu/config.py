"""What a model folder says about its model: `config.json` and `generation_config.json`.

Only what the engine can run exactly is accepted; everything else is refused by name, because a
setting that is silently ignored gives text that is quietly wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpu.errors import ModelError
from gpu.json_object import JsonObject, shown
from gpu.sampling import RANGES

MODEL_TYPES = ("llama",)
ROPE_SCALINGS = ("default", "linear", "llama3")

MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_WIDTH = 2**20
MAX_VOCAB = 2**24
MAX_CONTEXT = 2**26

DEFAULT_THETA = 10000.0
HEAD_DIM_MULTIPLE = 4
"""The shaders read keys and values as vec4."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, "RoFormer").

    theta             base of the wavelengths
    scaling           an entry of `ROPE_SCALINGS`
    factor            linear: positions are divided by it; llama3: long wavelengths are
                      stretched by it
    low_freq_factor, high_freq_factor, original_context
                      llama3 only: wavelengths longer than original_context / low_freq_factor are
                      stretched, those shorter than original_context / high_freq_factor are kept,
                      those between are blended
    """

    theta: float = DEFAULT_THETA
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def inv_freq(self, head_dim: int) -> npt.NDArray[np.float64]:
        """float64 (head_dim / 2,): radians by which one position turns each pair of a head.

        None of the supported scalings changes the length of the rotated vectors. The llama3 blend
        is that of Meta's llama-models, `apply_scaling` in models/llama3/model.py.
        """
        inv_freq = self.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        if self.scaling == "linear":
            return inv_freq / self.factor
        if self.scaling == "llama3":
            turns = self.original_context * inv_freq / (2 * math.pi)
            kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            kept = np.clip(kept, 0.0, 1.0)
            return kept * inv_freq + (1 - kept) * inv_freq / self.factor
        return inv_freq


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model.

    context        positions the model was made for (max_position_embeddings)
    eos_ids        tokens that end a text, those of generation_config.json before config.json's
    attention_bias biases on the four projections of attention; mlp_bias on the three of the MLP
    torch_dtype    the dtype the weights were saved in, as the config names it; None: it does not
    """

    model_type: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    context: int
    rms_norm_eps: float
    tie_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    eos_ids: tuple[int, ...]
    bos_id: int | None
    torch_dtype: str | None

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelConfig:
        """Read and check a model folder's configuration; `ModelError` says what cannot be run."""
        folder = Path(folder)
        if not folder.is_dir():
            raise ModelError(f"{folder}: not a folder; give the folder that holds config.json")
        config = JsonObject.read(folder / "config.json")
        generation = JsonObject.read_optional(folder / "generation_config.json")
        _refuse_unsupported(config)
        hidden_size = config.integer("hidden_size", 1, MAX_WIDTH)
        n_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
        vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
        context = config.integer("max_position_embeddings", 1, MAX_CONTEXT)
        return cls(
            model_type=config.string("model_type"),
            n_layers=config.integer("num_hidden_layers", 1, MAX_LAYERS),
            n_heads=n_heads,
            n_kv_heads=_n_kv_heads(config, n_heads),
            head_dim=_head_dim(config, hidden_size, n_heads),
            hidden_size=hidden_size,
            intermediate_size=config.integer("intermediate_size", 1, MAX_WIDTH),
            vocab_size=vocab_size,
            context=context,
            rms_norm_eps=config.number("rms_norm_eps", 0.0, 1.0),
            tie_embeddings=config.boolean("tie_word_embeddings", False),
            attention_bias=config.boolean("attention_bias", False),
            mlp_bias=config.boolean("mlp_bias", False),
            rope=_rope(config, context),
            eos_ids=_eos_ids((generation, config), vocab_size),
            bos_id=_bos_id(config, vocab_size),
            torch_dtype=config.string("dtype", config.string("torch_dtype", "")) or None,
        )


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The sampling settings a model's makers recommend; None where they say nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @classmethod
    def from_folder(cls, folder: str | Path) -> GenerationDefaults:
        """Read `generation_config.json`, if there is one.

        Settings of the draw count only with `do_sample`, as in transformers: without it they are
        left-overs of a greedy model.
        """
        generation = JsonObject.read_optional(Path(folder) / "generation_config.json")

        def number(key: str) -> float | None:
            least, greatest, _ = RANGES[key]
            return generation.number(key, least, greatest) if key in generation else None

        penalty = number("repetition_penalty")
        if not generation.boolean("do_sample", False):
            return cls(repetition_penalty=penalty)
        least, greatest, _ = RANGES["top_k"]
        has_top_k = "top_k" in generation
        return cls(
            temperature=number("temperature"),
            top_k=generation.integer("top_k", int(least), int(greatest)) if has_top_k else None,
            top_p=number("top_p"),
            min_p=number("min_p"),
            repetition_penalty=penalty,
        )


def _refuse_unsupported(config: JsonObject) -> None:
    model_type = config.string("model_type")
    if model_type not in MODEL_TYPES:
        raise ModelError(
            f"{config.where}: model_type {shown(model_type)} is not supported; "
            f"supported: {', '.join(MODEL_TYPES)}"
        )
    config.choice("hidden_act", ("silu",), "silu")
    if "quantization_config" in config:
        raise ModelError(
            f"{config.where}: the weights are quantised (quantization_config), which is not "
            "supported; use the original float32, float16 or bfloat16 weights of the model"
        )


def _n_kv_heads(config: JsonObject, n_heads: int) -> int:
    n_kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS, n_heads)
    if n_heads % n_kv_heads:
        raise config.error(
            "num_key_value_heads", f"a divisor of num_attention_heads, which is {n_heads}"
        )
    return n_kv_heads


def _head_dim(config: JsonObject, hidden_size: int, n_heads: int) -> int:
    if "head_dim" in config:
        head_dim = config.integer("head_dim", 1, MAX_HEAD_DIM)
    else:
        if hidden_size % n_heads:
            raise config.error(
                "hidden_size",
                f"a multiple of num_attention_heads ({n_heads}), as head_dim is not given",
            )
        head_dim = hidden_size // n_heads
    if head_dim % HEAD_DIM_MULTIPLE or head_dim > MAX_HEAD_DIM:
        raise ModelError(
            f"{config.where}: head_dim {head_dim} is not supported; it must be a multiple of "
            f"{HEAD_DIM_MULTIPLE} and at most {MAX_HEAD_DIM}"
        )
    return head_dim


def _rope(config: JsonObject, context: int) -> RopeConfig:
    """Both spellings: `rope_parameters`, and the older `rope_theta` beside `rope_scaling`."""
    if "rope_parameters" in config and "rope_scaling" in config:
        raise ModelError(f"{config.where}: has both rope_parameters and rope_scaling; keep one")
    rope = config.object("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    theta = config.number("rope_theta", 1.0, 1e12, DEFAULT_THETA)
    theta = rope.number("rope_theta", 1.0, 1e12, theta)
    for place in (config, rope):
        if place.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            raise place.error("partial_rotary_factor", "1, the only value supported")
    key = "rope_type" if "rope_type" in rope else "type"
    scaling = rope.choice(key, ROPE_SCALINGS, "default")
    if scaling == "default":
        return RopeConfig(theta)
    factor = rope.number("factor", 1.0, 1e6)
    if scaling == "linear":
        return RopeConfig(theta, scaling, factor)
    low = rope.number("low_freq_factor", 1e-6, 1e6)
    high = rope.number("high_freq_factor", 1e-6, 1e6)
    if not low < high:
        raise rope.error("high_freq_factor", f"greater than low_freq_factor, which is {low:g}")
    original = rope.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context)
    return RopeConfig(theta, scaling, factor, low, high, original)


def _eos_ids(places: tuple[JsonObject, ...], vocab_size: int) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for place in places:
        value = place.get("eos_token_id")
        for id in value if isinstance(value, list) else [] if value is None else [value]:
            if type(id) is not int or not 0 <= id < vocab_size:
                raise place.error("eos_token_id", f"an id from 0 to {vocab_size - 1}, or a list")
            ids[id] = None
    return tuple(ids)


def _bos_id(config: JsonObject, vocab_size: int) -> int | None:
    if "bos_token_id" not in config:
        return None
    return config.integer("bos_token_id", 0, vocab_size - 1)
