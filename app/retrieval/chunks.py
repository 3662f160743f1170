"""Chunks of a document: windows of the embedding model's tokens, each with the last tokens of the
one before it. They begin and end between words, so that a chunk has the same tokens alone as in its
document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from app.prompt.encoder_texts import EncoderTexts
from app.retrieval.documents import PAGE_BREAK
from gpu import InvalidRequest, TextChunk

DEFAULT_SIZE = 128
DEFAULT_OVERLAP = 16
MIN_SIZE = 4
MAX_CHUNKS = 4096
"""Chunks of all documents of an index."""
PIECE_CHARS = 32_000
"""Characters that are tokenized at once: Python code that runs for every token of a long text keeps
others waiting."""
MAX_TOKEN_CHARS = 256
"""Characters of a token, above those of the longest real ones. A longer one, such as WordPiece's
unknown token for a picture in base64, counts several times: a chunk has no megabytes."""
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompt in front of a chunk; the first one that the model has is used, as by
`encode_document` of sentence-transformers."""
QUERY_PROMPT = "query"

Span = tuple[int, int]
"""Characters of a token in its document: the first, and the one after the last."""


class ChunkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of a chunk, and how many of them it shares with the one before it."""

    size: int = DEFAULT_SIZE
    overlap: int = DEFAULT_OVERLAP

    def validate(self, room: int) -> None:
        """Raise InvalidRequest unless chunks fit into `room` tokens."""
        if not MIN_SIZE <= self.size <= room:
            raise InvalidRequest(
                f"expected {MIN_SIZE} to {room} tokens for a chunk, which is what the embedding "
                f"model reads at once, but got {self.size}",
                "size",
            )
        if not 0 <= self.overlap <= self.size // 2:
            raise InvalidRequest(
                f"expected an overlap of 0 to {self.size // 2} tokens, half a chunk, but got "
                f"{self.overlap}",
                "overlap",
            )


class Chunk(msgspec.Struct, frozen=True):
    """A chunk of a document.

    document  number of the document in its index
    start     its first character in the document's text
    page      from 1; None if the document has no pages
    tokens    of the embedding model, without special ones
    """

    document: int
    start: int
    text: str
    tokens: int
    page: int | None = None


def room_for_text(texts: EncoderTexts, max_tokens: int) -> int:
    """Return how many tokens of a chunk the embedding model can read, after the special ones and
    the prompt in front."""
    [prompt] = texts.tokenizer.encode_batch([TextChunk(document_prompt(texts))])
    special = len(texts.tokenizer.prefix) + len(texts.tokenizer.suffix)
    return max_tokens - special - len(prompt.ids)


def document_prompt(texts: EncoderTexts) -> str:
    """Return the text in front of a chunk."""
    names = (name for name in DOCUMENT_PROMPTS if name in texts.sentence.prompts)
    return texts.prompt(next(names, None))


def query_prompt(texts: EncoderTexts) -> str:
    """Return the text in front of a question, as `encode_query` of sentence-transformers."""
    return texts.prompt(QUERY_PROMPT if QUERY_PROMPT in texts.sentence.prompts else None)


def chunks_of(
    texts: EncoderTexts, text: str, settings: ChunkSettings, most: int, *, has_pages: bool
) -> list[Chunk]:
    """Return the chunks of a document (number 0). Raises InvalidRequest for more than `most`, and
    what the tokenizer raises."""
    spans: list[Span] = []
    for span in _token_spans(texts, text):
        spans.append(span)
        if len(spans) > most * settings.size:
            raise InvalidRequest(
                f"an index holds at most {MAX_CHUNKS:,} chunks, and this document has more than "
                f"the {most:,} that are left; split it, remove others, or use larger chunks",
                "data",
            )
    found = []
    for first, last in _windows(text, spans, settings):
        start, end = spans[first][0], spans[last - 1][1]
        own = text[start:end]
        n_blanks = len(own) - len(own.lstrip())  # the page may break before the first word
        page = 1 + text.count(PAGE_BREAK, 0, start + n_blanks) if has_pages else None
        found.append(Chunk(0, start, own.replace(PAGE_BREAK, "\n"), last - first, page))
    if text and not found:
        raise InvalidRequest("the embedding model can read no character of this document", "data")
    if len(found) > most:
        raise InvalidRequest(
            f"this document has {len(found):,} chunks, but only {most:,} of the {MAX_CHUNKS:,} of "
            "an index are left; divide it, remove others, or take larger chunks",
            "data",
        )
    return found


def _token_spans(texts: EncoderTexts, text: str) -> Iterator[Span]:
    """Yield the characters of each token. The text is tokenized in pieces cut between words."""
    start = 0
    while start < len(text):
        end = min(start + PIECE_CHARS, len(text))
        if end < len(text):
            # Before the blank: in many vocabularies it belongs to the word after it.
            blanks = [found.start() for found in re.finditer(r"\s+", text[start:end])]
            end = start + (blanks[-1] if blanks and blanks[-1] else PIECE_CHARS)
        [encoding] = texts.tokenizer.encode_batch([TextChunk(text[start:end])], offsets=True)
        for first, last in encoding.offsets:
            for at in range(first, last, MAX_TOKEN_CHARS):
                yield start + at, start + min(at + MAX_TOKEN_CHARS, last)
        start = end


def _windows(text: str, spans: Sequence[Span], settings: ChunkSettings) -> Iterator[Span]:
    """Yield the first token of each chunk, and the one after its last."""

    def begins_character(i: int) -> bool:
        return spans[i][0] >= spans[i - 1][1]

    def begins_word(i: int) -> bool:
        start = spans[i][0]
        return begins_character(i) and (text[start].isspace() or text[start - 1].isspace())

    first, covered, size = 0, 0, settings.size
    while first < len(spans):
        last = min(first + size, len(spans))
        if last == len(spans):
            yield first, last
            return
        between_words = (i for i in range(last, first + size // 2, -1) if begins_word(i))
        inside_word = (i for i in range(last, first, -1) if begins_character(i))
        last = next(between_words, next(inside_word, last))
        if last <= covered:  # the next word does not fit after the overlap
            first = covered
            continue
        yield first, last
        covered = last
        shared = range(max(first + 1, last - settings.overlap), last)
        # Inside a word that is longer than half a chunk, as texts without blanks are.
        elsewhere = last if begins_word(last) else next(filter(begins_character, shared), last)
        first = next(filter(begins_word, shared), elsewhere)
