"""Settings of a sentence-transformers folder: how an encoder's states become the vector of a text.

The folder is that of the encoder with modules.json, which lists what follows it, and a config.json
in the folder of each module. Only what can be done exactly is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from gpu.config.model import ModelConfig
from gpu.errors import ModelError
from gpu.files.json_object import JsonObject, read_json, shown
from gpu.files.regular_file import expect_inside, is_there

Pool = Literal["mean", "cls"]
Similarity = Literal["cosine", "dot"]
POOLS: dict[str, Pool] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
LENGTH_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json",
)
"""Names of the file of the Transformer module; the last two are older ones."""
MAX_SEQ_LENGTH = 2**20

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceConfig:
    """From the states of an encoder to the vector of a text.

    pooling         "mean" of all tokens' last states, or that of the first one, "cls"
    normalize       scale vectors to length 1
    max_seq_length  tokens of a text, the rest is cut off; None: the folder does not say
    model_max_length  the same as the tokenizer says it, which counts if max_seq_length is None and
                    the encoder has as many positions; None: it does not say
    prompts         texts to put in front, by name, such as "query"
    default_prompt  name of the one that a text gets if none is named; None: none
    similarity      how alike two texts are: "cosine" of their vectors, or inner product, "dot"
    """

    pooling: Pool = "mean"
    normalize: bool = False
    max_seq_length: int | None = None
    model_max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: Similarity = "cosine"

    @classmethod
    def from_folder(cls, folder: str | Path) -> SentenceConfig:
        """Read a folder; one without modules.json is pooled by the mean, as sentence-transformers
        does. Raises ModelError for what is not supported."""
        folder = Path(folder)
        named = next((name for name in LENGTH_FILES if is_there(folder / name)), LENGTH_FILES[0])
        sentence = JsonObject.read_optional(folder / named)
        texts = JsonObject.read_optional(folder / "config_sentence_transformers.json")
        length = None
        if "max_seq_length" in sentence:
            length = sentence.integer("max_seq_length", 1, MAX_SEQ_LENGTH)
        if sentence.boolean("do_lower_case", False) and not _lowers(folder):
            raise sentence.error("do_lower_case", "false, as tokenizer.json keeps capital letters")
        prompts, default = _read_prompts(texts)
        dot = texts.choice("similarity_fn_name", get_args(Similarity), "cosine") == "dot"
        pooling: Pool = "mean"
        modules = _read_modules(folder)
        if "Pooling" in modules:
            pooling = _read_pooling(JsonObject.read(modules["Pooling"] / "config.json"))
        return cls(
            pooling=pooling,
            normalize="Normalize" in modules,
            max_seq_length=length,
            model_max_length=_read_model_max_length(folder),
            prompts=prompts,
            default_prompt=default,
            similarity="dot" if dot else "cosine",
        )

    def max_tokens(self, config: ModelConfig, most_rows: int) -> int:
        """Return the tokens of a text at most, of which a pass takes `most_rows`."""
        length = self.max_seq_length or min(self.model_max_length or most_rows, config.context)
        return min(length, most_rows)

    def pool(self, states: Floats, lengths: Sequence[int]) -> Floats:
        """Return the vectors (n, width) of texts of these lengths, whose states (rows, width) are
        one below the other."""
        starts = np.cumsum([0, *lengths[:-1]])
        if self.pooling == "cls":
            found = states[starts].astype(np.float64)
        else:
            sums = np.add.reduceat(states, starts, axis=0, dtype=np.float64)
            found = sums / np.array(lengths)[:, None]
        if self.normalize:
            found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        vectors: Floats = found.astype(np.float32)
        return vectors


def read_encoder(folder: Path) -> tuple[ModelConfig, SentenceConfig]:
    """Read the configurations of an encoder's folder. Raises ModelError."""
    config, sentence = ModelConfig.of_encoder(folder), SentenceConfig.from_folder(folder)
    if (length := sentence.max_seq_length or 0) > config.context:
        raise ModelError(
            f"{folder}: max_seq_length is {length}, but the encoder has positions for "
            f"{config.context} tokens"
        )
    return config, sentence


def _read_modules(folder: Path) -> dict[str, Path]:
    """Return the folders of the modules by their types, without their packages."""
    path = folder / "modules.json"
    if not is_there(path):
        return {}
    listed = read_json(path)
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ModelError(f"{path}: expected a list of modules, but got {shown(listed)}")
    found: dict[str, Path] = {}
    for one in listed:
        entry = JsonObject(str(path), one)
        inside = folder / entry.string("path", "")
        expect_inside(inside)
        if not inside.resolve().is_relative_to(folder.resolve()):
            raise entry.error("path", "a folder inside the model's")
        found[entry.string("type").rpartition(".")[2]] = inside
    kinds = tuple(found)
    if kinds not in (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")):
        raise ModelError(
            f"{path}: expected Transformer, Pooling and perhaps Normalize, but got "
            f"{', '.join(kinds) or 'no modules'}; other modules are not supported"
        )
    return found


def _read_model_max_length(folder: Path) -> int | None:
    """Read the length where sentence-transformers saves it since 5.4. Tokenizers without one have a
    number there that is larger than any text."""
    config, key = JsonObject.read_optional(folder / "tokenizer_config.json"), "model_max_length"
    return int(min(config.number(key, 1, math.inf), MAX_SEQ_LENGTH)) if key in config else None


def _lowers(folder: Path) -> bool:
    """Return whether the tokenizer makes capital letters small."""
    normalizer = JsonObject.read_optional(folder / "tokenizer.json").object("normalizer").values
    steps = normalizer.get("normalizers", [normalizer])
    return isinstance(steps, list) and any(
        isinstance(step, dict)
        and (step.get("type") == "Lowercase" or step.get("lowercase") is True)
        for step in steps
    )


def _read_pooling(config: JsonObject) -> Pool:
    """Read `pooling_mode`, or the keys that older folders have for each mode."""
    if not config.boolean("include_prompt", True):
        raise config.error("include_prompt", "true, the only value supported")
    if "pooling_mode" in config:
        mode = config.choice("pooling_mode", get_args(Pool))
        return next(pool for pool in POOLS.values() if pool == mode)
    modes = [key for key in config.values if key.startswith("pooling_mode_")]
    chosen = [key for key in modes if config.boolean(key, False)]
    if len(chosen) != 1 or chosen[0] not in POOLS:
        names = ", ".join(chosen) or "none"
        raise ModelError(
            f"{config.where}: expected one of {' and '.join(POOLS)} to be true, but it is {names}"
        )
    return POOLS[chosen[0]]


def _read_prompts(config: JsonObject) -> tuple[dict[str, str], str | None]:
    named: dict[str, Any] = config.object("prompts").values
    for name, text in named.items():
        if not isinstance(text, str):
            raise config.error("prompts", f"an object of texts, but {name!r} is {shown(text)}")
    default = config.string("default_prompt_name", "") or None
    if default is not None and default not in named:
        raise config.error("default_prompt_name", f"one of prompts ({', '.join(named) or 'none'})")
    return named, default
