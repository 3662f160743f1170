"""Tokens added by the files beside a tokenizer: `added_tokens_decoder` of its config or the older
added_tokens.json, and the names of special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject

NAMES = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"))
MANY_NAMES = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add_tokens(
    backend: tokenizers.Tokenizer, folder: Path, config: JsonObject, names: JsonObject
) -> None:
    """Add to `backend` the missing tokens of tokenizer_config.json (`config`) or added_tokens.json.

    A token is special if its entry says so, or if `config` or special_tokens_map.json (`names`)
    names it. Raises ModelError for ids that do not match.
    """
    numbered = _of_config(config) or _of_older_file(folder)
    special = {text for file in (config, names) for text in _special_names(file)}
    lacking = []
    for id, token in sorted(numbered.items()):
        found = backend.token_to_id(token.content)
        if found is None:
            lacking.append((id, token))
        elif found != id:
            raise _wrong_id(folder, token, id, found)
    next_id = 1 + max(backend.get_vocab().values(), default=-1) if lacking else 0
    for expected, (id, token) in enumerate(lacking, next_id):
        if id != expected:
            raise _wrong_id(folder, token, id, expected)
        token.special = token.special or token.content in special
    backend.add_tokens([token for _, token in lacking])


def _wrong_id(folder: Path, token: AddedToken, expected: int, actual: int) -> ModelError:
    return ModelError(
        f"{folder}: expected the id {expected} for the added token {token.content!r}, but the "
        f"tokenizer gives it {actual}; download the tokenizer's files again"
    )


def mark_special(backend: tokenizers.Tokenizer, *files: JsonObject) -> None:
    """Mark tokens of `backend` as special that a file names in addition to the standard roles.
    Standard roles are not marked: some are used as padding, and may be words."""
    named = [text for file in files for text in _more_names(file)]
    backend.add_special_tokens([text for text in named if backend.token_to_id(text) is not None])


def _special_names(file: JsonObject) -> list[str]:
    """Return the special tokens named by a config or special_tokens_map.json."""
    return _texts([file.get(name) for name in NAMES]) + _more_names(file)


def _more_names(file: JsonObject) -> list[str]:
    values: list[Any] = []
    for name in MANY_NAMES:
        many = file.get(name)
        if isinstance(many, dict | list):
            values += many.values() if isinstance(many, dict) else many
    return _texts(values)


def _texts(values: list[Any]) -> list[str]:
    """Return the texts of tokens given as strings or as objects with `content`."""
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
    """Read added_tokens.json, which has only texts and ids."""
    file = JsonObject.read_optional(folder / "added_tokens.json")
    return {
        file.integer(text, 0, 1 << 31): AddedToken(text, normalized=False) for text in file.values
    }
