"""Reading a sentence-transformers folder: pooling, length, prompts, and every refusal by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
            config_sentence_transformers={"prompts": PROMPTS, "default_prompt_name": "query"},
        )
    )
    assert found == SentenceConfig(
        pooling="mean", normalize=True, max_seq_length=256, prompts=PROMPTS, default_prompt="query"
    )


def test_what_is_left_out_is_as_in_sentence_transformers(tmp_path: Path) -> None:
    """A folder of transformers alone is pooled by the mean, and its vectors keep their lengths."""
    assert SentenceConfig.from_folder(tmp_path) == SentenceConfig()
    found = SentenceConfig.from_folder(write(tmp_path, MODULES[:2], CLS))
    assert found == SentenceConfig(pooling="cls")


@pytest.mark.parametrize(
    ("files", "message"),
    [
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
