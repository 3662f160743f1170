"""Text to token ids and back: a model folder's `tokenizer.json` and `tokenizer_config.json`, or
SentencePiece's `tokenizer.model` where the first is missing.

Encoding is the `tokenizers` library's. Decoding is done here, byte by byte (see
`gpu.text.token_bytes`), so that text can be streamed without ever showing half a character.
"""

from __future__ import annotations

import codecs
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import tokenizers
from tokenizers import pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from gpu.errors import InvalidRequest, ModelError
from gpu.gguf.file import is_gguf
from gpu.json_object import JsonObject, shown
from gpu.text.folder import panic_raises, read_folder
from gpu.text.gguf_tokenizer import read_tokenizer
from gpu.text.token_bytes import TokenBytes
from gpu.text.token_table import TextChunk, TextEncoding

MAX_VOCAB = 1 << 22
"""Ids; the largest real vocabularies have some hundred thousand."""


class Tokenizer:
    """A model's tokenizer. May be used by several threads.

    bos_token, eos_token  their text, None when the model has none
    eos_ids               ids of the end-of-sequence token the tokenizer names (see also
                          `ModelConfig.eos_ids`)
    chat_template         Jinja source of the default template, None when there is none
    prefix                ids that every text begins with
    vocab_size            one more than the greatest id; the model's own may be larger (padding)
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: JsonObject, where: str) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._where = where
        backend.no_truncation()  # a file may hold both, left over from training
        backend.no_padding()
        self.bos_token = _special_token(config, "bos_token")
        self.eos_token = _special_token(config, "eos_token")
        bos_id, eos_id = (self._named_id(token) for token in (self.bos_token, self.eos_token))
        named: list[str | tokenizers.AddedToken] = []
        named += [token for token in (self.bos_token, self.eos_token) if token is not None]
        backend.add_special_tokens(named)  # they have ids already; some files do not mark them
        self.eos_ids: tuple[int, ...] = () if eos_id is None else (eos_id,)
        self.chat_template: str | None = None
        self.vocab_size = 1 + max(backend.get_vocab().values(), default=-1)
        if self.vocab_size > MAX_VOCAB:
            raise ModelError(
                f"{where}: its greatest token id is {self.vocab_size - 1}, but {MAX_VOCAB - 1} is "
                "the greatest that is accepted"
            )
        added = backend.get_added_tokens_decoder()
        self._specials = frozenset(id for id, token in added.items() if token.special)
        self._added = frozenset(added)
        self.prefix = self._find_prefix(config, bos_id)
        self._beginning = backend.pre_tokenizer
        self._inside = _without_prefix(backend.pre_tokenizer)
        backend.post_processor = None  # it would only trim spaces from offsets now
        state = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        self._token_bytes = TokenBytes.from_decoder(state, where)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read a model folder (or a tokenizer.json or tokenizer.model by another name, with the
        files beside it, or a GGUF file); `ModelError` says which file is wrong and how."""
        folder = Path(folder)
        if is_gguf(folder):
            return cls._of_gguf(folder)
        path = folder / "tokenizer.json"
        if folder.is_file():
            folder, path = folder.parent, folder
        files = read_folder(folder, path)
        tokenizer = cls(files.backend, files.config, files.where)
        tokenizer.chat_template = files.chat_template
        return tokenizer

    @classmethod
    def _of_gguf(cls, path: Path) -> Tokenizer:
        backend, config = read_tokenizer(path)
        tokenizer = cls(backend, config, str(path))
        tokenizer.chat_template = config.get("chat_template")
        return tokenizer

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
        """Token ids of `text`.

        bos       begin with the beginning-of-sequence token if this model's tokenizer does so
                  (and if the text does not already begin with it)
        specials  text such as "<|im_end|>" becomes that special token; False keeps it plain text,
                  so that what a user writes cannot end their turn or begin another
        """
        ids = self._encode(text, specials).ids
        return [*self._missing_prefix(ids), *ids] if bos else ids

    def encode_with_offsets(
        self, text: str, bos: bool = True, specials: bool = True, inside: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of `encode`, and of each the first character of `text` it holds a part of and
        the one after the last. Tokens that share a character overlap; one that holds none (what
        `bos` adds) is empty.

        inside  `text` is what comes after a special token in a longer one: it gets no "▁" in front
                where only the beginning of a text does
        """
        encoding = self._encode(text, specials, inside)
        prefix = self._missing_prefix(encoding.ids) if bos else ()
        return [*prefix, *encoding.ids], [(0, 0)] * len(prefix) + encoding.offsets

    def encode_batch(
        self, chunks: Sequence[TextChunk], offsets: bool = False
    ) -> list[TextEncoding]:
        """Several texts, each as `encode_with_offsets` without `bos` has it."""
        found = []
        for text, specials, inside in chunks:
            ids, places = self.encode_with_offsets(text, False, specials, inside)
            found.append(TextEncoding(ids, places if offsets else []))
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a whole sequence, without special tokens; U+FFFD for bytes that are not text."""
        stream = DecodeStream(self, ())
        return "".join([stream.push(id) for id in ids]) + stream.flush()

    def piece(self, id: int) -> str:
        """Text of one token on its own, for people: special tokens literally, U+FFFD for part of
        a character, "<unused 512>" for an id that the model has and the tokenizer does not."""
        token = self._token(id)
        if token is None:
            return f"<unused {id}>"
        if id in self._specials:
            return token
        return self.token_bytes(id).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """UTF-8 bytes that the token adds to a text; none for special and unknown ids."""
        found = self._bytes.get(id)
        if found is None:
            token = self._token(id)
            if token is None or id in self._specials:
                found = b""
            elif id in self._added and self._token_bytes.byte_level:
                found = token.encode()
            else:
                found = self._token_bytes.of(token)
            self._bytes[id] = found
        return found

    def is_special(self, id: int) -> bool:
        """Control tokens: never part of the text."""
        return id in self._specials

    @property
    def n_stripped_spaces(self) -> int:
        """How many spaces a decoded text loses at its beginning (SentencePiece adds one)."""
        return self._token_bytes.strip

    def _encode(self, text: str, specials: bool, inside: bool = False) -> tokenizers.Encoding:
        expect_unicode(text)
        failure = InvalidRequest(f"{self._where}: the tokenizer fails at this text; is it damaged?")
        with self._lock, panic_raises(failure):
            self._backend.encode_special_tokens = not specials
            if self._inside is not None:
                self._backend.pre_tokenizer = self._inside if inside else self._beginning
            encoding = self._backend.encode(text, add_special_tokens=False)
        if not specials:
            self._check_plain(encoding.ids)
        return encoding

    def _missing_prefix(self, ids: list[int]) -> tuple[int, ...]:
        """What must come before `ids` so that they begin as every text does."""
        return () if tuple(ids[: len(self.prefix)]) == self.prefix else self.prefix

    def _token(self, id: int) -> str | None:
        return self._backend.id_to_token(id) if 0 <= id < self.vocab_size else None

    def _named_id(self, token: str | None) -> int | None:
        if token is None:
            return None
        id = self._backend.token_to_id(token)
        if id is None:
            raise ModelError(
                f"{self._where}: has no token {shown(token)}, which is named in the config"
            )
        return id

    def _find_prefix(self, config: JsonObject, bos_id: int | None) -> tuple[int, ...]:
        """The ids that begin every text: `add_bos_token` says so, or the post-processor does."""
        if "add_bos_token" in config:
            if not config.boolean("add_bos_token", False):
                return ()
            if bos_id is None:
                raise config.error("add_bos_token", "false, as there is no bos_token")
            return (bos_id,)
        with panic_raises(ModelError(f"{self._where}: the tokenizer is damaged")):
            plain = self._backend.encode("a", add_special_tokens=False).ids
            whole = self._backend.encode("a").ids
        for n in range(len(whole) - len(plain) + 1):
            if whole[n : n + len(plain)] == plain:
                return tuple(whole[:n])
        return ()

    def _check_plain(self, ids: list[int]) -> None:
        """Some models of `tokenizers` find special tokens in their vocabulary all the same."""
        unknown = getattr(self._backend.model, "unk_token", None)
        for id in self._specials.intersection(ids):
            token = self._token(id)
            if token not in (unknown, "<unk>"):
                raise InvalidRequest(
                    f"the text holds {token!r}, which this model's tokenizer cannot tell from its "
                    "control token; write it differently"
                )


def expect_unicode(text: str) -> None:
    """Raises InvalidRequest for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text must be Unicode, but has {text[error.start]!r} at {error.start}, "
            "which is half of a surrogate pair"
        ) from None


class Bytes(Protocol):
    """What decoding needs of a `Tokenizer`."""

    @property
    def n_stripped_spaces(self) -> int: ...

    def token_bytes(self, id: int) -> bytes: ...


class DecodeStream:
    """Text of a growing sequence, token by token.

    Pieces joined (with `flush`) are what the tokens add to the text of the prompt:
    `decode(prompt + ids)` without the complete characters of `decode(prompt)`. A token that ends
    inside a character gives "" and the one that completes it gives the whole character; bytes that
    can no longer become a character give U+FFFD at once. Special tokens give "".
    """

    def __init__(self, tokenizer: Bytes, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = tokenizer.n_stripped_spaces
        tail: list[bytes] = []
        n_bytes = 0
        for id in reversed(prompt_ids):
            if n_bytes > max(self._strip, MAX_INCOMPLETE):
                break  # what lies further back cannot matter
            tail.append(tokenizer.token_bytes(id))
            n_bytes += len(tail[-1])
        for data in reversed(tail):
            self._decode(data)

    def push(self, id: int) -> str:
        """The text that token `id` completes."""
        return self._decode(self._tokenizer.token_bytes(id))

    def flush(self) -> str:
        """The end of the text: U+FFFD when it ends inside a character, else ""."""
        return self._decoder.decode(b"", final=True)

    def _decode(self, data: bytes) -> str:
        if self._strip and data:
            n_cut = min(self._strip, len(data) - len(data.lstrip(b" ")))
            self._strip = self._strip - n_cut if n_cut == len(data) else 0
            data = data[n_cut:]
        return self._decoder.decode(data)


MAX_INCOMPLETE = 3
"""An unfinished UTF-8 character has at most this many bytes."""


def _without_prefix(cutter: PreTokenizer | None) -> PreTokenizer | None:
    """As it cuts what is not the beginning of a text; None if that is no different."""
    state = b"null" if cutter is None else cutter.__getstate__()
    first, never = b'"prepend_scheme":"first"', b'"prepend_scheme":"never"'
    if first not in state:
        return None
    other = pre_tokenizers.Sequence([])
    other.__setstate__(state.replace(first, never))
    return other


def _special_token(config: JsonObject, key: str) -> str | None:
    """A token's text, written as a string or as an object with `content`."""
    value = config.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise config.error(key, "a token's text, or an object with its content")
    return value
