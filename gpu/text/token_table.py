"""Token table: the bytes of every token of a tokenizer, and its settings. It is plain data, so
decoding needs neither the tokenizer's files nor its library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from gpu.errors import ModelError

MAX_TABLE_BYTES = 64 * 1024 * 1024
"""Most bytes of all tokens together: thirty times those of the largest real vocabulary."""


class TextChunk(NamedTuple):
    """A text to encode, without the beginning-of-sequence token. For `specials` and `inside` see
    `gpu.text.tokenizer.Tokenizer`."""

    text: str
    specials: bool = True
    inside: bool = False


class TextEncoding(NamedTuple):
    """Token ids of a text. `offsets`: empty unless requested."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class TokenizerLike(Protocol):
    """Interface of a tokenizer for the engine and its callers; implemented by
    `gpu.text.tokenizer.Tokenizer`."""

    @property
    def special_tokens(self) -> dict[str, str]: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def tool_template(self) -> str | None: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def n_stripped_spaces(self) -> int: ...
    @property
    def prefix(self) -> tuple[int, ...]: ...
    @property
    def suffix(self) -> tuple[int, ...]: ...

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]: ...
    def encode_batch(
        self, chunks: Sequence[TextChunk], offsets: bool = False
    ) -> list[TextEncoding]: ...
    def encode_with_offsets(
        self, text: str, bos: bool = True, specials: bool = True, inside: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def piece(self, id: int) -> str: ...
    def token_bytes(self, id: int) -> bytes: ...
    def is_special(self, id: int) -> bool: ...


class TokenTable(msgspec.Struct, frozen=True, array_like=True):
    """Fields and methods as in `gpu.text.tokenizer.Tokenizer`.

    tokens    bytes of each id
    specials  texts of the special tokens
    unused    ids of the model that the tokenizer does not have
    """

    tokens: list[bytes]
    specials: dict[int, str]
    unused: frozenset[int]
    special_tokens: dict[str, str]
    eos_ids: tuple[int, ...]
    chat_template: str | None
    tool_template: str | None
    n_stripped_spaces: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def piece(self, id: int) -> str:
        if not 0 <= id < len(self.tokens) or id in self.unused:
            return f"<unused {id}>"
        special = self.specials.get(id)
        return self.tokens[id].decode("utf-8", "replace") if special is None else special

    def token_bytes(self, id: int) -> bytes:
        return self.tokens[id] if 0 <= id < len(self.tokens) else b""

    def is_special(self, id: int) -> bool:
        return id in self.specials


def token_table(tokenizer: TokenizerLike, where: str) -> TokenTable:
    """Return the table of a tokenizer. Raises ModelError if its tokens have too many bytes."""
    tokens: list[bytes] = []
    unused: list[int] = []
    n_bytes = 0
    for id in range(tokenizer.vocab_size):
        tokens.append(tokenizer.token_bytes(id))
        n_bytes += len(tokens[-1])
        if n_bytes > MAX_TABLE_BYTES:
            raise ModelError(
                f"{where}: expected at most {MAX_TABLE_BYTES:,} bytes in all tokens together, but "
                "there are more"
            )
        if not tokens[-1] and tokenizer.piece(id) == f"<unused {id}>":
            unused.append(id)
    specials = {id: tokenizer.piece(id) for id in range(len(tokens)) if tokenizer.is_special(id)}
    return TokenTable(
        tokens,
        specials,
        frozenset(unused) - specials.keys(),
        tokenizer.special_tokens,
        tokenizer.eos_ids,
        tokenizer.chat_template,
        tokenizer.tool_template,
        tokenizer.n_stripped_spaces,
        tokenizer.prefix,
        tokenizer.suffix,
    )
