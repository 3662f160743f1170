"""Grammars as bitmasks of the vocabulary, by llguidance: an Earley parser over a lexer of
derivatives, which goes on from Moskal et al., "Fast, high-fidelity LLM decoding with regex
constraints".

A matcher reads the tokens of a text one by one and knows which may come next. The model decides how
the text is split into tokens: llguidance could force the tokenizer's own split, but then asks it
after every token, and a model's tokenizer may be somebody else's code.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpu.errors import InvalidRequest
from gpu.grammar import Grammar
from gpu.text.token_table import TokenizerLike

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITE_SPACE = r"( |\n{1,2}[ \t]{0,20})"
"""White space that JSON may have between its tokens, as in llama.cpp: a model that writes at random
would fill its context with it otherwise."""

MODEL_SPLITS = '\n%llguidance {"no_forcing": true}\n'
MAX_LEXER_STATES = 50_000
"""They take one or two kilobytes each."""
MAX_COMPILED = 16
MAX_REASON_CHARS = 400
POSITION = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
SOURCE_LINE = re.compile(r"\s*(\d+ \||\^)|<non-verbose")
NO_TOKEN = "the model has no token that may come next by it"


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


class _LLVocabulary:
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


class GrammarMatcher:
    """Grammar of one run and the tokens read so far.

    bitmask    which tokens may come next: one bit each, lowest first, (⌈vocab_size / 32⌉,) u32
    n_allowed  how many these are
    complete   the text follows the grammar and nothing may come after it
    failure    reason why no token may come next though the text is not complete, else ""
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._look()

    def read(self, id: int) -> None:
        """Read the next token of the text."""
        self._matcher.consume_token(id)
        self._look()

    @property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return `bitmask` as (vocab_size,)."""
        words = self.bitmask.view(np.uint8)
        return np.unpackbits(words, count=self._vocab_size, bitorder="little").astype(bool)

    def _look(self) -> None:
        matcher, n = self._matcher, self._vocab_size
        self.complete = matcher.is_stopped() and matcher.is_accepting() and not matcher.is_error()
        self.failure = ""
        bits = np.zeros(-(-n // 32) * 32, np.uint8)
        if not self.complete and not matcher.is_error():
            found = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            bits[:n] = np.unpackbits(found, count=n, bitorder="little")
        self.bitmask: npt.NDArray[np.uint32] = np.packbits(bits, bitorder="little").view(np.uint32)
        self.n_allowed = int(bits.sum())
        if matcher.is_error():
            self.failure = _reason(matcher.get_error())
        elif not self.complete and not self.n_allowed:
            self.failure = NO_TOKEN


class GrammarCompiler:
    """Compiler of grammars for one vocabulary, which `make` returns at the first of them.
    Thread-safe. It keeps those it compiled last."""

    def __init__(self, make: Callable[[], GrammarVocabulary]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._compiled = functools.lru_cache(MAX_COMPILED)(self._compile)

    @functools.cached_property
    def _vocabulary(self) -> GrammarVocabulary:
        return self._make()

    @functools.cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        tokens: Any = _LLVocabulary(self._vocabulary)
        return LLTokenizer(tokens, n_vocab=len(tokens.tokens), eos_token=tokens.eos_ids)

    def matcher(self, grammar: Grammar, prompt: Sequence[int]) -> GrammarMatcher:
        """Return the matcher of a run after `prompt`, the last `n_read` tokens of which are read.
        Raises InvalidRequest for a grammar with a fault, or that they do not follow."""
        grammar.validate(len(prompt))
        compiled = self._compiled(grammar.kind, grammar.text).deep_copy()
        read = list(prompt[len(prompt) - grammar.n_read :])
        if not compiled.consume_tokens(read):
            raise InvalidRequest(
                f"the last {grammar.n_read} tokens of the prompt do not follow the grammar: "
                f"{_reason(compiled.get_error())}",
                "grammar",
            )
        matcher = GrammarMatcher(compiled, len(self._vocabulary.tokens))
        if matcher.complete or matcher.failure:
            why = matcher.failure or "it is complete, nothing can follow it"
            raise InvalidRequest(f"the grammar cannot be followed: {why}", "grammar")
        return matcher

    def _compile(self, kind: str, text: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        lark = LLMatcher.grammar_from_lark(_LARK_OF[kind](text) + MODEL_SPLITS)
        with self._lock:  # the tokenizer is made once
            tokenizer = self._tokenizer
        matcher = LLMatcher(tokenizer, lark, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidRequest(_reason(matcher.get_error()), "grammar")
        return matcher


def _lark_of_schema(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema is not JSON: {error}", "grammar") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"a schema must be a JSON object, but is {text:.80}", "grammar")
    schema.setdefault("x-guidance", {"whitespace_pattern": WHITE_SPACE})
    return "start: %json " + json.dumps(schema)


def _lark_of_regex(text: str) -> str:
    from llguidance import regex_to_lark

    return f"start: /{regex_to_lark(text, 'dw')}/"


def _lark_of_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(text)
    except Exception as error:
        raise InvalidRequest(f"the grammar cannot be read: {error}", "grammar") from None


_LARK_OF: dict[str, Callable[[str], str]] = {
    "json_schema": _lark_of_schema,
    "regex": _lark_of_regex,
    "lark": str,
    "gbnf": _lark_of_gbnf,
}


def _reason(error: str) -> str:
    """Return an error of llguidance without the places in the Lark grammar, which is ours."""
    lines = [line for line in error.splitlines() if not SOURCE_LINE.match(line)]
    reason = POSITION.sub("", "\n".join(lines).strip())
    if reason == "NoExtensionBias":
        return NO_TOKEN
    reason = reason.replace("Unimplemented keys: ", "keywords that are not supported: ")
    return reason[:MAX_REASON_CHARS]
