"""Reading of, encoding with and writing of a tokenizer, in a limited process
(`app.processes.limited_child`)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from app.processes.limited_child import forbid_files
from gpu import (
    InvalidRequest,
    ModelError,
    Segmentation,
    TextChunk,
    TextEncoding,
    Tokenizer,
    TokenTable,
    token_table,
)

MAX_TOKENS_PER_BYTE = 16
UNCHECKED_TOKENS = 1 << 20
"""Tokens of one request up to which `MAX_TOKENS_PER_BYTE` applies; above, one token per byte."""


class Load(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Request to read a tokenizer; the first one. Answered by `Loaded`."""

    path: str


class Encode(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Request to encode texts. Answered by `Encoded`."""

    chunks: list[TextChunk]
    offsets: bool


class Segment(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Request to segment the words of a text step by step. Answered by `Segmented`."""

    text: str


class ToJson(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Request for the content of a tokenizer.json. Answered by `Json`."""


class Json(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answer to `ToJson`."""

    text: str


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answer to `Load`: the constant data of the tokenizer."""

    table: TokenTable


class Encoded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answer to `Encode`, one encoding per chunk."""

    encodings: list[TextEncoding]


class Segmented(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answer to `Segment`."""

    segmentation: Segmentation


class TokenizerFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The tokenizer cannot be used, or cannot encode the text. The reason names the file."""

    reason: str


_requests = msgspec.msgpack.Decoder(Load | Encode | Segment | ToJson)
_loaded: list[Tokenizer] = []


def answer(request: bytes) -> bytes:
    """Answer a request, in msgpack."""
    reply: Loaded | Encoded | Segmented | Json | TokenizerFailed
    try:
        match _requests.decode(request):
            case Load(path=path):
                reply = _load(Path(path))
            case Encode(chunks=chunks, offsets=offsets):
                reply = _encode(chunks, offsets)
            case Segment(text=text):
                reply = Segmented(_loaded[0].segment(text))
            case ToJson():
                reply = Json(_loaded[0].to_json())
        return msgspec.msgpack.encode(reply)
    except MemoryError:
        raise
    except (InvalidRequest, ModelError) as error:
        reason = str(error)
    except BaseException as error:  # panics of `tokenizers` do not derive from Exception
        reason = f"the tokenizer is damaged: {type(error).__name__}: {error}"
    shown = reason.encode("utf-8", "replace").decode()
    return msgspec.msgpack.encode(TokenizerFailed(shown))


def _load(path: Path) -> Loaded:
    tokenizer = Tokenizer.load(path)
    table = token_table(tokenizer, str(path))
    _loaded.append(tokenizer)
    forbid_files()
    return Loaded(table)


def _encode(chunks: list[TextChunk], offsets: bool) -> Encoded:
    n_bytes = sum(len(chunk.text.encode("utf-8", "replace")) for chunk in chunks)
    n_left = max(n_bytes, min(MAX_TOKENS_PER_BYTE * n_bytes, UNCHECKED_TOKENS)) + 16 * len(chunks)
    encodings = []
    for encoding in _loaded[0].encode_batch(chunks, offsets):
        n_left -= len(encoding.ids)
        if n_left < 0:
            raise InvalidRequest(
                f"the model's tokenizer produces far too many tokens for {n_bytes:,} bytes of "
                "text; choose another model"
            )
        encodings.append(encoding)
    return Encoded(encodings)
