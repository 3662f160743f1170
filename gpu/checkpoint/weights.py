"""The weights of a model by what they are to it: which tensors of the checkpoint make a matrix or a
vector on the device, and how their rows are ordered there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.abreast import rows_abreast
from gpu.checkpoint.kept import Kept
from gpu.checkpoint.laid import Order, Piece, Rows, alone, below, heads, in_turn, rows_of
from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.checkpoint.packing import FORMATS, row_words
from gpu.checkpoint.reader import WeightSource
from gpu.checkpoint.uploader import MatrixUploader, sources_of
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.webgpu.buffers import Memory, Tensor, padded


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A matrix or vector that lies in a tensor of the checkpoint together with others.

    rows        which rows of the tensor it is, in order (n,)
    n_all       how many the tensor has
    transposed  the tensor is (inputs, outputs), and its columns are meant
    """

    source: str
    rows: Order
    n_all: int
    transposed: bool = False


Source = str | Cut
"""A whole tensor of the checkpoint, or what is cut out of one."""


@dataclass(frozen=True, slots=True)
class Member:
    """Rows `first` … `first + n - 1` of matrix `i` in a tensor of several (several, n_all, k)."""

    source: str
    i: int
    first: int
    n: int
    several: int
    n_all: int


class WeightLoader(MatrixUploader):
    """Reads tensors of one checkpoint onto the device, checking shapes.

    `dtype` is the storage type of matrices; vectors (norm gains, biases) are always float32.
    `on_weights` is told how many weights were just put in place. `kept`: where packed matrices are
    kept from an earlier start, or for the next one. `expert_slots`: of the experts of a layer, how
    many the device has room for; None: for all.
    """

    def __init__(
        self,
        checkpoint: WeightSource,
        memory: Memory,
        dtype: str,
        on_weights: Callable[[int], None] = lambda n: None,
        kept: Kept | None = None,
        expert_slots: int | None = None,
    ) -> None:
        super().__init__(checkpoint, memory, dtype, on_weights, kept)
        self.expert_slots = expert_slots

    def matrix(self, name: str, source: Source, n: int, k: int) -> Matrix:
        """One matrix (n, k)."""
        return self._upload(name, n, k, [self._part(source, n, k)], alone)

    def given(self, name: str, rows: npt.NDArray[np.float32]) -> Matrix:
        """A matrix (n, k) that is on the host, stored as it is."""
        n, k = rows.shape
        part = Piece(name, n, rows_of(rows), range(n))
        return self._upload(name, n, k, [part], alone, dtype="f32")

    def given_experts(self, name: str, rows: npt.NDArray[np.float32], together: int) -> ExpertStack:
        """As `given`, of each expert so many rows `together`."""
        part = Piece(name, len(rows), rows_of(rows), range(len(rows)))
        n, k = rows.shape
        matrix = self._upload(name, n, k, [part], alone, dtype="f32", together=together)
        return ExpertStack(matrix, together)

    def vocabulary(self, name: str, source: str, n: int, k: int) -> Matrix:
        """An embedding or output matrix: as `matrix`, but 8 bits where others have 4, because
        errors here are not averaged out by later layers."""
        dtype = FORMATS[self.dtype].vocabulary
        return self._upload(name, n, k, [self._part(source, n, k)], alone, dtype=dtype)

    def heads(
        self,
        name: str,
        q: Source,
        k: Source,
        v: Source,
        config: ModelConfig,
        rotary_dim: int | None = None,
    ) -> Matrix:
        """The projections to queries, keys and values, one below the other; the rows of each query
        and key head in `rotary_order` of its first `rotary_dim` numbers (None: of all)."""
        head_dim, width = config.head_dim, config.hidden_size
        n_heads = (config.n_heads, config.n_kv_heads, config.n_kv_heads)
        parts = [
            self._part(source, n * head_dim, width)
            for source, n in zip((q, k, v), n_heads, strict=True)
        ]
        order = rotary_order(head_dim, rotary_dim)
        n = sum(part.n for part in parts)
        return self._upload(
            name, n, width, parts, lambda parts: heads(parts, order), multiple=head_dim
        )

    def head_biases(
        self,
        name: str,
        q: Source,
        k: Source,
        v: Source,
        config: ModelConfig,
        rotary_dim: int | None = None,
    ) -> Tensor:
        """The biases of `heads`, in its order, as float32."""
        head_dim, order = config.head_dim, rotary_order(config.head_dim, rotary_dim)
        parts = []
        for source, n_heads in (
            (q, config.n_heads),
            (k, config.n_kv_heads),
            (v, config.n_kv_heads),
        ):
            part = self._vector(source, n_heads * head_dim).reshape(n_heads, head_dim)
            parts.append((part if source == v else part[:, order]).reshape(-1))
        return self.memory.upload(name, np.concatenate(parts))

    def interleaved(self, name: str, even: Source, odd: Source, n: int, k: int) -> Matrix:
        """Two matrices (n, k) as one (2n, k): rows of `even` and `odd` in turn (gate and up)."""
        parts = [self._part(source, n, k) for source in (even, odd)]
        return self._upload(name, 2 * n, k, parts, in_turn, 2)

    def experts(
        self,
        name: str,
        sources: Sequence[Sequence[str | Member]],
        n: int,
        k: int,
        modules: Sequence[Sequence[str]] = (),
    ) -> ExpertStack:
        """A matrix of each expert, one below the other: of one source (n, k) each, or of several
        with their rows in turn (gate and up), which the base calls `modules`. Where there are fewer
        `expert_slots` they are on the host, and nothing is on the device yet."""
        each = len(sources[0])
        parts = [self._part(source, n, k) for of_one in sources for source in of_one]
        arrange, n_rows, together = partial(below, each=each), len(parts) * n, each * n
        if self.expert_slots is None or self.expert_slots >= len(sources):
            matrix = self._upload(name, n_rows, k, parts, arrange, each, together=together)
            return ExpertStack(matrix, together, modules=modules)
        words, n_slot_rows = row_words(self.dtype, k), self.expert_slots * together
        n_abreast = rows_abreast(self.memory.device, self.dtype, k, together, together)
        host = np.empty((n_rows, words), np.uint32)

        def put(first: int, packed: npt.NDArray[Any]) -> None:
            host[first : first + len(packed)] = packed

        self._put_rows(name, self.dtype, n_rows, k, parts, arrange, each, put, n_abreast)
        shards = self._make_shards(name, n_slot_rows, words, together, n_abreast)
        sources = sources_of(parts)
        matrix = Matrix(name, n_slot_rows, k, self.dtype, shards, sources, abreast=n_abreast)
        return ExpertStack(matrix, together, host, modules)

    def exact(self, name: str, *sources: tuple[str, int], k: int) -> Matrix:
        """Matrices (so many, k) one below the other, in float32 whatever others are stored in: a
        router, whose largest outputs are picked, so that a small error can have a large effect."""
        parts = []
        for tensor, n in sources:
            self._expect(tensor, (n, k))
            parts.append(Piece(tensor, n, self._rows_of(tensor), range(n)))
        n_rows = sum(part.n for part in parts)
        return self._upload(name, n_rows, k, parts, partial(below, each=1), dtype="f32")

    def vector(self, name: str, *sources: Source, n: int, plus: float = 0.0) -> Tensor:
        """`n` numbers as float32, padded with zeros to whole blocks; those of several sources in
        turn (gate and up). `plus` is added to each (norms that are saved as what they add to 1)."""
        parts = [self._vector(source, n // len(sources)) for source in sources]
        whole = np.zeros(padded(n), np.float32)
        whole[:n] = np.stack(parts, axis=1).reshape(-1) + np.float32(plus)
        return self.memory.upload(name, whole)

    def joined(self, name: str, *sources: tuple[str, int], plus: float = 0.0) -> Tensor:
        """Vectors of so many numbers, one behind the other, as float32; `plus` as in `vector`."""
        parts = [self._vector(source, n) + np.float32(plus) for source, n in sources]
        return self.memory.upload(name, np.concatenate(parts))

    def table(self, name: str, source: str, n: int, k: int) -> Tensor:
        """A matrix (n, k) as float32, rows padded with zeros to whole blocks: to be added, not to
        be multiplied with."""
        whole = np.zeros((n, padded(k)), np.float32)
        self._expect(source, (n, k))
        whole[:, :k] = self.checkpoint.read_f32(source)
        self._on_weights(n * k)
        return self.memory.upload(name, whole)

    def _vector(self, source: Source, n: int) -> npt.NDArray[np.float32]:
        cut = source if isinstance(source, Cut) else None
        name = source if isinstance(source, str) else source.source
        self._expect(name, (n,) if cut is None else (cut.n_all,))
        data = self.checkpoint.read_f32(name)
        if cut is not None:
            data = data[cut.rows]
        self._on_weights(len(data))
        return data

    def _part(self, source: Source | Member, n: int, k: int) -> Piece:
        if isinstance(source, str):
            self._expect(source, (n, k))
            return Piece(source, n, self._rows_of(source), range(n))
        if isinstance(source, Member):
            return self._part_of_several(source, k)
        cut, read = source, self.checkpoint.read_into
        self._expect(cut.source, (k, cut.n_all) if cut.transposed else (cut.n_all, k))

        def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
            picked = cut.rows[wanted]
            span = slice(int(picked.min()), int(picked.max()) + 1)
            if not cut.transposed and np.all(np.diff(picked) == 1):
                read(out, cut.source, span)
                return
            n_read = span.stop - span.start
            found = np.empty((k, n_read) if cut.transposed else (n_read, k), out.dtype)
            if cut.transposed:
                read(found, cut.source, None, span)
                found = found.T
            else:
                read(found, cut.source, span)
            out[:] = found[picked - span.start]

        return Piece(cut.source, len(cut.rows), rows, cut.rows)

    def _rows_of(self, source: str) -> Rows:
        """Those of a whole tensor."""
        return lambda wanted, out: self.checkpoint.read_into(out, source, wanted)

    def _part_of_several(self, of: Member, k: int) -> Piece:
        self._expect(of.source, (of.several, of.n_all, k))

        def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
            some = slice(of.first + wanted.start, of.first + wanted.stop)
            self.checkpoint.read_into(out[np.newaxis], of.source, slice(of.i, of.i + 1), some)

        first = of.i * of.n_all + of.first
        return Piece(of.source, of.n, rows, range(first, first + of.n))

    def _expect(self, source: str, shape: tuple[int, ...]) -> None:
        if source not in self.checkpoint:
            raise ModelError(f"the checkpoint has no tensor {source}; the config promises one")
        found = self.checkpoint.shape(source)
        if found != shape:
            raise ModelError(f"{source} has shape {found}, but the config makes it {shape}")


def rotary_order(head_dim: int, rotary_dim: int | None = None) -> npt.NDArray[np.intp]:
    """(head_dim,): which row of a head comes where: (d, d + 1, d + half, d + half + 1) for even d
    below half of `rotary_dim` (None: of head_dim), so that one invocation holds both halves of two
    rotary pairs; then those that are not turned, as they are."""
    turned = head_dim if rotary_dim is None else rotary_dim
    d, half = np.arange(0, turned // 2, 2), turned // 2
    fours = np.stack([d, d + 1, d + half, d + half + 1], axis=1).reshape(-1)
    return np.concatenate([fours, np.arange(turned, head_dim)])
