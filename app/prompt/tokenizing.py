"""Tokenization of a text for display: as the engine gets it, and by another tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from app import tale
from app.engine_client import EngineClient, Tokenizer
from app.prompt.conversation import Tool, Turn
from app.prompt.limited_tokenizer import load_tokenizer
from app.prompt.message_spans import find_message_spans
from app.prompt.prompts import encode_parts, prompt_ids, render_prompt
from app.prompt.tools import offered_tools
from app.prompt.turns import conversation_turns
from app.protocol.messages import (
    Piece,
    PromptPiece,
    Segment,
    Segmented,
    Tokenization,
    Tokenize,
    Tokenized,
)
from gpu import InvalidRequest


class MinimalTokenizer(Protocol):
    """Methods that the tokenizer for comparison needs."""

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]: ...
    def piece(self, id: int) -> str: ...
    def token_bytes(self, id: int) -> bytes: ...
    def is_special(self, id: int) -> bool: ...


class ByteTokenizer:
    """Tokenizer without a vocabulary: every byte of UTF-8 is a token."""

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
        return list(text.encode())

    def piece(self, id: int) -> str:
        return self.token_bytes(id).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        return bytes([id])

    def is_special(self, id: int) -> bool:
        return False


@dataclass(frozen=True)
class NamedTokenizer:
    """Tokenizer for comparison with the model's, and its name for display."""

    name: str
    tokenizer: MinimalTokenizer


BYTE_TOKENIZER = NamedTokenizer("bytes", ByteTokenizer())


def comparison_tokenizer(path: Path | None, model: Path) -> NamedTokenizer:
    """Return the tokenizer at `path`: a tokenizer.json, a tokenizer.model or a model's folder.

    If None, it is that of the bundled models; for one of these, bytes. Raises ModelError.
    """
    if path is None:
        if tale.name_of(model):
            return BYTE_TOKENIZER
        return NamedTokenizer(tale.NAME, load_tokenizer(tale.model_dir()))
    whole = path.resolve()
    folder = whole.parent if whole.name in ("tokenizer.json", "tokenizer.model") else whole
    return NamedTokenizer(folder.name, load_tokenizer(path))


class _TokenizedText(NamedTuple):
    """Tokenized text.

    rendered  text that the engine gets, with the chat template
    tokens    its tokens
    unplaced  indices of messages whose tokens are unknown
    plain     text without the chat template
    """

    rendered: str
    tokens: list[PromptPiece]
    unplaced: list[int]
    plain: str


class TokenizeHandler:
    """Answers `tokenize` and `segment` messages, also while the engine is not ready."""

    def __init__(self, engine: EngineClient, compare: NamedTokenizer) -> None:
        self._engine = engine
        self._compare = compare

    @property
    def _tokenizer(self) -> Tokenizer:
        """Tokenizer of the current model."""
        return self._engine.tokenizer

    def answer(self, message: Tokenize) -> Tokenized:
        """Return the tokens of a message's text.

        Raises InvalidRequest unless it has exactly one text, and the errors of `prompt_ids`.
        """
        result = self._tokenize_text(message)
        hello = self._engine.hello
        return Tokenized(
            request=message.request,
            rendered=result.rendered,
            tokens=result.tokens,
            unplaced=result.unplaced,
            n_chars=len(result.plain),
            n_bytes=len(result.plain.encode()),
            n_words=len(result.plain.split()),
            plain=tokenization(
                "" if hello is None else hello.model.name, self._tokenizer, result.plain
            ),
            compare=tokenization(self._compare.name, self._compare.tokenizer, result.plain),
        )

    def segment(self, message: Segment) -> Segmented:
        """Return the steps from a message's text to tokens of the model. Raises as
        `gpu.Tokenizer.segment`."""
        tokenizer = self._tokenizer
        found = tokenizer.segment(message.text)
        pieces = [Piece(*piece_fields(tokenizer, id)) for id in found.named_ids]
        return Segmented(
            algorithm=found.algorithm, words=found.words, request=message.request, pieces=pieces
        )

    def _tokenize_text(self, message: Tokenize) -> _TokenizedText:
        prompt, messages, text = message.prompt, message.messages, message.text
        if sum(given is not None for given in (prompt, messages, text)) != 1:
            raise InvalidRequest("expected exactly one of prompt, messages and text", "prompt")
        if message.continue_final and messages is None:
            raise InvalidRequest(
                "continue_final applies to messages only; leave it out, or send messages",
                "continue_final",
            )
        if messages is not None:
            tools = offered_tools(message.tools or (), None)
            return self._conversation(conversation_turns(messages), message.continue_final, tools)
        if prompt is not None:
            tokens = self._pieces(prompt_ids(self._tokenizer, prompt))
            return _TokenizedText(prompt, tokens, [], prompt)
        assert text is not None
        ids = self._tokenizer.encode(text, bos=False, specials=False)
        return _TokenizedText(text, self._pieces(ids), [], text)

    def _pieces(self, ids: Sequence[int]) -> list[PromptPiece]:
        return [PromptPiece(*piece_fields(self._tokenizer, id)) for id in ids]

    def _conversation(
        self, turns: Sequence[Turn], continue_final: bool, tools: Sequence[Tool]
    ) -> _TokenizedText:
        parts = render_prompt(self._tokenizer, turns, continue_final, tools)
        spans = find_message_spans(self._tokenizer, turns, continue_final, parts, tools)
        tokens: list[PromptPiece] = []
        start = 0
        encodings = encode_parts(self._tokenizer, parts.parts, offsets=True)
        for (text, _), (ids, offsets) in zip(parts.parts, encodings, strict=True):
            for id, (first, end) in zip(ids, offsets, strict=True):
                message_index = spans.message_at(start + first, start + end)
                role = "" if message_index is None else turns[message_index]["role"]
                tokens.append(PromptPiece(*piece_fields(self._tokenizer, id), role, message_index))
            start += len(text)
        plain = "\n".join(turn["content"] for turn in turns)
        return _TokenizedText(parts.whole, tokens, spans.unplaced, plain)


def piece_fields(tokenizer: MinimalTokenizer, id: int) -> tuple[int, str, str, bool]:
    """Return the fields of `Piece` for a token id."""
    return id, tokenizer.piece(id), tokenizer.token_bytes(id).hex(), tokenizer.is_special(id)


def tokenization(name: str, tokenizer: MinimalTokenizer, text: str) -> Tokenization:
    """Return the tokens of a plain text: none is added, and names of special tokens are text."""
    ids = tokenizer.encode(text, bos=False, specials=False)
    n_words = len(text.split())
    return Tokenization(
        name=name,
        n_tokens=len(ids),
        tokens_per_word=len(ids) / n_words if n_words else None,
        tokens=[Piece(*piece_fields(tokenizer, id)) for id in ids],
    )
