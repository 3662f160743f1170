"""Stub of a remote GGUF file: a sparse file of the same length with its header but without its
tensors' bytes, so that config, tokenizer and memory can be checked before the download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpu.errors import ModelError
from gpu.gguf.header import Header, TruncatedHeader, read_header
from gpu.gguf.names import ROPE_FACTOR_TENSORS

FIRST_BYTES, MAX_BYTES = 1 << 20, 1 << 27
"""Bytes read at first, and at most: a header holds the tokenizer, a few MB."""
MAX_FACTORS_BYTES = 1 << 16

FetchRange = Callable[[int, int], bytes]
"""Returns a range of the remote file, given its start and length."""


def write_stub(path: Path, n_bytes: int, fetch: FetchRange) -> None:
    """Write the stub of a file of `n_bytes` to `path`.

    Tensors read as zeros, which take no space on most disks, except the rotary factors, which
    belong to the config. Raises ModelError for a file that is not GGUF, and what `fetch` raises.
    """
    data, header = _header(path, n_bytes, fetch)
    with path.open("wb") as file:
        file.write(data[: header.start])
        for factors in (header.infos[name] for name in ROPE_FACTOR_TENSORS if name in header.infos):
            at = header.start + factors.offset
            if factors.n_bytes <= MAX_FACTORS_BYTES and at + factors.n_bytes <= n_bytes:
                file.seek(at)
                file.write(fetch(at, factors.n_bytes))
        file.truncate(n_bytes)


def _header(path: Path, n_bytes: int, fetch: FetchRange) -> tuple[bytes, Header]:
    """Fetch the beginning of the file, four times as much at every try, until the header is
    complete."""
    data, wanted = b"", FIRST_BYTES
    while True:
        wanted = min(wanted, n_bytes)
        data += fetch(len(data), wanted - len(data))
        try:
            return data, read_header(path, np.frombuffer(data, np.uint8))
        except TruncatedHeader:
            if wanted == n_bytes:
                raise
        if wanted >= MAX_BYTES:
            raise ModelError(
                f"{path}: its header has more than {MAX_BYTES:,} bytes; expected a few MB"
            )
        wanted = min(4 * wanted, MAX_BYTES)
