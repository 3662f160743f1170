"""Texts of a request, each as a text or as token ids: `input` of embeddings and `prompt` of
completions."""

from __future__ import annotations

from collections.abc import Sequence

from app.engine_client import Tokenizer
from app.http.errors import CONTEXT_CODE
from gpu import InvalidRequest

MAX_INPUTS = 2048
MAX_ID = 2**53 - 1
"""Largest integer that is exact in every reader's JSON."""
"""Texts of one request, as with OpenAI's embeddings."""

Input = str | list[int]


class InputTooLongError(InvalidRequest):
    """A text has more tokens than the context holds."""

    code = CONTEXT_CODE


def inputs_of(given: str | Sequence[int | str | list[int]], param: str) -> list[Input]:
    """Return the texts of a field that is one, or token ids, or a list of either. Raises
    `InvalidRequest` for an empty or mixed list."""
    if isinstance(given, str):
        return [given]
    kinds = {type(one) for one in given}
    if kinds == {int}:
        return [[one for one in given if isinstance(one, int)]]
    if len(kinds) != 1:
        got = "an empty list" if not kinds else "a list that mixes these"
        raise InvalidRequest(
            f"{param} must be a text, a list of texts, token ids, or a list of lists of token "
            f"ids, but got {got}",
            param,
        )
    if len(given) > MAX_INPUTS:
        raise InvalidRequest(
            f"{param} has {len(given):,} texts, but a request may have {MAX_INPUTS:,}; send "
            "several requests",
            param,
        )
    return [one for one in given if not isinstance(one, int)]


def check_ids(ids: list[int], vocab_size: int, param: str = "tokens") -> None:
    """Raise InvalidRequest for an id that the model does not have; `param` is the field. With a
    `vocab_size` of 0 (unknown: an upstream's) any id may be one."""
    largest = vocab_size - 1 if vocab_size else MAX_ID
    for i, id in enumerate(ids):
        if not 0 <= id <= largest:
            raise InvalidRequest(
                f"token {i} is {id}, but ids go from 0 to {largest}", f"{param}[{i}]"
            )


def input_ids(tokenizer: Tokenizer, vocab_size: int, text: Input, param: str) -> list[int]:
    """Return the token ids of a text. Raises `InvalidRequest` if there are none, or wrong ones."""
    if isinstance(text, str):
        ids = tokenizer.encode(text)
    else:
        check_ids(text, vocab_size, param)
        ids = text
    if not ids:
        raise InvalidRequest(f"{param} has no tokens; give at least one", param)
    return ids


def expect_fits(ids: list[int], context: int, param: str) -> None:
    """Raise `InputTooLongError` for more tokens than the context holds."""
    if len(ids) > context:
        raise InputTooLongError(
            f"{param} has {len(ids)} tokens, but the context holds {context}; shorten it by at "
            f"least {len(ids) - context} tokens or start with a larger --context, if the model "
            "supports one",
            param,
        )
