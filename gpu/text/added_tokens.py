"""Tokens added by the files next to a tokenizer: `added_tokens_decoder` of its config or the older
added_tokens.json, and special tokens that are only named there. As `transformers` 5 does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, processors

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject, shown

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NAMED = "_token"
"""End of the names of all special tokens that have one."""
MUST_EXIST = ROLES[:2]
"""Roles whose tokens the vocabulary must have: a model that lacks the end of its texts is damaged.
Others are added to it, as they were when the model was trained."""
ADDED, EXTRA, ADDITIONAL = (
    "added_tokens_decoder",
    "extra_special_tokens",
    "additional_special_tokens",
)
FLAGS = ("single_word", "lstrip", "rstrip")


class SpecialTokens(NamedTuple):
    """Special tokens that a tokenizer's files name.

    named   by the names that chat templates know them by, such as "pad_token"
    others  without a name
    """

    named: dict[str, AddedToken]
    others: list[AddedToken]

    @property
    def texts(self) -> dict[str, str]:
        """The texts of `named`."""
        return {name: token.content for name, token in self.named.items()}


def read_special_tokens(config: JsonObject, older: JsonObject) -> SpecialTokens:
    """Read tokenizer_config.json, and special_tokens_map.json (`older`), which goes first, but
    counts only if the config has no `added_tokens_decoder`. Raises ModelError."""
    if ADDED in config:
        older = JsonObject(older.where, {})
    names = JsonObject(config.where, config.values | older.values)
    named = {role: _role(names, role) for role in ROLES}
    for name, value in names.values.items():
        if name.endswith(NAMED) and name not in ROLES:
            named[name] = _token(value)
    own = config.get(EXTRA) or config.get(ADDITIONAL)
    others: list[AddedToken | None] = []
    for many in (own, older.get(EXTRA), None if own else older.get(ADDITIONAL)):
        for name, value in many.items() if isinstance(many, dict) else ():
            if name.endswith(NAMED):
                named[name] = _token(value)
            else:
                others.append(_token(value))
        others += map(_token, many if isinstance(many, list) else ())
    return SpecialTokens(
        {name: token for name, token in named.items() if token is not None},
        [token for token in others if token is not None],
    )


def add_tokens(
    backend: tokenizers.Tokenizer,
    folder: Path,
    config: JsonObject,
    special: SpecialTokens,
    *,
    raw: bool = False,
) -> None:
    """Add to `backend` the tokens of tokenizer_config.json (`config`) or added_tokens.json, then
    those that are only named (`special`). A token that is there gets the flags of the config.

    raw  tokens are matched before the text is normalised, whatever the files say

    Raises ModelError for ids that do not match, and for a missing beginning or end of a text.
    """
    present = backend.get_added_tokens_decoder()
    if ADDED in config:
        numbered = _of_config(config)
    else:
        older = _of_older_file(folder, special)
        numbered = {id: token for id, token in older.items() if id not in present}
    for id, token in numbered.items():
        state = token.__getstate__()
        state["special"] |= id in present and present[id].special
        state["normalized"] &= not raw
        numbered[id] = AddedToken(**state)
    _expect_ids(backend, folder, numbered)
    backend.add_tokens([token for _, token in sorted(numbered.items())])
    for role in MUST_EXIST:
        if role in special.named and backend.token_to_id(special.named[role].content) is None:
            raise ModelError(
                f"{config.where}: expected a token {shown(special.named[role].content)}, as "
                f"{role} names it, but there is none"
            )
    _add_named(backend, [*special.named.values(), *special.others])
    mark_special(backend, [special.named[role] for role in MUST_EXIST if role in special.named])


def mark_special(backend: tokenizers.Tokenizer, tokens: Iterable[AddedToken]) -> None:
    """Mark tokens of the vocabulary as special: some files do not mark the end of a text."""
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for token in tokens:
        found = added.get(token.content, token)
        found.special = True
        backend.add_special_tokens([found])


def begin_with(backend: tokenizers.Tokenizer, token: str) -> None:
    """Make every text begin with a token of the vocabulary, by a post-processor."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    begin = {"SpecialToken": {"id": token, "type_id": 0}}
    state = {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, second],
        "special_tokens": {
            token: {"id": token, "ids": [backend.token_to_id(token)], "tokens": [token]}
        },
    }
    processor = processors.TemplateProcessing()
    processor.__setstate__(json.dumps(state).encode())  # its constructor knows no ":" in a token
    backend.post_processor = processor


def _add_named(backend: tokenizers.Tokenizer, tokens: Iterable[AddedToken]) -> None:
    """Add special tokens unless a token of the same text was added before."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    new = {token.content: token for token in tokens if token.content not in known}
    backend.add_tokens(list(new.values()))


def _expect_ids(
    backend: tokenizers.Tokenizer, folder: Path, numbered: Mapping[int, AddedToken]
) -> None:
    """Raise ModelError for a token that `backend` has by another id, or would add by another."""
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


def _wrong_id(folder: Path, token: AddedToken, expected: int, actual: int) -> ModelError:
    return ModelError(
        f"{folder}: expected the id {expected} for the added token {token.content!r}, but the "
        f"tokenizer gives it {actual}; download the tokenizer's files again"
    )


def _role(names: JsonObject, role: str) -> AddedToken | None:
    value = names.get(role)
    token = _token(value)
    if token is None and value is not None:
        raise names.error(role, "a token's text, or an object with its content")
    return token


def _token(value: Any) -> AddedToken | None:
    """Return a special token given as a string or as an object with `content`; else None."""
    entry = value if isinstance(value, dict) else {"content": value}
    if not isinstance(entry.get("content"), str):
        return None
    flags = {flag: entry.get(flag) is True for flag in (*FLAGS, "normalized")}
    return AddedToken(entry["content"], special=True, **flags)


def _of_config(config: JsonObject) -> dict[int, AddedToken]:
    tokens = {}
    for key, entry in config.object(ADDED).values.items():
        if not key.isdecimal() or not isinstance(entry, dict):
            raise config.error(ADDED, "an object of tokens by their ids")
        described = JsonObject(f"{config.where}: {ADDED}: {key}", entry)
        special = described.boolean("special", False)
        tokens[int(key)] = AddedToken(
            described.string("content"),
            special=special,
            normalized=described.boolean("normalized", not special),
            **{flag: described.boolean(flag, False) for flag in FLAGS},
        )
    return tokens


def _of_older_file(folder: Path, special: SpecialTokens) -> dict[int, AddedToken]:
    """Read added_tokens.json, which has only texts and ids."""
    file = JsonObject.read_optional(folder / "added_tokens.json")
    names = {special.named[role].content for role in ROLES if role in special.named}
    names |= {token.content for token in special.others}
    return {
        file.integer(text, 0, 1 << 31): AddedToken(
            text, special=text in names, normalized=text not in names
        )
        for text in file.values
    }
