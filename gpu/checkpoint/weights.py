"""Checkpoint matrices on the device: packed, padded, sharded.

A matrix is stored row by row, each row padded with zeros to whole blocks of 32 weights, packed as
`gpu.checkpoint.packing` says. What exceeds the largest binding of the device is cut into shards of
whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import BLOCK, FORMATS, pack, row_words
from gpu.checkpoint.reader import WeightSource
from gpu.config import ModelConfig
from gpu.errors import DeviceError, ModelError
from gpu.webgpu.buffers import Memory, Tensor, padded

UPLOAD_ROWS_BYTES = 16 << 20
"""About how much of a matrix is on the host at a time while loading."""

Rows = Callable[[slice], npt.NDArray[Any]]
"""Gives rows of a matrix as float32, or float16 where that is how they are stored."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows `first` … `first + n_rows - 1` of a matrix."""

    tensor: Tensor
    first: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of `n` outputs × `k` inputs. `sources`: the checkpoint tensors it was made of."""

    name: str
    n: int
    k: int
    dtype: str
    shards: tuple[Shard, ...]
    sources: tuple[str, ...]

    @property
    def blocks(self) -> int:
        """Blocks of 32 weights in a row."""
        return padded(self.k) // BLOCK

    @property
    def row_loads(self) -> int:
        """Loads of 16 bytes that hold the weights of a row."""
        return self.blocks * FORMATS[self.dtype].block_words // 4

    @property
    def n_bytes(self) -> int:
        return sum(shard.tensor.n_bytes for shard in self.shards)


class WeightLoader:
    """Reads tensors of one checkpoint onto the device, checking shapes.

    `dtype` is the storage type of matrices; vectors (norm gains, biases) are always float32.
    `on_bytes` is told how many bytes of the checkpoint were just read.
    """

    def __init__(
        self,
        checkpoint: WeightSource,
        memory: Memory,
        dtype: str,
        on_bytes: Callable[[int], None] = lambda n: None,
    ) -> None:
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        self.checkpoint = checkpoint
        self.memory = memory
        self.dtype = dtype
        self._on_bytes = on_bytes

    def matrix(self, name: str, source: str, n: int, k: int) -> Matrix:
        """One checkpoint tensor (n, k)."""
        self._expect(source, (n, k))
        return self._upload(name, n, k, (source,), lambda rows: self._rows(source, rows))

    def vocabulary(self, name: str, source: str, n: int, k: int) -> Matrix:
        """An embedding or output matrix: as `matrix`, but 8 bits where others have 4, because
        errors here are not averaged out by later layers."""
        self._expect(source, (n, k))
        dtype = FORMATS[self.dtype].vocabulary
        return self._upload(
            name, n, k, (source,), lambda rows: self._rows(source, rows), dtype=dtype
        )

    def heads(self, name: str, q: str, k: str, v: str, config: ModelConfig) -> Matrix:
        """The projections to queries, keys and values, one below the other; the rows of each query
        and key head in `rotary_order`."""
        head_dim, width = config.head_dim, config.hidden_size
        sources = {q: config.n_heads, k: config.n_kv_heads, v: config.n_kv_heads}
        for source, n_heads in sources.items():
            self._expect(source, (n_heads * head_dim, width))
        order = rotary_order(head_dim)

        def rows(wanted: slice) -> npt.NDArray[Any]:
            parts, first = [], 0
            for source, n_heads in sources.items():
                start = max(wanted.start - first, 0)
                stop = min(wanted.stop - first, n_heads * head_dim)
                if start < stop:
                    part = self._rows(source, slice(start, stop)).reshape(-1, head_dim, width)
                    parts.append((part if source == v else part[:, order]).reshape(-1, width))
                first += n_heads * head_dim
            return np.concatenate(parts)

        n = sum(sources.values()) * head_dim
        return self._upload(name, n, width, tuple(sources), rows, multiple=head_dim)

    def head_biases(self, name: str, q: str, k: str, v: str, config: ModelConfig) -> Tensor:
        """The biases of `heads`, in its order, as float32."""
        head_dim, order = config.head_dim, rotary_order(config.head_dim)
        parts = []
        for source, n_heads in (
            (q, config.n_heads),
            (k, config.n_kv_heads),
            (v, config.n_kv_heads),
        ):
            part = self._vector(source, n_heads * head_dim).reshape(n_heads, head_dim)
            parts.append((part if source == v else part[:, order]).reshape(-1))
        return self.memory.upload(name, np.concatenate(parts))

    def interleaved(self, name: str, even: str, odd: str, n: int, k: int) -> Matrix:
        """Two tensors (n, k) as one (2n, k): rows of `even` and `odd` in turn (gate and up)."""
        self._expect(even, (n, k))
        self._expect(odd, (n, k))

        def rows(wanted: slice) -> npt.NDArray[Any]:
            half = slice(wanted.start // 2, wanted.stop // 2)
            pair = np.stack([self._rows(even, half), self._rows(odd, half)], axis=1)
            return pair.reshape(-1, k)

        return self._upload(name, 2 * n, k, (even, odd), rows, 2)

    def vector(self, name: str, *sources: str, n: int) -> Tensor:
        """`n` numbers as float32, padded with zeros to whole blocks; those of several sources in
        turn (gate and up)."""
        parts = [self._vector(source, n // len(sources)) for source in sources]
        whole = np.zeros(padded(n), np.float32)
        whole[:n] = np.stack(parts, axis=1).reshape(-1)
        return self.memory.upload(name, whole)

    def _vector(self, source: str, n: int) -> npt.NDArray[np.float32]:
        self._expect(source, (n,))
        data = self.checkpoint.read_f32(source)
        self._on_bytes(data.nbytes)
        return data

    def _expect(self, source: str, shape: tuple[int, ...]) -> None:
        if source not in self.checkpoint:
            raise ModelError(f"the checkpoint has no tensor {source}; the config promises one")
        found = self.checkpoint.shape(source)
        if found != shape:
            raise ModelError(f"{source} has shape {found}, but the config makes it {shape}")

    def _rows(self, source: str, rows: slice) -> npt.NDArray[Any]:
        read = self.checkpoint.read_f16 if self.dtype == "f16" else self.checkpoint.read_f32
        data: npt.NDArray[Any] = read(source, rows)
        self._on_bytes(data.nbytes)
        return data

    def _upload(
        self,
        name: str,
        n: int,
        k: int,
        sources: tuple[str, ...],
        rows: Rows,
        multiple: int = 1,
        dtype: str | None = None,
    ) -> Matrix:
        """Shards hold multiples of `multiple` rows."""
        dtype = dtype or self.dtype
        words = row_words(dtype, k)
        bound = self.memory.device.max_binding_bytes
        limit = bound // (4 * words) // multiple * multiple
        if limit == 0:
            raise DeviceError(
                f"{name}: {multiple} rows that belong together take {4 * words * multiple:,} "
                f"bytes, but this device binds {bound:,} at most; a smaller --dtype needs less"
            )
        shards = []
        for first, n_shard in _pieces(n, limit):
            tag = name if n <= limit else f"{name}[{first}:{first + n_shard}]"
            tensor = self.memory.zeros(tag, (n_shard, words), "u32", purpose="weights")
            step = max(multiple, UPLOAD_ROWS_BYTES // (4 * k) // multiple * multiple)
            for start, count in _pieces(n_shard, step):
                data = rows(slice(first + start, first + start + count))
                packed = pack(dtype, data, " + ".join(sources))
                self.memory.write(tensor, packed, at=start * 4 * words)
            shards.append(Shard(tensor, first, n_shard))
        return Matrix(name, n, k, dtype, tuple(shards), sources)


def rotary_order(head_dim: int) -> npt.NDArray[np.intp]:
    """(head_dim,): which row of a head comes where: (d, d + 1, d + half, d + half + 1) for even d
    below half, so that one invocation holds both halves of two rotary pairs."""
    d = np.arange(0, head_dim // 2, 2)
    return np.stack([d, d + 1, d + head_dim // 2, d + head_dim // 2 + 1], axis=1).reshape(-1)


def _pieces(n: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, count) of consecutive pieces of at most `size` that cover n."""
    for start in range(0, n, size):
        yield start, min(size, n - start)
