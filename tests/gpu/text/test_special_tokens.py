"""Special tokens that only the files beside tokenizer.json name: ids, flags and names are those of
transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers
from transformers import AutoTokenizer

from gpu.text.tokenizer import Tokenizer
from tests.gpu.text import made_tokenizers as made

START, END, NEW = 1, 2, 400
BOTH_NAMED = {"bos_token": None, "eos_token": "<|im_end|>"}
TEXT = "<|im_start|>User\nthe  <|im_end|> <pad>the <extra> cat<EXTRA>"


def token(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, "special": True, "normalized": False, **flags}


def decoder(**tokens: dict[str, Any]) -> dict[str, Any]:
    return {"added_tokens_decoder": {id[1:]: entry for id, entry in tokens.items()}}


ALL, UNMARKED, MISSING = "all are there", "none is special", "<|im_start|> is a word only"
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "nothing else": (ALL, {}, {}),
    "added_tokens_decoder": (MISSING, decoder(_1=token("<|im_start|>")), {}),
    "additional": (MISSING, {"additional_special_tokens": ["<|im_start|>"]}, {}),
    "extra": (MISSING, {"extra_special_tokens": ["<|im_start|>"]}, {}),
    "extra, by name": (MISSING, {"extra_special_tokens": {"turn_token": "<|im_start|>"}}, {}),
    "a name of its own": (MISSING, {"turn_token": "<|im_start|>"}, {}),
    "padding that is a word": (MISSING, {"pad_token": "<|im_start|>"}, {}),
    "a separator": (MISSING, {"sep_token": "<|im_start|>", "mask_token": "<|im_end|>"}, {}),
    "both lists": (
        MISSING,
        {"additional_special_tokens": ["<extra>"], "extra_special_tokens": ["<|im_start|>"]},
        {},
    ),
    "new, additional": (ALL, {"additional_special_tokens": ["<extra>", "<pad>"]}, {}),
    "new, padding and another": (
        ALL,
        {"cls_token": "<pad>", "extra_special_tokens": ["<extra>"]},
        {},
    ),
    "new, by id": (ALL, decoder(_400=token("<extra>"), _401=token("<pad>", special=False)), {}),
    "new, no flags": (ALL, decoder(_400={"content": "<extra>"}), {}),
    "by id and by name": (ALL, {"pad_token": "<pad>", **decoder(_400=token("<extra>"))}, {}),
    "marked by the config": (UNMARKED, decoder(_1=token("<|im_start|>")), {}),
    "named but not marked": (UNMARKED, {"additional_special_tokens": ["<|im_start|>"]}, {}),
    "not marked by the config": (ALL, decoder(_1=token("<|im_start|>", special=False)), {}),
    "strips": (ALL, decoder(_2=token("<|im_end|>", lstrip=True, rstrip=True)), {}),
    "one word": (ALL, decoder(_400=token("<pad>", single_word=True)), {}),
    "older names": (
        MISSING,
        {},
        {
            "special_tokens_map": {
                "pad_token": token("<pad>", lstrip=True),
                "unk_token": "<|im_start|>",
            }
        },
    ),
    "older names go first": (
        ALL,
        {"pad_token": "<extra>"},
        {"special_tokens_map": {"pad_token": "<pad>", "eos_token": "<|im_start|>"}},
    ),
    "older names that do not count": (
        ALL,
        decoder(_400=token("<extra>")),
        {"special_tokens_map": {"pad_token": "<pad>"}, "added_tokens": {"<pad>": 401}},
    ),
    "older ids": (
        ALL,
        {"additional_special_tokens": ["<extra>"]},
        {"added_tokens": {"<extra>": 400, "<pad>": 401, "<|im_end|>": 2}},
    ),
}


def folder_of(path: Path, how: str, config: dict[str, Any], older: dict[str, Any]) -> Path:
    backend = made.byte_level()
    backend.normalizer = normalizers.Lowercase()
    state = json.loads(backend.to_str())
    for entry in state["added_tokens"]:
        entry["special"] = how != UNMARKED
    if how == MISSING:
        del state["added_tokens"][START]
    (path / "tokenizer.json").write_text(json.dumps(state))
    for name, values in {"tokenizer_config": BOTH_NAMED | config, **older}.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("case", CASES)
def test_ids_flags_and_names_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    folder = folder_of(tmp_path, *CASES[case])
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.encode(TEXT) == theirs(TEXT).input_ids
    assert ours.special_tokens == theirs.special_tokens_map
    hidden = [theirs.decode([id], skip_special_tokens=True) == "" for id in range(len(theirs))]
    hidden[theirs.eos_token_id] = True  # some files do not mark it; a text never contains it
    assert [ours.is_special(id) for id in range(ours.vocab_size)] == hidden


@pytest.mark.parametrize("case", CASES)
def test_the_cases_differ_from_what_tokenizer_json_says(tmp_path: Path, case: str) -> None:
    """So that each of them shows something."""
    folder = folder_of(tmp_path, *CASES[case])
    tokenizer = Tokenizer.load(folder)
    plain = made.byte_level()
    found = (tokenizer.encode(TEXT), tokenizer.special_tokens)
    assert case == "nothing else" or found != (plain.encode(TEXT).ids, {"eos_token": "<|im_end|>"})


def test_a_user_cannot_write_a_token_that_the_config_marks(tmp_path: Path) -> None:
    for case in ("added_tokens_decoder", "marked by the config", "new, by id"):
        folder = tmp_path / case.replace(" ", "-")
        folder.mkdir()
        tokenizer = Tokenizer.load(folder_of(folder, *CASES[case]))
        ids = tokenizer.encode(TEXT, specials=False)
        assert not any(map(tokenizer.is_special, ids)), case


def test_flags_that_the_config_does_not_name_are_kept(tmp_path: Path) -> None:
    backend = made.byte_level()
    backend.add_special_tokens([AddedToken("<|im_end|>", lstrip=True)])
    folder = made.save(tmp_path, backend, {"eos_token": "<|im_end|>"})
    ids = AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    assert Tokenizer.load(folder).encode(TEXT) == ids
