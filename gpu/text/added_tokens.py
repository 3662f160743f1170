"""Tokens that the files beside a tokenizer add to it: `added_tokens_decoder` of its config, or the
older added_tokens.json, and the names of special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from gpu.errors import ModelError
from gpu.json_object import JsonObject

NAMES = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"))
MANY_NAMES = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add_tokens(
    backend: tokenizers.Tokenizer, folder: Path, config: JsonObject, names: JsonObject
) -> None:
    """Add to `backend` what tokenizer_config.json (`config`) and added_tokens.json hold, and mark
    as special what those and special_tokens_map.json (`names`) name. Raises ModelError."""
    numbered = _of_config(config) or _of_older_file(folder)
    special = {text for file in (config, names) for text in special_names(file)}
    for id, token in sorted(numbered.items()):
        token.special = token.special or token.content in special
        found = backend.token_to_id(token.content)
        expected = backend.get_vocab_size() if found is None else found
        if id != expected:
            raise ModelError(
                f"{folder}: the added token {token.content!r} has the id {id}, but the tokenizer "
                f"would give it {expected}"
            )
        backend.add_tokens([token])
    backend.add_special_tokens([text for text in special if backend.token_to_id(text) is not None])


def special_names(file: JsonObject) -> list[str]:
    """The special tokens that a config or special_tokens_map.json names."""
    values = [file.get(name) for name in NAMES]
    for name in MANY_NAMES:
        many = file.get(name)
        values += many.values() if isinstance(many, dict) else many or []
    texts = [value.get("content") if isinstance(value, dict) else value for value in values]
    return [text for text in texts if isinstance(text, str)]


def _of_config(config: JsonObject) -> dict[int, AddedToken]:
    tokens = {}
    for key, entry in config.object("added_tokens_decoder").values.items():
        if not key.isdecimal() or not isinstance(entry, dict):
            raise config.error("added_tokens_decoder", "an object of tokens by their ids")
        described = JsonObject(f"{config.where}: added_tokens_decoder: {key}", entry)
        flags: dict[str, Any] = {flag: described.boolean(flag, False) for flag in FLAGS}
        tokens[int(key)] = AddedToken(described.string("content"), **flags)
    return tokens


def _of_older_file(folder: Path) -> dict[int, AddedToken]:
    """added_tokens.json, where only texts and ids are."""
    file = JsonObject.read_optional(folder / "added_tokens.json")
    return {
        file.integer(text, 0, 1 << 31): AddedToken(text, normalized=False) for text in file.values
    }
