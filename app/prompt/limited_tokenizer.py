"""Tokenizers of models other than the bundled ones, run in a limited process.

A tokenizer.json can turn one character into a billion, take minutes for a line, or crash the
process that reads it. So it is read, and encodes, in a process with limits on time, memory and
output. Its constant data, such as the bytes of each token, is read once (`gpu.TokenTable`), so
decoding needs no process.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from app import tale
from app.engine_client import Tokenizer
from app.processes.limited_pool import LimitedPool
from app.processes.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from app.prompt.tokenizer_process import (
    Encode,
    Encoded,
    Json,
    Load,
    Loaded,
    Segment,
    Segmented,
    ToJson,
    TokenizerFailed,
)
from gpu import (
    LONG_TEXT_CHARS,
    DecodeStream,
    InvalidRequest,
    ModelError,
    Segmentation,
    TextChunk,
    TextEncoding,
    TokenTable,
    expect_unicode,
)
from gpu import Tokenizer as ModelTokenizer

LIMITS = ProcessLimits(memory_bytes=2048 << 20, reply_bytes=128 << 20)
LOAD_SECONDS = 20.0
ENCODE_SECONDS = 5.0
MIN_CHARS_PER_SECOND = 100_000
"""Speed from which the time limit of long texts follows; real tokenizers do millions."""
DAMAGED = "the model's tokenizer is damaged"
BUSY = "too many texts are being encoded"
MAX_CACHED_CHARS = 2000
MAX_CACHED_TEXTS = 256
"""Limits of the cache of short texts: an intervention encodes the same ones at every change."""

EncodingCache = dict[tuple[TextChunk, bool], TextEncoding]
"""(chunk, with offsets) to its encoding."""

_decoder = msgspec.msgpack.Decoder(Loaded | Encoded | Segmented | Json | TokenizerFailed)


class TokenizerLimitError(ModelError):
    """The tokenizer cannot be read within the limits."""


class TextLimitError(InvalidRequest):
    """The tokenizer cannot encode the text within the limits."""


def load_tokenizer(path: Path, later: Path | None = None) -> Tokenizer:
    """Load the tokenizer of a model's folder or file, see `gpu.Tokenizer.load`.

    That of a bundled model runs in this process, any other in its own. `later` is the path from
    which to read it again if `path` is temporary. Raises ModelError.
    """
    folder = path.parent if path.name == "tokenizer.json" else path
    if tale.name_of(folder):
        return ModelTokenizer.load(path)
    return LimitedTokenizer.load(path, later)


def tokenizer_json(path: Path) -> str:
    """Return the tokenizer of a model's folder or file, such as a GGUF file, as the content of a
    tokenizer.json. Raises ModelError."""
    process, _ = _start(path.absolute())
    try:
        reply = _decoder.decode(process.call(msgspec.msgpack.encode(ToJson()), LOAD_SECONDS))
    except LimitExceeded as error:
        raise TokenizerLimitError(
            f"{path}: its tokenizer cannot be exported: writing it {error}"
        ) from None
    finally:
        process.end()
    if not isinstance(reply, Json):
        raise ModelError(getattr(reply, "reason", f"{path}: its tokenizer cannot be exported"))
    return reply.text


class LimitedTokenizer:
    """Tokenizer in its own process, with the methods of `gpu.Tokenizer`. Thread-safe. Texts from
    `LONG_TEXT_CHARS` characters have another process, so that short ones need not wait for them.

    It can be pickled; the copy starts another process when it first encodes.
    """

    def __init__(
        self, path: Path, table: TokenTable, process: LimitedProcess | None = None
    ) -> None:
        self._path = path
        self._table = table
        self.special_tokens = table.special_tokens
        self.eos_ids = table.eos_ids
        self.chat_template = table.chat_template
        self.tool_template = table.tool_template
        self.prefix, self.suffix = table.prefix, table.suffix
        self.vocab_size = len(table.tokens)
        start = functools.partial(_restart, path, table)
        self._pool = LimitedPool(start, 1, BUSY)
        self._long_pool = LimitedPool(start, 1, BUSY)
        if process is not None:
            self._pool.add(process)
        self._lock = threading.Lock()
        self._cache: EncodingCache = {}

    @classmethod
    def load(cls, path: Path, later: Path | None = None) -> LimitedTokenizer:
        """Start a process and read the tokenizer there. `later`: see `load_tokenizer`."""
        process, table = _start(path.absolute())
        return cls((later or path).absolute(), table, process)

    def __reduce__(
        self,
    ) -> tuple[Callable[..., LimitedTokenizer], tuple[Path, TokenTable, EncodingCache]]:
        with self._lock:
            return _unpickle, (self._path, self._table, dict(self._cache))

    def close(self) -> None:
        """End the processes. Encoding another text starts a new one."""
        self._pool.close()
        self._long_pool.close()

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
        ids = self.encode_batch([TextChunk(text, specials)])[0].ids
        return [*self._missing_prefix(ids), *ids] if bos else ids

    def encode_with_offsets(
        self, text: str, bos: bool = True, specials: bool = True, inside: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        ids, offsets = self.encode_batch([TextChunk(text, specials, inside)], offsets=True)[0]
        prefix = self._missing_prefix(ids) if bos else ()
        return [*prefix, *ids], [(0, 0)] * len(prefix) + offsets

    def encode_batch(
        self, chunks: Sequence[TextChunk], offsets: bool = False
    ) -> list[TextEncoding]:
        """Encode several texts, see `gpu.Tokenizer.encode_batch`.

        Raises TextLimitError above the limits, InvalidRequest for texts that cannot be encoded,
        and QueueFull if too many texts wait.
        """
        with self._lock:
            cached = {chunk: self._cache.get((chunk, offsets)) for chunk in chunks}
        new = [chunk for chunk, encoding in cached.items() if encoding is None]
        encodings = dict(zip(new, self._encode_new(new, offsets), strict=True)) if new else {}
        self._add_to_cache(encodings, offsets)
        known = cached | encodings
        results = [known[chunk] for chunk in chunks]
        return [TextEncoding(list(r.ids), list(r.offsets)) for r in results if r is not None]

    def segment(self, text: str) -> Segmentation:
        """Segment the words of a text, see `gpu.Tokenizer.segment`. Raises as `encode_batch` and
        that."""
        expect_unicode(text)
        # The first one reads all merges, so it may take as long as loading.
        reply = self._call(self._pool, Segment(text), LOAD_SECONDS)
        if not isinstance(reply, Segmented):
            raise InvalidRequest(getattr(reply, "reason", DAMAGED))
        self._check_ids(reply.segmentation.named_ids)
        return reply.segmentation

    def decode(self, ids: Sequence[int]) -> str:
        stream = DecodeStream(self, ())
        return "".join([stream.push(id) for id in ids]) + stream.flush()

    def piece(self, id: int) -> str:
        return self._table.piece(id)

    def token_bytes(self, id: int) -> bytes:
        return self._table.token_bytes(id)

    def is_special(self, id: int) -> bool:
        return self._table.is_special(id)

    @property
    def n_stripped_spaces(self) -> int:
        return self._table.n_stripped_spaces

    def _missing_prefix(self, ids: list[int]) -> tuple[int, ...]:
        return () if tuple(ids[: len(self.prefix)]) == self.prefix else self.prefix

    def _encode_new(self, chunks: list[TextChunk], offsets: bool) -> list[TextEncoding]:
        """Encode `chunks` in the limited process."""
        for chunk in chunks:
            expect_unicode(chunk.text)
        n_chars = sum(len(chunk.text) for chunk in chunks)
        pool = self._pool if n_chars < LONG_TEXT_CHARS else self._long_pool
        seconds = ENCODE_SECONDS + n_chars / MIN_CHARS_PER_SECOND
        reply = self._call(pool, Encode(chunks, offsets), seconds)
        if not isinstance(reply, Encoded):
            raise InvalidRequest(getattr(reply, "reason", DAMAGED))
        for ids, _ in reply.encodings:
            self._check_ids(ids)
        return reply.encodings

    def _call(self, pool: LimitedPool, request: Encode | Segment, seconds: float) -> object:
        """Return the reply of a limited process. Raises TextLimitError and InvalidRequest."""
        try:
            return _decoder.decode(pool.call(msgspec.msgpack.encode(request), seconds))
        except LimitExceeded as error:
            raise TextLimitError(
                f"the model's tokenizer cannot encode this text: it {error}"
            ) from None
        except ModelError as error:  # its file has changed or is gone
            raise InvalidRequest(f"the model's tokenizer cannot be read again: {error}") from None

    def _check_ids(self, ids: Sequence[int]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise InvalidRequest(
                f"{DAMAGED}: expected ids in [0, {self.vocab_size}), but got {min(ids)} to "
                f"{max(ids)}"
            )

    def _add_to_cache(self, encodings: dict[TextChunk, TextEncoding], offsets: bool) -> None:
        with self._lock:
            for chunk, encoding in encodings.items():
                if len(chunk.text) <= MAX_CACHED_CHARS and len(encoding.ids) <= MAX_CACHED_CHARS:
                    self._cache[chunk, offsets] = encoding
            while len(self._cache) > MAX_CACHED_TEXTS:
                del self._cache[next(iter(self._cache))]


def _start(path: Path) -> tuple[LimitedProcess, TokenTable]:
    """Start a process and read the tokenizer at `path` there. Raises ModelError."""
    load = msgspec.msgpack.encode(Load(str(path)))
    try:
        process = LimitedProcess.start("app.prompt.tokenizer_process", LIMITS)
        reply = _decoder.decode(process.call(load, LOAD_SECONDS))
    except LimitExceeded as error:
        raise TokenizerLimitError(
            f"{path}: its tokenizer cannot be used: reading it {error}"
        ) from None
    if not isinstance(reply, Loaded):
        process.end()
        raise ModelError(getattr(reply, "reason", f"{path}: its tokenizer cannot be used"))
    return process, reply.table


def _restart(path: Path, table: TokenTable) -> LimitedProcess:
    """Start another process for a tokenizer whose table is known."""
    process, new_table = _start(path)
    if new_table != table:
        process.end()
        raise ModelError(
            f"{path}: its tokenizer has changed since it was loaded; load the model again"
        )
    return process


def _unpickle(path: Path, table: TokenTable, cache: EncodingCache) -> LimitedTokenizer:
    """Return the unpickled tokenizer, which has no process yet."""
    tokenizer = LimitedTokenizer(path, table)
    tokenizer._cache |= cache
    return tokenizer
