"""Vocabulary of a model, as grammars see it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu.text.token_table import TokenizerLike

if TYPE_CHECKING:
    from llguidance import LLTokenizer


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """Tokens as grammars see them.

    tokens    bytes of each id; of a special token its name, of an id without text none
    specials  ids of special tokens: no text, a grammar must name them
    eos_ids   ids that end a text, special ones
    """

    tokens: list[bytes]
    specials: list[int]
    eos_ids: tuple[int, ...]

    @classmethod
    def of(
        cls, tokenizer: TokenizerLike, vocab_size: int, eos_ids: Sequence[int]
    ) -> GrammarVocabulary:
        """Return the vocabulary of a model, which may be larger or smaller than its tokenizer's."""
        ids = range(min(vocab_size, tokenizer.vocab_size))
        specials = [id for id in ids if tokenizer.is_special(id) or id in eos_ids]
        tokens = [tokenizer.token_bytes(id) for id in ids]
        for id in specials:
            tokens[id] = tokenizer.piece(id).encode()
        tokens += [b""] * (vocab_size - len(tokens))
        return cls(tokens, specials, tuple(id for id in eos_ids if id < vocab_size))


class LLVocabulary:
    """A vocabulary in the form that llguidance reads. If no token ends a text, there is one more,
    which the model does not have."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = list(vocabulary.specials)
        self.eos_ids = list(vocabulary.eos_ids)
        if not self.eos_ids:
            self.eos_ids = [len(self.tokens)]
            self.special_token_ids += self.eos_ids
            self.tokens.append(b"<|end of text|>")
        self.eos_token_id = self.eos_ids[0]

    def __call__(self, text: str) -> list[int]:
        """Return no tokens: splits of a text are asked for only where they are forced."""
        return []


def ll_tokenizer(vocabulary: GrammarVocabulary) -> LLTokenizer:
    """Return the vocabulary as llguidance takes it."""
    from llguidance import LLTokenizer

    tokens: Any = LLVocabulary(vocabulary)
    return LLTokenizer(tokens, n_vocab=len(tokens.tokens), eos_token=tokens.eos_ids)


@functools.cache
def byte_tokenizer() -> LLTokenizer:
    """Return the tokenizer whose tokens are the bytes."""
    return ll_tokenizer(GrammarVocabulary([bytes([byte]) for byte in range(256)], [], ()))
