"""Tokens of an upstream, by the tokenizer of its model or, if that is not known, by their texts."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator, Sequence

from app.engine_client import Tokenizer, UnavailableError
from app.protocol.messages import Message
from app.upstream.chunks import Alternative, WrittenToken
from gpu import DecodeStream, Segmentation, TextChunk, TextEncoding

N_BYTES = 256
MARKS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
END = MARKS.index("<|end|>")
FIRST_BYTE = len(MARKS)
FIRST_WORD = FIRST_BYTE + N_BYTES
ID_BITS = 53
"""Ids stay exact in JSON, and are too many to be guessed."""
MAX_WORDS = 1 << 19
MAX_PROMPT_WORDS = 1 << 17
"""Texts that prompts may add, so that nobody's prompts fill the table. The rest is for tokens of
answers, more than any model has."""
MAX_WORD_BYTES = 64
MAX_TOKEN_BYTES = 4096
WORD = re.compile(r" ?[^\W\d_]+| ?\d+|\s|[^\w\s]+|_", re.ASCII)
SPECIALS = re.compile("(" + "|".join(map(re.escape, MARKS)) + ")")
ROLE_OF_MARK = {i: mark[2:-2] for i, mark in enumerate(MARKS)}


class WordTokenizer:
    """Numbers texts as they come: words of prompts, and tokens of answers. Thread-safe.

    It stands in if an upstream returns no ids and its tokenizer is not here: any text survives
    encode and decode, but the ids mean nothing elsewhere. They are drawn at random: all clients
    share the table, and who could count through it would read what the others wrote. Past
    `MAX_WORDS` texts, new ones are split into bytes. The chat template only marks who says what,
    for `messages_of`.
    """

    eos_ids: tuple[int, ...] = (END,)
    chat_template: str | None = (
        "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tool_template: str | None = None
    vocab_size = 0  # unknown
    n_stripped_spaces = 0

    def __init__(self) -> None:
        self.special_tokens = {"eos_token": MARKS[END]}
        self._lock = threading.Lock()
        self._words: dict[int, bytes] = {}
        self._n_of_prompts = 0
        self._id_by_word: dict[bytes, int] = {}

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
        return self.encode_with_offsets(text, bos, specials)[0]

    def encode_with_offsets(
        self, text: str, bos: bool = True, specials: bool = True, inside: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        at = 0
        for piece in SPECIALS.split(text) if specials else [text]:
            marked = specials and piece in MARKS
            parts = [piece] if marked else _words(piece)
            for part in parts:
                found = [MARKS.index(part)] if marked else self.ids_of(part.encode())
                ids += found
                offsets += [(at, at + len(part))] * len(found)
                at += len(part)
        return ids, offsets

    def encode_batch(
        self, chunks: Sequence[TextChunk], offsets: bool = False
    ) -> list[TextEncoding]:
        found = []
        for text, specials, inside in chunks:
            ids, places = self.encode_with_offsets(text, False, specials, inside)
            found.append(TextEncoding(ids, places if offsets else []))
        return found

    def segment(self, text: str) -> Segmentation:
        raise UnavailableError(
            "the merges of the upstream's tokenizer are not here; start the server with "
            "--tokenizer to see them"
        )

    def decode(self, ids: Sequence[int]) -> str:
        stream = DecodeStream(self, ())
        return "".join([stream.push(id) for id in ids]) + stream.flush()

    def piece(self, id: int) -> str:
        if self.is_special(id):
            return MARKS[id]
        return self.token_bytes(id).decode("utf-8", "replace") or f"<unused {id}>"

    def token_bytes(self, id: int) -> bytes:
        if FIRST_BYTE <= id < FIRST_WORD:
            return bytes([id - FIRST_BYTE])
        return self._words.get(id, b"")

    def is_special(self, id: int) -> bool:
        return 0 <= id < FIRST_BYTE

    def ids_of(self, word: bytes) -> list[int]:
        """Return the id of a word of a prompt, or those of its bytes if it is long or new and there
        are too many."""
        with self._lock:
            n_before = len(self._words)
            room = self._n_of_prompts < MAX_PROMPT_WORDS and len(word) <= MAX_WORD_BYTES
            id = self._id_of(word, room)
            self._n_of_prompts += len(self._words) - n_before
        return [FIRST_BYTE + byte for byte in word] if id is None else [id]

    def id_of_token(self, data: bytes) -> int | None:
        """Return the id of a token of an answer; None if it is empty, or too long, or there are too
        many."""
        with self._lock:
            return self._id_of(data, 0 < len(data) <= MAX_TOKEN_BYTES)

    def _id_of(self, data: bytes, may_add: bool) -> int | None:
        if len(data) == 1:
            return FIRST_BYTE + data[0]
        id = self._id_by_word.get(data)
        if id is None and may_add and len(self._words) < MAX_WORDS:
            id = self._new_id()
            self._id_by_word[data] = id
            self._words[id] = data
        return id

    def _new_id(self) -> int:
        while True:
            id = secrets.randbits(ID_BITS)
            if id >= FIRST_WORD and id not in self._words:
                return id

    def messages_of(self, ids: Sequence[int]) -> list[Message] | None:
        """Return the conversation that the chat template made `ids` of; None for a plain text. If
        the assistant's message has begun, it is the last one."""
        messages: list[Message] = []
        begun: str | None = None
        content: list[int] = []
        for id in ids:
            if not self.is_special(id):
                content.append(id)
                continue
            if begun is not None:
                messages.append(Message(begun, self.decode(content)))  # type: ignore[arg-type]
            elif id == END or content:
                return None
            begun = None if id == END else ROLE_OF_MARK[id]
            content = []
        if begun is None:
            return None if content or not messages else messages
        if content:
            messages.append(Message("assistant", self.decode(content)))
        return messages


def _words(text: str) -> list[str]:
    """Split a text into words; joined they are the text again."""
    parts: list[str] = []
    at = 0
    for found in WORD.finditer(text):
        if found.start() > at:
            parts.append(text[at : found.start()])
        parts.append(found.group())
        at = found.end()
    if at < len(text):
        parts.append(text[at:])
    return parts


class TokenIds:
    """Ids of the tokens that an upstream writes, by the tokenizer of this server.

    exact  the tokenizer is that of the upstream's model: prompts can be sent as ids
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.words = tokenizer if isinstance(tokenizer, WordTokenizer) else None
        self._by_bytes = {} if self.words else self._table(tokenizer, vocab_size)

    @property
    def exact(self) -> bool:
        return self.words is None

    @staticmethod
    def _table(tokenizer: Tokenizer, vocab_size: int) -> dict[bytes, int]:
        """Return the ids by the bytes of their tokens, special ones by their names. Of tokens with
        the same bytes the later one counts: the first are often single bytes, for other texts."""
        names = (
            tokenizer.piece(id).encode() if tokenizer.is_special(id) else tokenizer.token_bytes(id)
            for id in range(vocab_size)
        )
        return {name: id for id, name in enumerate(names) if name}

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of a prompt for an upstream that tokenizes it and adds what every text
        begins with. Special tokens are part of it."""
        tokenizer = self.tokenizer
        if self.words is not None:
            return tokenizer.decode(ids)
        first = tokenizer.encode("")
        rest = ids[len(first) :] if list(ids[: len(first)]) == first else ids
        names = (
            tokenizer.piece(id).encode() if tokenizer.is_special(id) else tokenizer.token_bytes(id)
            for id in rest
        )
        text = b"".join(names).decode("utf-8", "replace")
        return text.removeprefix(" " * tokenizer.n_stripped_spaces)

    def of(self, token: WrittenToken | Alternative) -> int | None:
        """Return the id of a token; None if no token has its text."""
        data = token.data if token.data is not None else token.piece.encode()
        if self.words is not None:
            return self.words.id_of_token(data)
        if token.id is not None:
            return token.id if 0 <= token.id < self.vocab_size else None
        return self._by_bytes.get(data)

    def split(self, text: str, ids: Sequence[int] | None) -> Iterator[tuple[int, WrittenToken]]:
        """Yield the tokens of a text whose tokens the upstream did not tell: those of `ids`, or as
        this server's tokenizer splits it."""
        known = ids if ids and self.exact and all(0 <= id < self.vocab_size for id in ids) else None
        found = list(known or self.tokenizer.encode(text, bos=False, specials=False))
        stream = DecodeStream(self.tokenizer, ())
        shares = [stream.push(id) for id in found]
        if "".join(shares) != text:
            shares = [*[""] * (len(found) - 1), text]
        for i, (id, share) in enumerate(zip(found, shares, strict=True)):
            is_rest = known is None and i > 0
            yield id, WrittenToken(share, self.tokenizer.piece(id), is_rest=is_rest)

    def require(self, token: WrittenToken) -> int:
        """Return the id of a written token. Raises UnavailableError if the tokenizer of this server
        has no such token."""
        id = self.of(token)
        if id is None:
            raise UnavailableError(
                f"the upstream wrote the token {token.piece!r:.80}, which the tokenizer of this "
                "server does not have; give the tokenizer of the model that it serves as "
                "--tokenizer, or leave --tokenizer out"
            )
        return id
