"""Packs rows of a checkpoint and writes them to the device, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.auto_dtype import MatrixDtypes
from gpu.checkpoint.conversion import Conversion
from gpu.checkpoint.device_packer import LANE_BLOCKS, DevicePacker
from gpu.checkpoint.interleaved import interleave, max_shard_rows, rows_interleaved
from gpu.checkpoint.matrix import Matrix, Shard
from gpu.checkpoint.pack_pool import PackBuffer, Packed, PackPool
from gpu.checkpoint.packing import BLOCK, FORMATS, as_numbers, pack, row_words
from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.checkpoint.recipe import Placement, Recipe, parts_of
from gpu.checkpoint.row_layout import Arrangement, RowLayout, RowSource
from gpu.checkpoint.weight_cache import NoWeightCache, WeightCache, is_cacheable
from gpu.errors import DeviceError, ModelError
from gpu.webgpu.buffers import Memory, Tensor, padded

STACKED = Arrangement()
CHUNK_WEIGHTS = {"f32": 1 << 19, "f16": 1 << 20, "q8": 1 << 19, "q4": 1 << 19}
"""Approximate weights per chunk: 2 MiB, those that are quantised as float32. Larger chunks of these
would save round trips to the device, and take more memory of the host."""
DEVICE_PACKS_FROM = 1 << 23
"""Weights that the host quantises before the device does: compiling shaders takes as long."""


@dataclass(frozen=True, slots=True)
class PackJob:
    """A matrix to pack: `n` rows of `k` weights.

    sources   where its rows come from; `arrange` puts them together
    multiple  rows are read in multiples of this
    """

    name: str
    dtype: str
    n: int
    k: int
    sources: list[RowSource]
    arrange: Arrangement
    multiple: int = 1


class MatrixUploader:
    """Uploads matrices of one checkpoint to the device.

    dtype         storage type of matrices; see `gpu.checkpoint.auto_dtype.MatrixDtypes`
    on_weights    called with the number of weights just uploaded
    weight_cache  packed matrices of an earlier start, or a writer for the next one
    conversion    storage types that tensors were loaded as
    placements    where the weights are on the device

    The device quantises, unless a subclass without one says otherwise in `packs_on_device`.

    A matrix is complete when it is returned. Inside a `with` statement it is complete when the
    statement ends: then one matrix is packed while another is uploaded.
    """

    packs_on_device = True

    def __init__(
        self,
        checkpoint: WeightSource,
        memory: Memory,
        dtype: str,
        on_weights: Callable[[int], None] = lambda n: None,
        weight_cache: WeightCache | None = None,
    ) -> None:
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        self.checkpoint = checkpoint
        self.memory = memory
        self.dtype = dtype
        self._dtypes = MatrixDtypes(checkpoint, dtype)
        self.conversion = Conversion(checkpoint)
        self.placements: list[Placement] = []
        self._on_weights = on_weights
        self._weight_cache = weight_cache or NoWeightCache()
        self._pack_pool = PackPool()
        self._n_quantised = 0
        self._device_packer: DevicePacker | None = None
        self._packed, self._interleaved = PackBuffer(), PackBuffer()
        self._is_open = False

    def _upload(
        self,
        name: str,
        n: int,
        k: int,
        sources: list[RowSource],
        arrange: Arrangement,
        multiple: int = 1,
        dtype: str | None = None,
        group_rows: int | None = None,
    ) -> Matrix:
        """Pack and upload a matrix of `n` rows of `k` weights.

        multiple    rows are read in multiples of this
        dtype       storage type, whatever that of the model is
        group_rows  rows of one expert, which are addressed by number and stay in one shard; None:
                    shards hold multiples of `multiple`
        """
        dtype, device = dtype or self._dtypes.of(source_names(sources)), self.memory.device
        unit = group_rows or multiple
        n_interleaved = rows_interleaved(device, dtype, k, group_rows or n, unit)
        shards = self._make_shards(name, n, row_words(dtype, k), unit, n_interleaved)
        job = PackJob(name, dtype, n, k, sources, arrange, multiple)
        self._place(job, shards, n_interleaved)
        self._fill_shards(job, shards, n_interleaved)
        row_layout = partial(
            RowLayout.of, [(source.source, source.order) for source in sources], arrange, n
        )
        return Matrix(name, n, k, dtype, shards, source_names(sources), row_layout, n_interleaved)

    def _fill_shards(self, job: PackJob, shards: Sequence[Shard], n_interleaved: int) -> None:
        """Pack the rows of a matrix and write them to its shards."""
        self._pack_rows(job, partial(self._write, shards), n_interleaved)

    def _place(self, job: PackJob, shards: Sequence[Shard], n_interleaved: int) -> None:
        """Note where a matrix is. That of an adapter is in no tensor of the checkpoint, so its
        recipe has no parts."""
        in_checkpoint = all(source.source in self.checkpoint for source in job.sources)
        parts = parts_of(job.sources, job.arrange) if in_checkpoint else ()
        recipe = Recipe(job.name, job.dtype, job.n, job.k, parts, job.arrange.each)
        self.placements += [
            Placement(shard.tensor, recipe, shard.first, shard.n_rows, n_interleaved)
            for shard in shards
        ]

    def _upload_vector(
        self,
        name: str,
        sources: list[RowSource],
        n: int,
        arrange: Arrangement = STACKED,
        plus: float = 0.0,
    ) -> Tensor:
        """Upload the numbers of `sources`, with `plus` added to each, as `n` float32; zeros fill
        the end."""
        parts = parts_of(sources, arrange)
        recipe = Recipe(name, "f32", n, 0, parts, arrange.each, plus)
        return self._upload_f32(recipe, sources, arrange)

    def _upload_f32(
        self, recipe: Recipe, sources: list[RowSource], arrange: Arrangement = STACKED
    ) -> Tensor:
        """Upload a weight that is float32 on every device and in one buffer."""
        tensor = self._fill_f32(recipe, sources, arrange)
        self.placements.append(Placement(tensor, recipe, 0, recipe.n))
        return tensor

    def _fill_f32(self, recipe: Recipe, sources: list[RowSource], arrange: Arrangement) -> Tensor:
        """Read such a weight and upload it."""
        return self.memory.upload(recipe.name, read_f32(recipe, sources, arrange))

    def array_from_host(self, name: str, array: npt.NDArray[Any]) -> Tensor:
        """Upload an array of float32 or uint32 as it is."""
        tensor = self._fill_array(name, array)
        recipe = Recipe(name, "f32", array.size, 0, ())
        self.placements.append(Placement(tensor, recipe, 0, recipe.n))
        return tensor

    def _fill_array(self, name: str, array: npt.NDArray[Any]) -> Tensor:
        """Allocate a tensor for an array and upload it."""
        return self.memory.upload(name, array)

    def _make_shards(
        self, name: str, n: int, words: int, unit: int, n_interleaved: int
    ) -> tuple[Shard, ...]:
        """Allocate shards for `n` rows of `words` words, in multiples of `unit` and of the
        interleaved rows. Raises DeviceError if one multiple exceeds the device's largest
        binding."""
        device, multiple = self.memory.device, lcm(unit, n_interleaved)
        most = max_shard_rows(device, words, n_interleaved)
        limit = most // multiple * multiple
        if limit == 0:
            raise DeviceError(
                f"{name}: {multiple} rows must be in one binding and take "
                f"{4 * words * multiple:,} bytes, but this device binds at most "
                f"{4 * words * most:,} bytes of such rows; use a smaller --dtype"
            )
        shards = []
        for first in range(0, n, limit):
            n_shard = min(limit, n - first)
            tag = name if n <= limit else f"{name}[{first}:{first + n_shard}]"
            tensor = self.memory.weights(tag, n_shard, words, n_interleaved)
            shards.append(Shard(tensor, first, n_shard))
        return tuple(shards)

    def _write(self, shards: Sequence[Shard], first: int, packed: Packed) -> None:
        """Write rows from number `first` on to their shards."""
        for shard in shards:
            a = max(first, shard.first)
            b = min(first + len(packed), shard.first + shard.n_rows)
            if a < b:
                at = 4 * packed.shape[1] * (a - shard.first)
                self.memory.write(shard.tensor, packed[a - first : b - first], at)

    def _pack_rows(
        self, job: PackJob, write: Callable[[int, Packed], None], n_interleaved: int
    ) -> None:
        """Pass all rows of a matrix to `write` in order, in device layout, a chunk at a time.

        Rows come from the weight cache or are packed now. `write` is given the number of the first
        row and the rows, whose memory is reused after it returns.
        """
        name, dtype, k = job.name, job.dtype, job.k
        shape, in_place = (job.n, row_words(dtype, k)), self._in_place(job)
        weight_cache: WeightCache = (
            self._weight_cache
            if is_cacheable(dtype) and len(in_place) < len(job.sources)
            else NoWeightCache()
        )
        found = weight_cache.find(name, shape)
        sources = source_names(job.sources)
        for source in sources:
            self.conversion.note([source], dtype, in_place=source in in_place)
        rows = job.arrange(
            [self._packed_rows(job, source, in_place) for source in job.sources]
            if in_place
            else job.sources
        )
        label = " + ".join(sources) if len(sources) <= 3 else name
        packer = self._packer_of(job) if found is None and not in_place else None

        def fill(wanted: slice, buffer: PackBuffer) -> Packed:
            n = wanted.stop - wanted.start
            if packer is not None and packer.packs(dtype):
                numbers = buffer.numbers((n, k))
                rows(wanted, numbers)
                return numbers
            packed = buffer.words((n, shape[1]))
            if not in_place:
                self._fill(packed, dtype, partial(rows, wanted), k, buffer, label)
            else:
                rows(wanted, packed)
            return packed

        def done(first: int, filled: Packed) -> None:
            packed = filled
            if packer is not None and filled.dtype == np.float32:
                packed = self._packed.words((len(filled), shape[1]))
                packer.pack(dtype, filled, label, packed)
            write(first, self._interleave(dtype, k, packed, n_interleaved))
            if found is None:
                weight_cache.add(name, shape, packed)
            self._on_weights(len(packed) * k)

        unit = lcm(job.multiple, n_interleaved)
        step = max(unit, CHUNK_WEIGHTS[dtype] // k // unit * unit)
        for start in range(0, job.n, step):
            wanted = slice(start, min(start + step, job.n))
            if found is None:
                self._pack_pool.add(partial(fill, wanted), partial(done, start))
            else:
                done(start, found[wanted])
        if not self._is_open:
            self._finish()

    def _interleave(self, dtype: str, k: int, packed: Packed, n_interleaved: int) -> Packed:
        """Return packed rows of `k` weights in device layout, in memory that is reused."""
        if n_interleaved == 1:
            return packed
        out = self._interleaved.words(packed.shape)
        return interleave(dtype, k, packed, n_interleaved, out)

    def _fill(
        self,
        packed: npt.NDArray[np.uint32],
        dtype: str,
        rows: Callable[[npt.NDArray[Any]], None],
        k: int,
        buffer: PackBuffer,
        name: str,
    ) -> None:
        """Fill `packed` with the rows of `k` weights that `rows` reads."""
        numbers = as_numbers(dtype, packed, k)
        if numbers is None:
            numbers = buffer.numbers((len(packed), k))
            rows(numbers)
            self.pack(dtype, numbers, name, packed)
            return
        if k % BLOCK:
            packed.fill(0)  # rows are padded with zeros
        rows(numbers)

    def __enter__(self) -> Self:
        """Let matrices be returned before they are complete; they are at the statement's end."""
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_open = False
        if kind is None:
            self._finish()
            return
        self._pack_pool.cancel()
        self._close_packer()

    def _finish(self) -> None:
        """Wait until all matrices are complete."""
        try:
            self._pack_pool.finish()
        finally:
            self._close_packer()

    def pack(
        self, dtype: str, rows: npt.NDArray[Any], name: str, out: npt.NDArray[np.uint32]
    ) -> None:
        """Quantise rows of a matrix into `out`. Runs on the threads of the pack pool."""
        pack(dtype, rows, name, out)

    def _packer_of(self, job: PackJob) -> DevicePacker | None:
        """Return what packs the rows of a matrix on the device; None: the host packs them."""
        if job.dtype not in LANE_BLOCKS or not self.packs_on_device:
            return None
        self._n_quantised += job.n * job.k
        if self._n_quantised <= DEVICE_PACKS_FROM:
            return None
        if self._device_packer is None:
            self._device_packer = DevicePacker(self.memory.device)
        return self._device_packer

    def _close_packer(self) -> None:
        if self._device_packer is not None:
            self._device_packer.close()
            self._device_packer = None

    def _in_place(self, job: PackJob) -> set[str]:
        """Return the sources of the job whose blocks in the file have the integers of its storage
        type: they are copied."""
        checkpoint = self.checkpoint
        if not isinstance(checkpoint, Checkpoint):
            return set()
        return {
            name
            for name in source_names(job.sources)
            if name in checkpoint
            and checkpoint.is_packed(name, job.dtype)
            and checkpoint.shape(name)[1] == job.k
        }

    def _packed_rows(self, job: PackJob, source: RowSource, in_place: set[str]) -> RowSource:
        """Return a source that is read as packed rows: copied, or else quantised as it is read."""
        checkpoint, order = self.checkpoint, np.asarray(source.order)

        def copied(wanted: slice, out: npt.NDArray[Any]) -> None:
            assert isinstance(checkpoint, Checkpoint)
            picked = order[wanted]
            first = int(picked.min())
            found = checkpoint.read_packed(source.source, slice(first, int(picked.max()) + 1))
            out[:] = found[picked - first]

        def quantised(wanted: slice, out: npt.NDArray[Any]) -> None:
            numbers = np.empty((len(out), job.k), np.float32)
            source.rows(wanted, numbers)
            packed = np.empty(out.shape, np.uint32)  # `out` may be every other row
            self.pack(job.dtype, numbers, source.source, packed)
            out[:] = packed

        return replace(source, rows=copied if source.source in in_place else quantised)


def read_f32(
    recipe: Recipe, sources: list[RowSource], arrange: Arrangement
) -> npt.NDArray[np.float32]:
    """Return the numbers of a vector, (n,), or of a table, (n, k rounded up to whole blocks)."""
    n, k = sum(source.n for source in sources), recipe.k or 1
    whole = np.zeros((recipe.n, padded(k) if recipe.k else 1), np.float32)
    arrange(sources)(slice(0, n), whole[:n, :k])
    whole[:n] += np.float32(recipe.plus)
    return whole if recipe.k else whole[:, 0]


def source_names(row_sources: list[RowSource]) -> tuple[str, ...]:
    """Return the tensors that a matrix is made of, each once."""
    return tuple(dict.fromkeys(row_source.source for row_source in row_sources))
