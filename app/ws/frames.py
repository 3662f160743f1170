"""Answers about a run as binary WebSocket frames: numbers that the page reads without a copy.

    u32 little-endian   bytes of the header
    header              JSON, spaces at its end: {type: "answer", request, kind, info, arrays}
    arrays              little-endian, in the order of the header's `arrays`

Each of the header's `arrays` is {name, dtype, shape, offset}. `offset` counts bytes from the
frame's start and is a multiple of 8; between arrays lie zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from app.engine_client import Tokenizer
from app.prompt.token_text import with_token_text
from gpu.inspection.requests import Answer

ALIGN = 8
"""A browser's typed array must begin at a multiple of its element's size, which is 8 at most."""
LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """An answer on its way to the page. `kind` is the question's."""

    request: int
    kind: str
    answer: Answer
    tokenizer: Tokenizer

    def encode(self) -> bytes:
        """The whole frame; the arrays are copied once. What takes long is done here, by whom the
        page's other messages wait for anyway."""
        info = with_token_text(self.answer, self.tokenizer).info
        start = 0
        while True:  # the offsets' digits are part of the header that the offsets come after
            header = msgspec.json.encode(self._header(info, start))
            needed = _aligned(LENGTH_BYTES + len(header))
            if needed <= start:
                break
            start = needed
        length = start - LENGTH_BYTES
        parts = [length.to_bytes(LENGTH_BYTES, "little"), header.ljust(length)]
        for array in self.answer.arrays:
            parts += [array.data, bytes(-len(array.data) % ALIGN)]
        return b"".join(parts)

    def _header(self, info: dict[str, Any], start: int) -> dict[str, Any]:
        arrays = []
        for array in self.answer.arrays:
            arrays.append(
                {"name": array.name, "dtype": array.dtype, "shape": array.shape, "offset": start}
            )
            start += _aligned(len(array.data))
        return {
            "type": "answer",
            "request": self.request,
            "kind": self.kind,
            "info": info,
            "arrays": arrays,
        }


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGN) * ALIGN
