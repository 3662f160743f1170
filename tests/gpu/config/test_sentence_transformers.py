"""Reading a sentence-transformers folder: pooling, length, prompts, and every refusal by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu.config import ModelConfig
from gpu.config.sentence_transformers import SentenceConfig
from gpu.errors import ModelError

MODULES = [
    {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for i, (kind, path) in enumerate(
        (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    )
]
MEAN, CLS = {"pooling_mode_mean_tokens": True}, {"pooling_mode_cls_token": True}
PROMPTS = {"query": "query: ", "passage": "passage: "}


def write(folder: Path, modules: Any = MODULES, pooling: Any = MEAN, **files: Any) -> Path:
    (folder / "1_Pooling").mkdir()
    for name, value in {"modules": modules, "1_Pooling/config": pooling, **files}.items():
        if value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_a_whole_folder_is_read(tmp_path: Path) -> None:
    found = SentenceConfig.from_folder(
        write(
            tmp_path,
            sentence_bert_config={"max_seq_length": 256, "do_lower_case": False},
            config_sentence_transformers={
                "prompts": PROMPTS,
                "default_prompt_name": "query",
                "similarity_fn_name": "dot",
            },
        )
    )
    assert found == SentenceConfig(
        pooling="mean",
        normalize=True,
        max_seq_length=256,
        prompts=PROMPTS,
        default_prompt="query",
        similarity="dot",
    )


def test_what_is_left_out_is_as_in_sentence_transformers(tmp_path: Path) -> None:
    """A folder of transformers alone is pooled by the mean, and its vectors keep their lengths."""
    assert SentenceConfig.from_folder(tmp_path) == SentenceConfig()
    found = SentenceConfig.from_folder(write(tmp_path, MODULES[:2], CLS))
    assert found == SentenceConfig(pooling="cls")


def test_a_folder_that_newer_sentence_transformers_saved_is_read(tmp_path: Path) -> None:
    """It names the pooling in one key, and the length in the tokenizer's config alone."""
    pooling = {"embedding_dimension": 60, "pooling_mode": "cls", "include_prompt": True}
    sentence = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    tokenizer = {"model_max_length": 256}
    folder = write(
        tmp_path, MODULES, pooling, sentence_bert_config=sentence, tokenizer_config=tokenizer
    )
    found = SentenceConfig.from_folder(folder)
    assert found == SentenceConfig(pooling="cls", normalize=True, model_max_length=256)


@pytest.mark.parametrize(
    ("max_seq_length", "model_max_length", "most"),
    [(None, 20, 20), (30, 20, 30), (None, 10**30, 128), (None, 500, 128), (None, None, 128)],
)
def test_a_text_has_as_many_tokens_as_the_folder_says(
    tmp_path: Path, max_seq_length: int | None, model_max_length: int | None, most: int
) -> None:
    """The length of the tokenizer counts if sentence-transformers' file has none, up to the
    positions of the encoder."""
    sentence, tokenizer = (
        {"max_seq_length": max_seq_length}, {"model_max_length": model_max_length},
    )  # fmt: skip
    folder = write(tmp_path, sentence_bert_config=sentence, tokenizer_config=tokenizer)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9}
    config = {"model_type": "bert", "intermediate_size": 8, "max_position_embeddings": 128, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    assert (
        SentenceConfig.from_folder(folder).max_tokens(ModelConfig.of_encoder(folder), 512) == most
    )


def test_the_length_is_also_in_a_file_of_an_older_name(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"sentence_xlm-roberta_config": {"max_seq_length": 128}})
    assert SentenceConfig.from_folder(folder).max_seq_length == 128


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Lowercase"},
        {"type": "BertNormalizer", "lowercase": True},
        {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
    ],
)
def test_small_letters_may_be_asked_of_a_tokenizer_that_makes_them(
    tmp_path: Path, normalizer: dict[str, Any]
) -> None:
    small = {"do_lower_case": True}
    folder = write(tmp_path, sentence_bert_config=small, tokenizer={"normalizer": normalizer})
    assert SentenceConfig.from_folder(folder).normalize


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pooling": {"pooling_mode": "max"}}, "must be one of mean, cls, but is 'max'"),
        ({"pooling": {"pooling_mode": ["mean", "cls"]}}, "pooling_mode must be one of mean, cls"),
        ({"pooling": {"pooling_mode": "mean", "include_prompt": False}}, "include_prompt must be"),
        (
            {"sentence_bert_config": {"do_lower_case": True}, "tokenizer": {"normalizer": None}},
            "do_lower_case must be false, as tokenizer.json keeps capital letters",
        ),
        ({"tokenizer_config": {"model_max_length": 0}}, "model_max_length must be a number from 1"),
        ({"pooling": MEAN | CLS}, "but it is pooling_mode_mean_tokens, pooling_mode_cls_token"),
        ({"pooling": {"pooling_mode_max_tokens": True}}, "but it is pooling_mode_max_tokens"),
        ({"pooling": {}}, "but it is none"),
        ({"pooling": {"pooling_mode_mean_tokens": 1}}, "must be true or false"),
        ({"pooling": MEAN | {"include_prompt": False}}, "include_prompt must be true"),
        ({"pooling": None}, "1_Pooling/config.json: not found"),
        ({"modules": [*MODULES, {"type": "a.Dense", "path": "3"}]}, "but got .*Dense; other"),
        ({"modules": MODULES[:1]}, "but got Transformer; other modules"),
        ({"modules": {}}, "expected a list of modules"),
        ({"modules": [1]}, "expected a list of modules"),
        ({"modules": [{"path": ""}]}, "type is missing"),
        ({"modules": [{"type": "a.Transformer", "path": "../x"}]}, "a folder inside the model's"),
        ({"sentence_bert_config": {"max_seq_length": "long"}}, "max_seq_length must be an integer"),
        ({"config_sentence_transformers": {"prompts": ["a"]}}, "prompts must be an object"),
        (
            {"config_sentence_transformers": {"similarity_fn_name": "manhattan"}},
            "similarity_fn_name must be one of cosine, dot",
        ),
        ({"config_sentence_transformers": {"prompts": {"a": 1}}}, "an object of texts"),
        (
            {"config_sentence_transformers": {"prompts": PROMPTS, "default_prompt_name": "x"}},
            r"default_prompt_name must be one of prompts \(query, passage\)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path, **files)
    with pytest.raises(ModelError, match=message):
        SentenceConfig.from_folder(folder)
