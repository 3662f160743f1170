"""The configuration of a model, read from `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gpu.architectures import ARCHITECTURES, ENCODER_DECODERS, ENCODERS, Architecture
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.readers import Sizes
from gpu.architectures.common.rope import MAX_CONTEXT
from gpu.config.gguf import gguf_config
from gpu.config.stage import Stage
from gpu.errors import ModelError
from gpu.files.json_object import JsonObject, shown
from gpu.gguf.file import is_gguf

MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_WIDTH = 2**20
MAX_VOCAB = 2**24

HEAD_DIM_MULTIPLE = 4
"""The shaders read keys and values as vec4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Hyperparameters):
    """Sizes and hyperparameters of a model.

    context      positions that tokens can have: max_position_embeddings, or as many as YaRN makes
                 of those of the first training; less `first_position`
    norm_eps     epsilon that norms add to the variance
    eos_ids      tokens that end a text, those of generation_config.json before config.json's
    torch_dtype  dtype of the saved weights as the config names it, or None
    first_layer  number that layer 0 has in the model: more than 0 in the config of a stage
                 (`of_stage`)
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
    norm_eps: float
    tie_embeddings: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
    torch_dtype: str | None
    first_layer: int = 0

    @property
    def largest_window(self) -> int | None:
        """Keys that a row reads at most in any layer; None: some layer reads all."""
        windows = [window for window in self.sliding_windows if window is not None]
        return max(windows) if windows and len(windows) == self.n_layers else None

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelConfig:
        """Read and check the configuration of a model folder or a GGUF file. Raises ModelError for
        what cannot be run."""
        return cls.of(*_read(Path(folder)))

    @classmethod
    def of_encoder(cls, folder: str | Path) -> ModelConfig:
        """Read and check the configuration of an encoder's folder. Raises ModelError for what
        cannot be run."""
        return cls.of(*_read(Path(folder)), ENCODERS)

    @classmethod
    def of_encoder_decoder(cls, folder: str | Path) -> tuple[ModelConfig, ModelConfig]:
        """Read and check the configurations of an encoder-decoder's folder: of its encoder and of
        its decoder, which differ in their layers. Raises ModelError for what cannot be run."""
        config, generation = _read(Path(folder))
        encoder = cls.of(config, generation, ENCODER_DECODERS)
        n_layers = config.integer("num_decoder_layers", 1, MAX_LAYERS, encoder.n_layers)
        return encoder, replace(encoder, n_layers=n_layers)

    @classmethod
    def of(
        cls,
        config: JsonObject,
        generation: JsonObject,
        known: Mapping[str, Architecture] = ARCHITECTURES,
    ) -> ModelConfig:
        """Check a configuration that has been read: config.json and generation_config.json.
        `known`: the architectures that it may be of."""
        architecture = _architecture(config, known)
        config = config.renamed(architecture.config_keys)
        hidden_size = config.integer("hidden_size", 1, MAX_WIDTH)
        n_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
        vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
        sizes = Sizes(
            n_layers=config.integer("num_hidden_layers", 1, MAX_LAYERS),
            hidden_size=hidden_size,
            head_dim=_head_dim(config, hidden_size, n_heads, architecture.head_dim),
            context=config.integer("max_position_embeddings", 1, MAX_CONTEXT, architecture.context),
        )
        read = architecture.read_config(config, sizes)
        ratio = architecture.intermediate_ratio
        return cls(
            **{field.name: getattr(read, field.name) for field in fields(read)},
            model_type=config.string("model_type"),
            n_layers=sizes.n_layers,
            n_heads=n_heads,
            n_kv_heads=_n_kv_heads(config, n_heads, architecture.n_kv_heads or n_heads),
            head_dim=sizes.head_dim,
            hidden_size=hidden_size,
            intermediate_size=config.integer(
                "intermediate_size", 1, MAX_WIDTH, ratio and ratio * hidden_size
            ),
            vocab_size=vocab_size,
            context=min(max(sizes.context, read.rope.stretched_context), MAX_CONTEXT)
            - read.first_position,
            norm_eps=config.number("rms_norm_eps", 0.0, 1.0, architecture.norm_eps),
            tie_embeddings=config.boolean("tie_word_embeddings", architecture.tie_embeddings),
            eos_ids=_eos_ids((generation, config), vocab_size),
            bos_id=_bos_id(config, vocab_size),
            torch_dtype=config.string("dtype", config.string("torch_dtype", "")) or None,
        )

    def of_stage(self, stage: Stage) -> ModelConfig:
        """Return the configuration of a stage's layers, which are counted from 0."""
        layers = stage.layers
        experts = self.experts
        return replace(
            self,
            n_layers=len(layers),
            first_layer=self.first_layer + stage.first,
            nope_layers=stage.own(self.nope_layers),
            sliding_windows=self.sliding_windows[stage.first : stage.end],
            experts=experts and replace(experts, dense_layers=stage.own(experts.dense_layers)),
        )

    def layer_name(self, i: int) -> str:
        """Return the name of layer i in labels of dispatches and tensors, e.g. layer03."""
        return f"layer{self.first_layer + i:02}"

    @property
    def rope_dim(self) -> int:
        """Dimensions of a head that are rotated, in layers that have positions."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """The layers with experts."""
        return tuple(i for i in range(self.n_layers) if self.moe_of(i))


def _read(path: Path) -> tuple[JsonObject, JsonObject]:
    """Read config.json and generation_config.json of a folder, or their like in a GGUF file."""
    if is_gguf(path):
        return gguf_config(path), JsonObject(str(path), {})
    if not path.is_dir():
        raise ModelError(f"{path}: not a folder; give the folder that holds config.json")
    generation = JsonObject.read_optional(path / "generation_config.json")
    return JsonObject.read(path / "config.json"), generation


def _architecture(config: JsonObject, known: Mapping[str, Architecture]) -> Architecture:
    """Return the architecture; raises ModelError for one that cannot be run."""
    model_type = config.string("model_type")
    if model_type not in known:
        raise ModelError(f"{config.where}: {_describe_unknown(model_type, known)}")
    if "quantization_config" in config:
        raise ModelError(
            f"{config.where}: the weights are quantised (quantization_config), which is not "
            "supported; use the original float32, float16 or bfloat16 weights of the model"
        )
    return known[model_type]


def _describe_unknown(model_type: str, known: Mapping[str, Architecture]) -> str:
    """Return why a model of another architecture cannot be run, and what to do."""
    if model_type in ENCODERS.keys() - known.keys():
        return (
            f"model_type {shown(model_type)} is an encoder, which computes vectors of texts and "
            "cannot write; serve it alongside a model with --embedding-model"
        )
    if model_type in ENCODER_DECODERS.keys() - known.keys():
        return (
            f"model_type {shown(model_type)} is an encoder-decoder: it writes a text about another "
            "one and cannot chat; serve it beside a model with --encoder-decoder-model"
        )
    return f"model_type {shown(model_type)} is not supported; supported: {', '.join(known)}"


def _n_kv_heads(config: JsonObject, n_heads: int, default: int) -> int:
    n_kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS, default)
    if n_heads % n_kv_heads:
        raise config.error(
            "num_key_value_heads", f"a divisor of num_attention_heads, which is {n_heads}"
        )
    return n_kv_heads


def _head_dim(config: JsonObject, hidden_size: int, n_heads: int, default: int | None) -> int:
    if default is not None or "head_dim" in config:
        head_dim = config.integer("head_dim", 1, MAX_HEAD_DIM, default)
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
