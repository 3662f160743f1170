"""Tokenizer: text to token ids and back, from a model folder's `tokenizer.json` and
`tokenizer_config.json`, or from SentencePiece's `tokenizer.model` if the first is missing.

Encoding uses the `tokenizers` library. Decoding is implemented here, byte by byte (see
`gpu.text.token_bytes`), so that streamed text never contains part of a character. The regular
expressions of GGUF's tokenizers are in `gpu.text.pretokenizers`; `gpu.text.segmentation` shows the
merges of a word one by one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from gpu.errors import InvalidRequest, ModelError
from gpu.gguf.file import is_gguf
from gpu.text.decode_stream import DecodeStream
from gpu.text.folder import TokenizerFiles, failure_raises, read_folder
from gpu.text.gguf_tokenizer import read_tokenizer
from gpu.text.segmentation import Segmentation, Segmenter
from gpu.text.token_bytes import TokenBytes
from gpu.text.token_table import TextChunk, TextEncoding

MAX_VOCAB = 1 << 22
"""Most ids; the largest real vocabularies have some hundred thousand."""

MAX_SEGMENTED_CHARS = 100
"""Longest text whose segmentation is shown: some words."""

LONG_TEXT_CHARS = 65_536
"""Length from which a second copy of the backend, made for the first such text, encodes it: short
texts of other threads need not wait for it."""


class Tokenizer:
    """A model's tokenizer; thread-safe.

    special_tokens        texts of the special tokens by their names, such as "pad_token"
    eos_ids               ids of the end-of-sequence token the tokenizer names (see also
                          `ModelConfig.eos_ids`)
    chat_template         Jinja source of the default template; None if there is none
    tool_template         that of the template for conversations with tools; None if it is the same
    prefix                ids that every text begins with
    suffix                ids that an encoder's text ends with; `encode` leaves them out
    vocab_size            greatest id plus one; the model's own may be larger (padding)
    """

    def __init__(self, files: TokenizerFiles) -> None:
        backend, where = files.backend, files.where
        self._backend = backend
        self._where = where
        backend.no_truncation()  # files may still have both from training
        backend.no_padding()
        self.special_tokens = files.special_tokens
        eos_id = None if self.eos_token is None else backend.token_to_id(self.eos_token)
        self.eos_ids: tuple[int, ...] = () if eos_id is None else (eos_id,)
        self.chat_template = files.chat_template
        self.tool_template = files.tool_template
        self.vocab_size = 1 + max(backend.get_vocab().values(), default=-1)
        if self.vocab_size > MAX_VOCAB:
            raise ModelError(
                f"{where}: its greatest token id is {self.vocab_size - 1}; expected at most "
                f"{MAX_VOCAB - 1}"
            )
        added = backend.get_added_tokens_decoder()
        self._specials = frozenset(id for id, token in added.items() if token.special)
        self._added = frozenset(added)
        self.prefix, self.suffix = self._find_added()
        self._pre_tokenizer = backend.pre_tokenizer
        self._post_processor = backend.post_processor
        backend.post_processor = None  # its only remaining effect: it trims spaces from offsets
        self._encoder = _Encoder(backend)
        self._long_encoder: _Encoder | None = None  # see `LONG_TEXT_CHARS`
        self._long_lock = threading.Lock()
        state = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        self._token_bytes = TokenBytes.from_decoder(state, where)
        self._bytes: dict[int, bytes] = {}
        self._segmenter: Segmenter | None = None

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Load from a model folder, a tokenizer.json or tokenizer.model by any name, or a GGUF
        file. ModelError names the faulty file and the fault."""
        folder = Path(folder)
        if is_gguf(folder):
            return cls(read_tokenizer(folder))
        path = folder / "tokenizer.json"
        if folder.is_file():
            folder, path = folder.parent, folder
        return cls(read_folder(folder, path))

    def to_json(self) -> str:
        """Return the tokenizer as the content of a tokenizer.json, wherever it was read from."""
        copy = self._encoder.copy()
        copy.post_processor = self._post_processor
        return str(copy.to_str())

    @property
    def bos_token(self) -> str | None:
        """Text of the beginning-of-sequence token; None if the model has none."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """Text of the end-of-sequence token; None if the model has none."""
        return self.special_tokens.get("eos_token")

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
        """Return the token ids of `text`.

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
        """Return the ids of `encode`, and for each the span of characters of `text` that it
        contains or shares.

        Tokens that share a character overlap; a token without characters (added by `bos`) has an
        empty span.

        inside  `text` follows a special token in a longer text: it gets no "▁" in front if only the
                beginning of a text does
        """
        encoding = self._encode(text, specials, inside)
        prefix = self._missing_prefix(encoding.ids) if bos else ()
        return [*prefix, *encoding.ids], [(0, 0)] * len(prefix) + encoding.offsets

    def encode_batch(
        self, chunks: Sequence[TextChunk], offsets: bool = False
    ) -> list[TextEncoding]:
        """Encode several texts as `encode_with_offsets` does without `bos`."""
        found = []
        for text, specials, inside in chunks:
            encoding = self._encode(text, specials, inside)
            found.append(TextEncoding(encoding.ids, encoding.offsets if offsets else []))
        return found

    def segment(self, text: str) -> Segmentation:
        """Return how the words of a plain text become the ids of `encode`, step by step.

        Raises InvalidRequest if `text` has more than `MAX_SEGMENTED_CHARS`, or an added token.
        """
        if len(text) > MAX_SEGMENTED_CHARS:
            raise InvalidRequest(
                f"expected at most {MAX_SEGMENTED_CHARS} characters, but got {len(text)}", "text"
            )
        ids = self.encode(text, bos=False, specials=False)
        if self._segmenter is None:
            self._segmenter = Segmenter(json.loads(self.to_json())["model"])
        words = [self._segmenter.steps(word) for word in self._split_words(text)]
        if [id for word in words for id in word.ids] != ids:
            raise InvalidRequest(
                "this text has a token that was added to the vocabulary, which no merge makes; use "
                "another text",
                "text",
            )
        return Segmentation(self._segmenter.algorithm, words)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a whole sequence, without special tokens; invalid bytes become
        U+FFFD."""
        stream = DecodeStream(self, ())
        return "".join([stream.push(id) for id in ids]) + stream.flush()

    def piece(self, id: int) -> str:
        """Return the text of one token for display: special tokens literally, U+FFFD for part of a
        character, "<unused 512>" for an id of the model that the tokenizer does not have."""
        token = self._token(id)
        if token is None:
            return f"<unused {id}>"
        if id in self._specials:
            return token
        return self.token_bytes(id).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """Return the UTF-8 bytes that the token adds to a text; none for special and unknown
        ids."""
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
        """Return whether the token is a control token, which is never part of the text."""
        return id in self._specials

    @property
    def n_stripped_spaces(self) -> int:
        """Number of spaces removed from the beginning of a decoded text (SentencePiece adds
        one)."""
        return self._token_bytes.strip

    def _encode(self, text: str, specials: bool, inside: bool = False) -> tokenizers.Encoding:
        expect_unicode(text)
        failure = InvalidRequest(
            f"{self._where}: the tokenizer fails on this text; it may be damaged: download it again"
        )
        with failure_raises(failure):
            encoding = self._encoder_for(text).encode(text, specials, inside)
        if not specials:
            self._check_plain(encoding.ids)
        return encoding

    def _encoder_for(self, text: str) -> _Encoder:
        if len(text) < LONG_TEXT_CHARS:
            return self._encoder
        with self._long_lock:
            if self._long_encoder is None:
                self._long_encoder = _Encoder(self._encoder.copy())
            return self._long_encoder

    def _split_words(self, text: str) -> list[str]:
        """Return the words of a text as the model of the tokenizer gets them."""
        normalizer = self._backend.normalizer
        normal = text if normalizer is None else normalizer.normalize_str(text)
        if self._pre_tokenizer is None:
            return [normal] if normal else []
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normal)]

    def _missing_prefix(self, ids: list[int]) -> tuple[int, ...]:
        """Return the ids to add before `ids` so that they begin with `prefix`."""
        return () if tuple(ids[: len(self.prefix)]) == self.prefix else self.prefix

    def _token(self, id: int) -> str | None:
        return self._backend.id_to_token(id) if 0 <= id < self.vocab_size else None

    def _find_added(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids that begin and end every text, by the post-processor."""
        added = self._backend.get_added_tokens_decoder()
        for text in ("a", *(added[id].content for id in sorted(added, reverse=True))):
            with failure_raises(ModelError(f"{self._where}: the tokenizer is damaged")):
                plain = self._backend.encode(text, add_special_tokens=False).ids
                whole = self._backend.encode(text).ids
            for n in range(len(whole) - len(plain) + 1) if plain else ():
                if whole[n : n + len(plain)] == plain:
                    return tuple(whole[:n]), tuple(whole[n + len(plain) :])
        return (), ()

    def _check_plain(self, ids: list[int]) -> None:
        """Raise InvalidRequest for special tokens in plain text: some models of `tokenizers` match
        them even when told not to."""
        unknown = getattr(self._backend.model, "unk_token", None)
        for id in self._specials.intersection(ids):
            token = self._token(id)
            if token not in (unknown, "<unk>"):
                raise InvalidRequest(
                    f"the text contains {token!r}, which this model's tokenizer cannot distinguish "
                    "from its control token; write it differently"
                )


class _Encoder:
    """Backend that encodes one text at a time: how it treats special tokens and the beginning of a
    text are settings of the whole backend."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._pre_tokenizer = backend.pre_tokenizer
        self._pre_tokenizer_inside = _without_prefix(backend.pre_tokenizer)

    def copy(self) -> tokenizers.Tokenizer:
        """Return a copy of the backend, with the settings for the beginning of a text."""
        with self._lock:
            copy = tokenizers.Tokenizer.from_str(self._backend.to_str())
        if self._pre_tokenizer is not None:
            copy.pre_tokenizer = self._pre_tokenizer
        return copy

    def encode(self, text: str, specials: bool, inside: bool) -> tokenizers.Encoding:
        """Encode a text without added tokens. `specials`, `inside`: see
        `Tokenizer.encode_with_offsets`."""
        with self._lock:
            self._backend.encode_special_tokens = not specials
            if self._pre_tokenizer_inside is not None:
                self._backend.pre_tokenizer = (
                    self._pre_tokenizer_inside if inside else self._pre_tokenizer
                )
            # `encode` would keep all other threads waiting meanwhile.
            (encoding,) = self._backend.encode_batch([text], add_special_tokens=False)
        return encoding


def expect_unicode(text: str) -> None:
    """Raise InvalidRequest for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text must be Unicode, but has {text[error.start]!r} at {error.start}, "
            "which is half of a surrogate pair"
        ) from None


def _without_prefix(pre_tokenizer: PreTokenizer | None) -> PreTokenizer | None:
    """Return the pre-tokenizer for text that is not at the beginning; None if it is the same."""
    state = b"null" if pre_tokenizer is None else pre_tokenizer.__getstate__()
    first, never = b'"prepend_scheme":"first"', b'"prepend_scheme":"never"'
    if first not in state:
        return None
    other = pre_tokenizers.Sequence([])
    other.__setstate__(state.replace(first, never))
    return other
