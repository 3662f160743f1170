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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpu.errors import InvalidRequest
from gpu.grammar import CANNOT_FOLLOW, Grammar
from gpu.text.grammar_vocabulary import GrammarVocabulary, byte_tokenizer, ll_tokenizer
from gpu.text.json_closing import JsonClosing, ids_of_bytes
from gpu.text.json_schema import prepare_schema

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITE_SPACE = r"( |\n{1,2}[ \t]{0,20})"
"""White space that JSON may have between its tokens, as in llama.cpp: a model that writes at random
would fill its context with it otherwise."""

MODEL_SPLITS = '\n%llguidance {"no_forcing": true}\n'
MAX_LEXER_STATES = 50_000
"""They take one or two kilobytes each."""
MAX_STEP_ITEMS = 10_000
"""Most items of the parser for one mask. Grammars that read text character by character were seen
to need between 2,000 and 5,000 with SmolLM2's vocabulary. An ambiguous one (`e: e e | C`) has more
with each character: at 50,000, llguidance's own limit, a mask took half a second."""
SECONDS_PER_TOKEN = 0.01
FREE_SECONDS = 0.5
"""Most processor time that a run's masks may take: SECONDS_PER_TOKEN each, and FREE_SECONDS more in
all. They are computed between steps, so everybody's texts wait for them."""
SECONDS_PER_PROMPT_TOKEN = 0.001
"""The same for each token of the prompt, which needs no mask. Other requests wait meanwhile."""
MAX_COMPILED = 16
MAX_REASON_CHARS = 400
POSITION = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
SOURCE_LINE = re.compile(r"\s*(\d+ \||\^)|<non-verbose")
SCHEMA = re.compile(r"%json\s*(?={)")
NO_TOKEN = "the model has no token that may come next by it"
PROMPT_TOO_SLOW = (
    f"reading the text so far takes more than {SECONDS_PER_PROMPT_TOKEN * 1000:.0f} ms a token"
)
TOO_SLOW = (
    f"finding the tokens it allows takes more than {SECONDS_PER_TOKEN * 1000:.0f} ms a token; "
    "rules that read a text in one way only, and terminals of more than one character, are faster"
)


class TimeBudget:
    """Processor time that the grammar of a text may still take."""

    def __init__(self) -> None:
        self._seconds = FREE_SECONDS

    @property
    def is_spent(self) -> bool:
        return self._seconds < 0

    @contextmanager
    def spend(self, earned: float = 0.0) -> Iterator[None]:
        """Credit `earned` seconds, and charge the processor time of this context."""
        began = time.thread_time()
        yield
        self._seconds += earned - (time.thread_time() - began)


class GrammarMatcher:
    """Grammar of one run and the tokens read so far.

    bitmask    which tokens may come next: one bit each, lowest first, (⌈vocab_size / 32⌉,) u32
    n_allowed  how many these are
    complete   the text follows the grammar and nothing may come after it
    failure    why the text cannot go on though it is not complete, else "": no token may come next,
               or to find those that may takes too long
    closed     the text was brought to its end by `end_within`
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary: GrammarVocabulary,
        closing: JsonClosing | None,
        budget: TimeBudget,
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._vocab_size = len(vocabulary.tokens)
        self._closing = closing
        self._budget = budget
        self.closed = False
        self.failure = ""
        self._look()

    def read(self, id: int) -> None:
        """Read the next token of the text."""
        with self._budget.spend(SECONDS_PER_TOKEN):
            self._matcher.consume_token(id)
            if self._closing is not None and id not in self._vocabulary.specials:
                self._closing.read(self._vocabulary.tokens[id])
            self._look()
        self._expect_time()

    def end_within(self, n_left: int) -> None:
        """Let only tokens come next with which a JSON text ends, if no more than `n_left` tokens
        can be written and they are needed for that."""
        if self._closing is None or self.complete or self.failure:
            return
        with self._budget.spend():
            ids = self._closing.ids(n_left, self._vocabulary.eos_ids)
        allowed = self.allowed
        kept = [id for id in ids or () if allowed[id]]
        if kept:
            bits = np.zeros(32 * len(self.bitmask), np.uint8)
            bits[kept] = 1
            self._allow(bits)
            self.closed = True
        self._expect_time()

    def change_limit(self, n_left: int | None) -> None:
        """Bring the text to its end by another limit than before: `n_left` tokens may be written
        now. None: the next one is in flight, and was drawn by the old limit."""
        if self.complete:
            return
        self.closed = False
        if n_left is not None:
            with self._budget.spend():
                self._look()
            self.end_within(n_left)

    def _expect_time(self) -> None:
        if self._budget.is_spent and not (self.complete or self.failure):
            self.failure = f"{CANNOT_FOLLOW}: {TOO_SLOW}"

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
        self._allow(bits)
        if matcher.is_error():
            self.failure = f"{CANNOT_FOLLOW}: {_reason(matcher.get_error())}"
        elif not self.complete and not self.n_allowed:
            self.failure = f"{CANNOT_FOLLOW}: {NO_TOKEN}"

    def _allow(self, bits: npt.NDArray[np.uint8]) -> None:
        self.bitmask: npt.NDArray[np.uint32] = np.packbits(bits, bitorder="little").view(np.uint32)
        self.n_allowed = int(bits.sum())


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
        return ll_tokenizer(self._vocabulary)

    def matcher(
        self, grammar: Grammar, prompt: Sequence[int], n_written: int = 0, n_left: int = 0
    ) -> GrammarMatcher:
        """Return the matcher of a run after `prompt`, the last `n_read` tokens of which are read.
        The run wrote the last `n_written` of them, and `n_left` more may follow: a JSON text is
        brought to its end by that; 0: the limit is unknown. Raises InvalidRequest for a grammar
        with a fault, or that they do not follow."""
        grammar.validate(len(prompt))
        compiled, by_bytes = self._compiled(grammar.kind, grammar.text)
        compiled = compiled.deep_copy()
        compiled.consume_tokens([])  # notices that nothing may come at all
        closing = None
        if by_bytes is not None:
            closing = JsonClosing(by_bytes.deep_copy(), self._ids_of_bytes)
        budget, n_after = TimeBudget(), grammar.n_read
        for id in prompt[len(prompt) - grammar.n_read :]:
            n_after -= 1
            with budget.spend(SECONDS_PER_PROMPT_TOKEN):
                follows = compiled.consume_token(id)
                if follows and closing is not None:
                    closing.read(self._vocabulary.tokens[id])
                    if n_left > 0 and n_after < n_written:
                        closing.ids(n_left + n_after, self._vocabulary.eos_ids)
            if not follows:
                raise InvalidRequest(
                    f"the last {grammar.n_read} tokens of the prompt do not follow the grammar: "
                    f"{_reason(compiled.get_error())}",
                    "grammar",
                )
            if budget.is_spent:
                raise InvalidRequest(f"{CANNOT_FOLLOW}: {PROMPT_TOO_SLOW}", "grammar")
        matcher = GrammarMatcher(compiled, self._vocabulary, closing, budget)
        if n_left > 0 and grammar.n_read and n_written:
            matcher.end_within(n_left)
        if matcher.complete or matcher.failure:
            complete = f"{CANNOT_FOLLOW}: it is complete, nothing can follow it"
            raise InvalidRequest(matcher.failure or complete, "grammar")
        return matcher

    @functools.cached_property
    def _ids_of_bytes(self) -> dict[bytes, list[int]]:
        return ids_of_bytes(self._vocabulary)

    def _compile(self, kind: str, text: str) -> tuple[LLMatcher, LLMatcher | None]:
        """Return the matcher of a grammar and, for schemas, that for the vocabulary of the bytes,
        which `JsonClosing` follows."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, step_max_items=MAX_STEP_ITEMS, verbose_errors=False
        )
        lark = LLMatcher.grammar_from_lark(_with_schemas(_LARK_OF[kind](text)) + MODEL_SPLITS)
        with self._lock:  # the tokenizer is made once
            tokenizer = self._tokenizer
        matcher = LLMatcher(tokenizer, lark, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidRequest(_reason(matcher.get_error()), "grammar")
        if kind != "json_schema":
            return matcher, None
        return matcher, LLMatcher(byte_tokenizer(), lark, log_level=0, limits=limits)


def _lark_of_schema(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema is not JSON: {error}", "grammar") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"a schema must be a JSON object, but is {text:.80}", "grammar")
    schema.setdefault("x-guidance", {"whitespace_pattern": WHITE_SPACE})
    return "start: %json " + json.dumps(schema)


def _with_schemas(lark: str) -> str:
    """Return a grammar with every schema inside of it as llguidance must get it."""
    parts, at, decoder = [], 0, json.JSONDecoder()
    for match in SCHEMA.finditer(lark):
        if match.start() < at:
            continue  # a description that mentions %json
        try:
            schema, end = decoder.raw_decode(lark, match.end())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong
        prepare_schema(schema)
        parts += [lark[at : match.end()], json.dumps(schema)]
        at = end
    return "".join([*parts, lark[at:]])


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
