"""Reads a tokenizer and encodes with it, in a limited process (`app.limited_child`)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from app.limited_child import forbid_files
from gpu import InvalidRequest, ModelError, TextChunk, TextEncoding, Tokenizer, TokenTable, table_of

MOST_TOKENS_PER_BYTE = 16
FREELY_TOKENS = 1 << 20
"""Tokens of one request accepted at that rate; beyond them, one token per byte."""


class Load(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first request. Answered by `Loaded`."""

    path: str


class Encode(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answered by `Encoded`."""

    chunks: list[TextChunk]
    offsets: bool


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    table: TokenTable


class Encoded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    encodings: list[TextEncoding]


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A tokenizer that cannot be used, or a text that it does not take. The reason is for people,
    and names the file."""

    reason: str


_requests = msgspec.msgpack.Decoder(Load | Encode)
_loaded: list[Tokenizer] = []


def answer(request: bytes) -> bytes:
    """The answer to a `Load` or an `Encode`, or `Refused`; all as msgpack."""
    reply: Loaded | Encoded | Refused
    try:
        match _requests.decode(request):
            case Load(path=path):
                reply = _load(Path(path))
            case Encode(chunks=chunks, offsets=offsets):
                reply = _encode(chunks, offsets)
        return msgspec.msgpack.encode(reply)
    except MemoryError:
        raise
    except (InvalidRequest, ModelError) as error:
        reason = str(error)
    except BaseException as error:  # a panic of `tokenizers` is outside `Exception`
        reason = f"the tokenizer is damaged: {type(error).__name__}: {error}"
    shown = reason.encode("utf-8", "replace").decode()
    return msgspec.msgpack.encode(Refused(shown))


def _load(path: Path) -> Loaded:
    tokenizer = Tokenizer.load(path)
    table = table_of(tokenizer, str(path))
    _loaded.append(tokenizer)
    forbid_files()
    return Loaded(table)


def _encode(chunks: list[TextChunk], offsets: bool) -> Encoded:
    n_bytes = sum(len(chunk.text.encode("utf-8", "replace")) for chunk in chunks)
    most = max(n_bytes, min(MOST_TOKENS_PER_BYTE * n_bytes, FREELY_TOKENS)) + 16 * len(chunks)
    encodings = []
    for encoding in _loaded[0].encode_batch(chunks, offsets):
        most -= len(encoding.ids)
        if most < 0:
            raise InvalidRequest(
                f"the model's tokenizer makes far too many tokens of a text of {n_bytes:,} bytes"
            )
        encodings.append(encoding)
    return Encoded(encodings)
