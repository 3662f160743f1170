"""Reader of `tokenizer.model`, SentencePiece's file format: one protobuf message, `ModelProto`.

Only the fields that affect tokenization are read; field numbers are those of
sentencepiece_model.proto. The file is untrusted: every length is checked against the remaining
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from gpu.errors import ModelError
from gpu.text.sentence_piece import BPE, UNIGRAM, SentencePieces

MAX_BYTES = 64 << 20
"""Gemma 3's, the largest known, has 5 MB."""
MAX_PIECES = 1 << 21
EMPTY = memoryview(b"")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf; groups are not used by this message."""
KINDS = {1: UNIGRAM, 2: BPE, 3: "word", 4: "char"}

Value = int | memoryview


class _Corrupt(Exception):
    pass


def read_model(path: Path) -> SentencePieces:
    """Return the pieces and settings of the file. Raises ModelError."""
    try:
        n_bytes = path.stat().st_size
        if n_bytes > MAX_BYTES:
            raise ModelError(f"{path}: has {n_bytes} bytes; expected at most {MAX_BYTES}")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    if data[:1] != b"\n":
        raise ModelError(
            f"{path}: not a SentencePiece model; expected its first field to be a piece (tiktoken "
            "uses the same file name; such a model needs its tokenizer.json)"
        )
    try:
        return _model(memoryview(data))
    except (_Corrupt, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not a usable SentencePiece model: {error}") from None


def _model(data: memoryview) -> SentencePieces:
    texts: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            texts.append(str(_bytes(piece.get(1, EMPTY)), "utf-8"))
            if not texts[-1]:
                raise _Corrupt(f"piece {len(texts) - 1} has no text")
            scores.append(_float(piece.get(2, 0)))
            types.append(_int(piece.get(3, 1)))
            if len(texts) > MAX_PIECES:
                raise _Corrupt(f"more than {MAX_PIECES} pieces")
        elif number in (2, 3):
            (trainer if number == 2 else normalizer).update(_fields(_bytes(value)))
    return SentencePieces(
        texts=texts,
        scores=scores,
        types=types,
        kind=KINDS.get(_int(trainer.get(3, 1)), "unknown"),
        byte_fallback=bool(_int(trainer.get(35, 0))),
        space_after=bool(_int(trainer.get(24, 0))),
        charsmap=bytes(_bytes(normalizer.get(2, EMPTY))),
        add_prefix=bool(_int(normalizer.get(3, 1))),
        join_spaces=bool(_int(normalizer.get(4, 1))),
        escape_spaces=bool(_int(normalizer.get(5, 1))),
        bos_id=_int(trainer.get(41, 1)),
        eos_id=_int(trainer.get(42, 2)),
    )


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of every field of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == BYTES:
            n_bytes, at = _varint(data, at)
        elif wire in (FIXED32, FIXED64):
            n_bytes = 4 if wire == FIXED32 else 8
        else:
            raise _Corrupt(f"field {number} has the unknown wire type {wire}")
        if number == 0 or n_bytes > len(data) - at:
            raise _Corrupt(f"field {number} is cut off")
        yield number, data[at : at + n_bytes]
        at += n_bytes


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return an integer, stored seven bits per byte, lowest first, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _Corrupt("it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Corrupt("a number has more than ten bytes")


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise _Corrupt(f"expected bytes, but got the number {value}")
    return value


def _int(value: Value) -> int:
    if not isinstance(value, int):
        raise _Corrupt(f"expected a number, but got {len(value)} bytes")
    return value - (1 << 64) if value >> 63 else value


def _float(value: Value) -> float:
    if isinstance(value, int):
        if value:
            raise _Corrupt(f"expected a float, but got the number {value}")
        return 0.0
    if len(value) != 4:
        raise _Corrupt(f"expected a float, but got {len(value)} bytes")
    return float(struct.unpack("<f", value)[0])
