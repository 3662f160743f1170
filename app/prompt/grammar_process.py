"""Check of grammars that requests bring, in a limited process (`app.processes.limited_child`)."""

from __future__ import annotations

import functools
import random

import msgspec
import numpy as np

from gpu import (
    Grammar,
    GrammarCompiler,
    GrammarMatcher,
    GrammarVocabulary,
    InvalidRequest,
)

NO_FILES = True
MAX_IDLE_BYTES = 256 * 1024 * 1024
N_BYTES = 256
N_FOLLOWED = 64
"""Tokens for which a grammar is followed."""


class GrammarCheck(msgspec.Struct, frozen=True, array_like=True):
    """Request to check a grammar for a model with `vocab_size` tokens. `specials`: ids and names of
    the special ones, by which a grammar names them."""

    grammar: Grammar
    vocab_size: int
    specials: tuple[tuple[int, str], ...]


class GrammarChecked(msgspec.Struct, frozen=True, array_like=True):
    """Answer to a `GrammarCheck`. `fault`: reason why the grammar cannot be used; "" if it can."""

    fault: str


_decoder = msgspec.msgpack.Decoder(GrammarCheck)


def prepare() -> None:
    """Load the library, before files are forbidden."""
    _compiler(N_BYTES, ()).matcher(Grammar("gbnf", 'root ::= "a"'), [])


def answer(request: bytes) -> bytes:
    """Answer a `GrammarCheck` with `GrammarChecked`, both in msgpack."""
    check = _decoder.decode(request)
    try:
        matcher = _compiler(check.vocab_size, check.specials).matcher(check.grammar, [])
        fault = _dead_end(matcher)
    except InvalidRequest as error:
        fault = str(error)
    return msgspec.msgpack.encode(GrammarChecked(fault))


def _dead_end(matcher: GrammarMatcher) -> str:
    """Follow the grammar for some tokens at random; return why that ended before the text was
    complete, "" if it did not. Some limits of the library are met only while a text is read."""
    rng = random.Random(0)
    for _ in range(N_FOLLOWED):
        if matcher.complete or matcher.failure:
            break
        matcher.read(int(rng.choice(np.flatnonzero(matcher.allowed))))
    return matcher.failure


@functools.lru_cache(maxsize=1)
def _compiler(vocab_size: int, specials: tuple[tuple[int, str], ...]) -> GrammarCompiler:
    """Return the compiler for a vocabulary of the special tokens and one for each byte, which takes
    about as long as the model's own and knows the same texts."""
    tokens = [b""] * max(vocab_size, N_BYTES + len(specials))
    for id, name in specials:
        tokens[id] = name.encode()
    unused = (id for id, token in enumerate(tokens) if not token)
    for id, byte in zip(unused, range(N_BYTES), strict=False):
        tokens[id] = bytes([byte])
    vocabulary = GrammarVocabulary(tokens, [id for id, _ in specials], ())
    return GrammarCompiler(lambda: vocabulary)
