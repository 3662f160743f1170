"""Binary frames have the documented layout, read here by code independent of the writer's."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from app.ws.frames import ALIGN, Frame
from gpu.inspection.requests import Answer, Array
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.page import decode_frame

ARRAYS: dict[str, Any] = {
    "weights": np.arange(30, dtype=np.float64).reshape(2, 3, 5) / 7,
    "counts": np.array([0, 1, 2**32 - 1], np.int64),
    "one": np.array([0.1], np.float32),
    "none": np.empty((0, 4), np.float32),
    "last": np.array([np.inf, -0.0, np.finfo(np.float32).tiny], np.float32),
}


def frame(info: dict[str, Any], names: tuple[str, ...] = tuple(ARRAYS)) -> bytes:
    arrays = tuple(Array.of(name, np.asarray(ARRAYS[name])) for name in names)
    return Frame(7, "attention_from", Answer(info, arrays), FakeTokenizer()).encode()


def header_of(encoded: bytes) -> tuple[dict[str, Any], int]:
    """Return a frame's header and the offset of its end."""
    (length,) = struct.unpack_from("<I", encoded)
    header: dict[str, Any] = json.loads(encoded[4 : 4 + length])
    return header, 4 + length


def test_arrays_come_back_bit_for_bit() -> None:
    message = decode_frame(frame({"reused": 3}))
    assert {k: v for k, v in message.items() if k != "arrays"} == {
        "type": "answer",
        "request": 7,
        "kind": "attention_from",
        "info": {"reused": 3},
    }
    assert list(message["arrays"]) == list(ARRAYS)
    for name, values in ARRAYS.items():
        expected = np.asarray(values)
        expected = expected.astype(np.uint32 if expected.dtype.kind == "i" else np.float32)
        got = message["arrays"][name]
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("padding", range(24))
def test_arrays_begin_where_a_typed_array_may(padding: int) -> None:
    """Arrays begin at multiples of 8, one after the other without overlap, for any header
    length."""
    encoded = frame({"note": "x" * padding})
    header, end = header_of(encoded)
    assert end % ALIGN == 0
    for array in header["arrays"]:
        assert array["offset"] % ALIGN == 0
        assert 0 <= array["offset"] - end < ALIGN, "only a gap to the next multiple"
        end = array["offset"] + 4 * int(np.prod(array["shape"], dtype=int))
    assert len(encoded) - end < ALIGN


@pytest.mark.parametrize("n_bytes", [9_980, 99_960, 999_940])
def test_offsets_that_need_another_digit_move_the_arrays(n_bytes: int) -> None:
    """A longer number makes the header longer, which may make the number longer again."""
    for more in range(40):
        encoded = frame({"note": "x" * (n_bytes - 400 + 10 * more)})
        header, end = header_of(encoded)
        assert header["arrays"][0]["offset"] == end
        assert decode_frame(encoded)["arrays"]["one"].tolist() == [np.float32(0.1)]


def test_an_answer_without_arrays_is_its_header() -> None:
    encoded = frame({"reused": 0}, ())
    header, end = header_of(encoded)
    assert header["arrays"] == []
    assert len(encoded) == end


def test_texts_of_any_language_are_in_the_header() -> None:
    info = {"name": "é🦊\u2028", "share": 0.1, "missing": None, "list": [1, {"a": True}]}
    assert decode_frame(frame(info))["info"] == info
