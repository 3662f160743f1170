"""Weight loader: matrices and vectors on the device from one or several tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.interleaved import rows_interleaved
from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.checkpoint.packing import FORMATS, row_words
from gpu.checkpoint.reader import WeightSource
from gpu.checkpoint.recipe import Recipe, parts_of
from gpu.checkpoint.row_layout import Arrangement, ReadRows, RowOrder, RowSource, array_rows
from gpu.checkpoint.uploader import STACKED, MatrixUploader, PackJob, source_names
from gpu.checkpoint.weight_cache import WeightCache
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.webgpu.buffers import Memory, Tensor, padded


@dataclass(frozen=True, slots=True, eq=False)
class TensorSlice:
    """A matrix or vector that is part of a tensor of the checkpoint.

    rows        its rows of the tensor, in order (n,)
    n_all       rows of the tensor
    transposed  the tensor is (inputs, outputs), and `rows` are its columns
    """

    source: str
    rows: RowOrder
    n_all: int
    transposed: bool = False


Source = str | TensorSlice
"""A whole tensor of the checkpoint, by name, or a part of one."""


@dataclass(frozen=True, slots=True)
class StackedSlice:
    """Rows `first` … `first + n - 1` of matrix `i` in a tensor (n_stacked, n_all, k)."""

    source: str
    i: int
    first: int
    n: int
    n_stacked: int
    n_all: int


class WeightLoader(MatrixUploader):
    """Loads tensors of one checkpoint onto the device and checks their shapes.

    dtype         storage type of matrices (see `gpu.checkpoint.auto_dtype.MatrixDtypes`); vectors
                  (norm gains, biases) are always float32
    on_weights    called with the number of weights just loaded
    weight_cache  packed matrices of an earlier start
    expert_slots  experts of a layer that are on the device; None: all
    """

    def __init__(
        self,
        checkpoint: WeightSource,
        memory: Memory,
        dtype: str,
        on_weights: Callable[[int], None] = lambda n: None,
        weight_cache: WeightCache | None = None,
        expert_slots: int | None = None,
    ) -> None:
        super().__init__(checkpoint, memory, dtype, on_weights, weight_cache)
        self.expert_slots = expert_slots

    def matrix(self, name: str, source: Source, n: int, k: int) -> Matrix:
        """Load one matrix (n, k)."""
        return self._upload(name, n, k, [self._part(source, n, k)], STACKED)

    def from_host(self, name: str, rows: npt.NDArray[np.float32]) -> Matrix:
        """Upload a matrix (n, k) from the host as float32."""
        n, k = rows.shape
        part = RowSource(name, n, array_rows(rows), range(n))
        return self._upload(name, n, k, [part], STACKED, dtype="f32")

    def experts_from_host(
        self, name: str, rows: npt.NDArray[np.float32], together: int
    ) -> ExpertStack:
        """Upload stacked experts of `together` rows each, as `from_host` does for a matrix."""
        part = RowSource(name, len(rows), array_rows(rows), range(len(rows)))
        n, k = rows.shape
        matrix = self._upload(name, n, k, [part], STACKED, dtype="f32", group_rows=together)
        return ExpertStack(matrix, together)

    def vocab_matrix(self, name: str, source: str, n: int, k: int) -> Matrix:
        """Load an embedding or output matrix: as `matrix`, but in 8 bits where others have 4,
        because no later layer averages its errors."""
        dtype = FORMATS[self.dtype].vocabulary
        return self._upload(name, n, k, [self._part(source, n, k)], STACKED, dtype=dtype)

    def qkv(
        self,
        name: str,
        q: Source,
        k: Source,
        v: Source,
        config: ModelConfig,
        rotary_dim: int | None = None,
    ) -> Matrix:
        """Load the projections to queries, keys and values, one below the other. The rows of each
        query and key head are in `rotary_order` of its first `rotary_dim` rows (None: all)."""
        head_dim, width = config.head_dim, config.hidden_size
        n_heads = (config.n_heads, config.n_kv_heads, config.n_kv_heads)
        parts = [
            self._part(source, n * head_dim, width)
            for source, n in zip((q, k, v), n_heads, strict=True)
        ]
        arrange = Arrangement(head_order=rotary_order(head_dim, rotary_dim))
        n = sum(part.n for part in parts)
        return self._upload(name, n, width, parts, arrange, multiple=head_dim)

    def kv(self, name: str, k: Source, v: Source, config: ModelConfig) -> Matrix:
        """Load the projections to keys and values of cross-attention, one below the other. Their
        rows are left as saved: cross-attention has no RoPE."""
        n, width = config.n_kv_heads * config.head_dim, config.hidden_size
        parts = [self._part(source, n, width) for source in (k, v)]
        return self._upload(name, 2 * n, width, parts, STACKED, multiple=config.head_dim)

    def qkv_biases(
        self,
        name: str,
        q: Source,
        k: Source,
        v: Source,
        config: ModelConfig,
        rotary_dim: int | None = None,
    ) -> Tensor:
        """Load the biases of `qkv`, in its order, as float32."""
        head_dim = config.head_dim
        n_heads = (config.n_heads, config.n_kv_heads, config.n_kv_heads)
        parts = [
            self._vector(source, n * head_dim) for source, n in zip((q, k, v), n_heads, strict=True)
        ]
        arrange = Arrangement(head_order=rotary_order(head_dim, rotary_dim))
        return self._upload_vector(name, parts, sum(n_heads) * head_dim, arrange)

    def gate_up(self, name: str, gate: Source, up: Source, n: int, k: int) -> Matrix:
        """Load two matrices (n, k) as one (2n, k), rows of `gate` and `up` alternating."""
        parts = [self._part(source, n, k) for source in (gate, up)]
        return self._upload(name, 2 * n, k, parts, Arrangement(each=2), 2)

    def experts(
        self,
        name: str,
        sources: Sequence[Sequence[str | StackedSlice]],
        n: int,
        k: int,
        modules: Sequence[Sequence[str]] = (),
    ) -> ExpertStack:
        """Load a matrix of each expert, one below the other, from one source (n, k) each, or from
        several with alternating rows (gate and up). `modules`: the names of these sources for
        adapters. With fewer `expert_slots` than experts, all experts stay on the host and the
        slots on the device are empty."""
        each = len(sources[0])
        parts = [self._part(source, n, k) for of_one in sources for source in of_one]
        arrange, n_rows, together = Arrangement(each), len(parts) * n, each * n
        if self.expert_slots is None or self.expert_slots >= len(sources):
            matrix = self._upload(name, n_rows, k, parts, arrange, each, group_rows=together)
            return ExpertStack(matrix, together, modules=modules)
        dtype = self._dtypes.of(names := source_names(parts))
        words, n_slot_rows = row_words(dtype, k), self.expert_slots * together
        n_interleaved = rows_interleaved(self.memory.device, dtype, k, together, together)
        host = np.empty((n_rows, words), np.uint32)

        def put(first: int, packed: npt.NDArray[Any]) -> None:
            host[first : first + len(packed)] = packed

        job = PackJob(name, dtype, n_rows, k, parts, arrange, each)
        self._pack_rows(job, put, n_interleaved)
        shards = self._make_shards(name, n_slot_rows, words, together, n_interleaved)
        matrix = Matrix(name, n_slot_rows, k, dtype, shards, names, interleaved=n_interleaved)
        return ExpertStack(matrix, together, host, modules)

    def float32_matrix(self, name: str, *sources: tuple[str, int], k: int) -> Matrix:
        """Load matrices (n, k), given as (tensor, n), one below the other in float32 whatever
        `dtype` is: a router, where a small error can change the experts chosen."""
        parts = []
        for tensor, n in sources:
            self._expect(tensor, (n, k))
            parts.append(RowSource(tensor, n, self._rows_of(tensor), range(n)))
        n_rows = sum(part.n for part in parts)
        return self._upload(name, n_rows, k, parts, STACKED, dtype="f32")

    def vector(self, name: str, *sources: Source, n: int, plus: float = 0.0) -> Tensor:
        """Load `n` numbers as float32, padded with zeros to whole blocks; several sources alternate
        (gate and up). `plus` is added to each (norms that are saved as gain - 1)."""
        parts = [self._vector(source, n // len(sources)) for source in sources]
        return self._upload_vector(name, parts, padded(n), Arrangement(len(parts)), plus)

    def concatenated(self, name: str, *sources: tuple[str, int], plus: float = 0.0) -> Tensor:
        """Load vectors, given as (tensor, length), end to end as float32; `plus` as in `vector`."""
        parts = [self._vector(source, n) for source, n in sources]
        return self._upload_vector(name, parts, sum(part.n for part in parts), plus=plus)

    def table(self, name: str, source: str, used: range, k: int, plus: str | None = None) -> Tensor:
        """Load the rows `used` of a matrix (used.stop, k) of vectors to add, as float32 with rows
        padded to whole blocks. `plus`: a tensor (any number, k) whose first row is added to every
        row."""
        self._expect(source, (used.stop, k))
        rows = self._rows_of(source, used.start)
        part = RowSource(
            source, len(used), rows if plus is None else self._plus(rows, plus, k), used
        )
        recipe = Recipe(name, "f32", len(used), k, parts_of([part], STACKED))
        table = self._upload_f32(recipe, [part])
        self._on_weights(used.stop * k)
        return table

    def position_biases(
        self, name: str, source: str, buckets: npt.NDArray[np.intp], n_buckets: int, n_heads: int
    ) -> Tensor:
        """Load the biases (n_buckets, n_heads) that are added to attention scores; return those of
        `buckets` for each head in bits, (n_heads, len(buckets)) float32."""
        self._expect(source, (n_buckets, n_heads))
        biases = self.checkpoint.read_f32(source)[buckets].T.astype(np.float64) / np.log(2)
        self._on_weights(n_buckets * n_heads)
        return self.memory.upload(name, biases.astype(np.float32))

    def _plus(self, rows: ReadRows, plus: str, k: int) -> ReadRows:
        """Return `rows` with the first row of the tensor `plus` added to each."""
        n_all = self.checkpoint.shape(plus)[0] if plus in self.checkpoint else 1
        self._expect(plus, (n_all, k))
        first = self.checkpoint.read_f32(plus)[0]
        self._on_weights(n_all * k)

        def read(wanted: slice, out: npt.NDArray[Any]) -> None:
            rows(wanted, out)
            out += first

        return read

    def _vector(self, source: Source, n: int) -> RowSource:
        """Return a vector as rows of one number."""
        tensor_slice = source if isinstance(source, TensorSlice) else None
        name = source if isinstance(source, str) else source.source
        self._expect(name, (n,) if tensor_slice is None else (tensor_slice.n_all,))
        order = range(n) if tensor_slice is None else tensor_slice.rows

        def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
            out[:, 0] = self.checkpoint.read_f32(name)[order][wanted]
            self._on_weights(len(out))

        return RowSource(name, len(order), rows, order)

    def _part(self, source: Source | StackedSlice, n: int, k: int) -> RowSource:
        if isinstance(source, str):
            self._expect(source, (n, k))
            return RowSource(source, n, self._rows_of(source), range(n))
        if isinstance(source, StackedSlice):
            return self._stacked_rows(source, k)
        tensor_slice, read = source, self.checkpoint.read_into
        self._expect(
            tensor_slice.source,
            (k, tensor_slice.n_all) if tensor_slice.transposed else (tensor_slice.n_all, k),
        )

        def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
            picked = tensor_slice.rows[wanted]
            span = slice(int(picked.min()), int(picked.max()) + 1)
            if not tensor_slice.transposed and np.all(np.diff(picked) == 1):
                read(out, tensor_slice.source, span)
                return
            n_read = span.stop - span.start
            found = np.empty((k, n_read) if tensor_slice.transposed else (n_read, k), out.dtype)
            if tensor_slice.transposed:
                read(found, tensor_slice.source, None, span)
                found = found.T
            else:
                read(found, tensor_slice.source, span)
            out[:] = found[picked - span.start]

        picked_rows, transposed = tensor_slice.rows, tensor_slice.transposed
        return RowSource(tensor_slice.source, len(picked_rows), rows, picked_rows, transposed)

    def _rows_of(self, source: str, first: int = 0) -> ReadRows:
        """Return a reader of a tensor's rows from `first` on."""

        def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
            some = slice(first + wanted.start, first + wanted.stop)
            self.checkpoint.read_into(out, source, some)

        return rows

    def _stacked_rows(self, of: StackedSlice, k: int) -> RowSource:
        self._expect(of.source, (of.n_stacked, of.n_all, k))

        def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
            some = slice(of.first + wanted.start, of.first + wanted.stop)
            self.checkpoint.read_into(out[np.newaxis], of.source, slice(of.i, of.i + 1), some)

        first = of.i * of.n_all + of.first
        return RowSource(of.source, of.n, rows, range(first, first + of.n))

    def _expect(self, source: str, shape: tuple[int, ...]) -> None:
        if source not in self.checkpoint:
            raise ModelError(f"the checkpoint has no tensor {source}; the config promises one")
        found = self.checkpoint.shape(source)
        if found != shape:
            raise ModelError(f"{source} has shape {found}, but the config makes it {shape}")


def rotary_order(head_dim: int, rotary_dim: int | None = None) -> npt.NDArray[np.intp]:
    """Return the order of a head's rows on the device (head_dim,): d, d + 1, d + half, d + half + 1
    for even d below half of `rotary_dim` (None: head_dim), so that one invocation holds both halves
    of two rotary pairs; then the rows that are not rotated."""
    n_rotary = head_dim if rotary_dim is None else rotary_dim
    d, half = np.arange(0, n_rotary // 2, 2), n_rotary // 2
    vec4s = np.stack([d, d + 1, d + half, d + half + 1], axis=1).reshape(-1)
    return np.concatenate([vec4s, np.arange(n_rotary, head_dim)])
