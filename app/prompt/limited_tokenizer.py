"""The tokenizers of models that are not ours.

A tokenizer.json is a program of a kind: it can turn one character into a billion, take minutes for
a line, or end the process that reads it. So it is read, and encodes, in a process with limits of
time, memory and output. What is fixed about it, the bytes of each token among that, is fetched once
(`gpu.TokenTable`); decoding needs no process then.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from app import tale
from app.engines import Tokenizer
from app.limited_pool import LimitedPool
from app.limited_process import LimitedProcess, Limits, OverLimit
from app.tokenizer_process import Encode, Encoded, Load, Loaded, Refused
from gpu import (
    DecodeStream,
    InvalidRequest,
    ModelError,
    TextChunk,
    TextEncoding,
    TokenTable,
    expect_unicode,
)
from gpu import Tokenizer as ModelTokenizer

LIMITS = Limits(memory_bytes=2048 << 20, reply_bytes=128 << 20)
START_SECONDS = 20.0
LOAD_SECONDS = 20.0
ENCODE_SECONDS = 5.0
SLOWEST_CHARS = 100_000
"""Characters per second for which there is more time; ordinary is some millions."""
BUSY = "too many texts are being encoded"
KNOWN_CHARS = 2000
MOST_KNOWN = 256
"""Short texts whose ids are kept: those of interventions come again with every move of a slider."""

Known = dict[tuple[TextChunk, bool], TextEncoding]
"""Chunks, and whether with offsets."""

_answers = msgspec.msgpack.Decoder(Loaded | Encoded | Refused)


class TokenizerOverLimitError(ModelError):
    """A tokenizer that cannot be read within the limits."""


class TextOverLimitError(InvalidRequest):
    """A text that the tokenizer cannot encode within the limits."""


def load_tokenizer(path: Path, later: Path | None = None) -> Tokenizer:
    """The tokenizer of a model's folder or file, as `gpu.Tokenizer.load` has it; the bundled
    model's in this process, any other in one of its own. `later`: where the file will be then,
    should it have to be read again. Raises ModelError."""
    bundled = tale.model_dir()
    if path.resolve() in (bundled, bundled / "tokenizer.json"):
        return ModelTokenizer.load(path)
    return LimitedTokenizer.load(path, later)


class LimitedTokenizer:
    """A tokenizer in a process of its own, with the methods of `gpu.Tokenizer`. May be used by
    several threads, and be sent to another process, which starts its own when it encodes."""

    def __init__(
        self, path: Path, table: TokenTable, process: LimitedProcess | None = None
    ) -> None:
        self._path = path
        self._table = table
        self.bos_token = table.bos_token
        self.eos_token = table.eos_token
        self.eos_ids = table.eos_ids
        self.chat_template = table.chat_template
        self.prefix = table.prefix
        self.vocab_size = len(table.tokens)
        self._pool = LimitedPool(functools.partial(_started_again, path, table), 1, BUSY)
        if process is not None:
            self._pool.add(process)
        self._lock = threading.Lock()
        self._known: Known = {}

    @classmethod
    def load(cls, path: Path, later: Path | None = None) -> LimitedTokenizer:
        """Start a process and read the tokenizer there; `later` as for `load_tokenizer`."""
        process, table = _started(path.absolute())
        return cls((later or path).absolute(), table, process)

    def __reduce__(self) -> tuple[Callable[..., LimitedTokenizer], tuple[Path, TokenTable, Known]]:
        with self._lock:
            return _sent, (self._path, self._table, dict(self._known))

    def close(self) -> None:
        """End the process. A text that comes later starts another."""
        self._pool.close()

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
        """Encode several texts, as `gpu.Tokenizer.encode_batch` does. Raises InvalidRequest for
        what the tokenizer cannot encode within the limits, and QueueFull while too many texts
        wait."""
        with self._lock:
            found = {chunk: self._known.get((chunk, offsets)) for chunk in chunks}
        new = [chunk for chunk, encoding in found.items() if encoding is None]
        encodings = dict(zip(new, self._asked(new, offsets), strict=True)) if new else {}
        self._remember(encodings, offsets)
        whole = found | encodings
        copies = [whole[chunk] for chunk in chunks]
        return [TextEncoding(list(c.ids), list(c.offsets)) for c in copies if c is not None]

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

    def _asked(self, chunks: list[TextChunk], offsets: bool) -> list[TextEncoding]:
        """Encode `chunks` in the limited process."""
        for chunk in chunks:
            expect_unicode(chunk.text)
        seconds = ENCODE_SECONDS + sum(len(chunk.text) for chunk in chunks) / SLOWEST_CHARS
        request = msgspec.msgpack.encode(Encode(chunks, offsets))
        try:
            answer = _answers.decode(self._pool.call(request, seconds))
        except OverLimit as error:
            raise TextOverLimitError(
                f"the model's tokenizer cannot encode this text: it {error}"
            ) from None
        except ModelError as error:  # its file is another one by now
            raise InvalidRequest(f"the model's tokenizer cannot be read again: {error}") from None
        if not isinstance(answer, Encoded):
            raise InvalidRequest(getattr(answer, "reason", "the model's tokenizer is damaged"))
        for ids, _ in answer.encodings:
            if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
                raise InvalidRequest("the model's tokenizer makes ids that it has no token for")
        return answer.encodings

    def _remember(self, encodings: dict[TextChunk, TextEncoding], offsets: bool) -> None:
        with self._lock:
            for chunk, encoding in encodings.items():
                if len(chunk.text) <= KNOWN_CHARS and len(encoding.ids) <= KNOWN_CHARS:
                    self._known[chunk, offsets] = encoding
            while len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]


def _started(path: Path) -> tuple[LimitedProcess, TokenTable]:
    """A process that has read the tokenizer at `path`. Raises ModelError."""
    process = LimitedProcess("app.tokenizer_process", LIMITS)
    load = msgspec.msgpack.encode(Load(str(path)))
    try:
        process.call(b"", START_SECONDS)
        answer = _answers.decode(process.call(load, LOAD_SECONDS))
    except OverLimit as error:
        raise TokenizerOverLimitError(
            f"{path}: its tokenizer cannot be used: reading it {error}"
        ) from None
    if not isinstance(answer, Loaded):
        process.end()
        raise ModelError(getattr(answer, "reason", f"{path}: its tokenizer cannot be used"))
    return process, answer.table


def _started_again(path: Path, table: TokenTable) -> LimitedProcess:
    """Another process for a tokenizer that was read before."""
    process, found = _started(path)
    if found != table:
        process.end()
        raise ModelError(f"{path}: its tokenizer has changed; load the model again")
    return process


def _sent(path: Path, table: TokenTable, known: Known) -> LimitedTokenizer:
    """In the process that one is sent to, without a process yet."""
    tokenizer = LimitedTokenizer(path, table)
    tokenizer._known |= known
    return tokenizer
