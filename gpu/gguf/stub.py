"""The outline of a GGUF file that is elsewhere: a file of the same length that holds its header and
nothing of its tensors, so that config, tokenizer and memory can be judged before it is fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpu.errors import ModelError
from gpu.gguf.header import EndsEarly, Header, read_header
from gpu.gguf.names import OF_CONFIG

FIRST_BYTES, MOST_BYTES = 1 << 20, 1 << 27
"""Read at first, and at most: a header holds the tokenizer, a few MB."""
MOST_FACTORS_BYTES = 1 << 16

Fetch = Callable[[int, int], bytes]
"""Of a place in the file and a number of bytes: those bytes."""


def write_outline(path: Path, n_bytes: int, fetch: Fetch) -> None:
    """Write the outline of a file of `n_bytes` to `path`. Where its tensors are, it reads as zeros,
    which take no room on most disks; but for the rotary factors, which belong to the config.
    Raises ModelError for what is not a GGUF file, and what `fetch` raises."""
    data, header = _header(path, n_bytes, fetch)
    with path.open("wb") as file:
        file.write(data[: header.start])
        for factors in (header.infos[name] for name in OF_CONFIG if name in header.infos):
            at = header.start + factors.offset
            if factors.n_bytes <= MOST_FACTORS_BYTES and at + factors.n_bytes <= n_bytes:
                file.seek(at)
                file.write(fetch(at, factors.n_bytes))
        file.truncate(n_bytes)


def _header(path: Path, n_bytes: int, fetch: Fetch) -> tuple[bytes, Header]:
    """Four times as much at every try, until it is whole."""
    data, wanted = b"", FIRST_BYTES
    while True:
        wanted = min(wanted, n_bytes)
        data += fetch(len(data), wanted - len(data))
        try:
            return data, read_header(path, np.frombuffer(data, np.uint8))
        except EndsEarly:
            if wanted == n_bytes:
                raise
        if wanted >= MOST_BYTES:
            raise ModelError(f"{path}: its header has more than {MOST_BYTES:,} bytes")
        wanted = min(4 * wanted, MOST_BYTES)
