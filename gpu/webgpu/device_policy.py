"""Policy of a device: every choice that depends on the kind of device is made here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gpu.info import AdapterInfo
from gpu.webgpu.tiling import GPU, SHARED_M_SIZES, SOFTWARE, Tuning

IN_FLIGHT = 3
"""Steps in flight on a GPU: one runs, one waits for it, one is encoded or read back."""
SOFTWARE_IN_FLIGHT = 2
"""Steps in flight on a software device. Mesa's driver starts a step when the one before has ended,
so with three every result would be read one step late."""
ROWS = 128
"""Rows of a step, where more would keep the device from other work for seconds."""
DISCRETE_ROWS = 512
"""Rows of a step on a discrete GPU: fewer leave multiprocessors idle and read the weights more
often."""
DISCRETE = "discrete GPU"
TIMED_EVERY = 8
"""From one captured step whose layers are timed to the next, where timestamps are not known to be
cheap. A driver may stop and start the device for each."""
CHEAP_TIMESTAMP_US = 0.3
"""Largest cost of a timestamp for every step to take some: 61 add 2 % to a token of 1 ms."""
CAPTURE_SHARE, CAPTURE_BYTES = 0.02, 32 << 20
"""Size of each of the two arenas for captured residual streams, as a share of the weights and the
KV cache, and at most."""
DISCRETE_CAPTURE_SHARE, DISCRETE_CAPTURE_BYTES = 0.2, 512 << 20
"""The same on a discrete GPU: 512 rows of a 135M, a 1B and an 8B model fit (36, 71 and 277 MB).
With steps of 64 rows an H100 read captured prompts five times slower than others."""
MAX_LOOP_ROUNDS = 65_535
"""Mesa's software driver silently ends all loops of a shader after this many rounds in all."""


SHARED_TILE_BYTES = 24 << 10
"""Workgroup memory of the largest shared tiles: a block of 128 rows and 64 columns, or of 64 rows
and 128 columns."""
FEW_ROWS_BYTES = 32 << 10
"""Workgroup memory of coalesced tiles of 16 float rows; smaller ones take half."""
ROUNDING_WORKGROUPS = 16
"""Workgroups that round activations to int8 on a GPU, if its rows are fewer: a row alone would
leave all multiprocessors but one idle. Each computes the norm again, so small GPUs take fewer."""
DISCRETE_ROUNDING_WORKGROUPS = 32
"""The same on a discrete GPU."""
SAMPLE_LANES = 128
"""Most lanes of the workgroup that samples a row in 16 KiB of workgroup memory."""
DISCRETE_SAMPLE_LANES = 256
"""The same in `SHARED_TILE_BYTES`: one workgroup walks over the tokens of a bin."""
SUM_PARTS = 16
"""Lanes of a GPU that share a sum over all lanes of the sampler; one would add up to 256 numbers,
each after the one before."""
BINS_FROM = 16_384
"""Smallest vocabulary that many workgroups of a GPU sort into bins before one samples from it. That
takes two dispatches more; one workgroup walks over fewer tokens in about the time of these."""
NARROW_VENDORS = ("Qualcomm", "ARM")
"""Vendors of phones' GPUs, whose caches give few lines in a clock: see `NARROW`."""
NARROW = replace(GPU, few_n=8, split_k=8)
"""Tiles that read x for more columns at a time, so that they touch fewer lines."""

DISCRETE_GPU = replace(GPU, unrolls_loops=True)
"""On an H100, 16 rows took 1.6 times as long with loops. No other kind of GPU was measured, and
browsers, whose plans are those of an integrated GPU, would download longer ones."""

SHARED_ATTENTION_WORKGROUPS = 8
"""Fewest workgroups of attention that copies keys and values into workgroup memory."""
DISCRETE_SHARED_ATTENTION_WORKGROUPS = 36
"""The same on a discrete GPU, which has more multiprocessors that would have none: with 32 on an
H200, a 1B shape is predicted to take a tenth more time, with 39 the 135M shape a tenth less."""

LEAST_WORKGROUP_BYTES = 16 << 10
"""Workgroup memory of every WebGPU device."""
MERGE_AHEAD = 8
"""Splits of attention that are loaded before a GPU merges the first of them: each load takes as
long as the merge of many."""
SPLIT_ROWS = 8
"""Most rows of a step whose attention is split over workgroups, as in decoding. More rows have
enough workgroups, and the partial results would need much memory."""
DISCRETE_SPLIT_ROWS = 32
"""The same on a discrete GPU. With 16 rows of 16,384 tokens an H100 takes 100 µs for a layer of a
135M shape and 323 of 1B, in one pass over all splits 323 and 440; 517 and 468 of 8B."""
MERGED_SPLITS = 16
"""Most splits that the last workgroup of attention merges on a discrete GPU. With 16 an H100 takes
8.9 instead of 9.7 µs for a layer of a 1B shape, with 64 22.0 instead of 20.2."""
MERGING_BACKENDS = ("Vulkan",)
"""Backends whose barriers order what other workgroups see."""
DISCRETE_ATTENTION_BYTES = 48 << 10
"""Most workgroup memory of attention on a discrete GPU: a split of an 8B shape takes 36 KiB."""

AttentionLoads = Literal["own", "shuffle", "coalesced", "shared"]


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """Choices for one device.

    max_rows             most rows of a step: the chunk of a prompt
    tuning               matmul tiles to start from, if the device can shuffle (`Device.open` tries)
    row_lanes            lanes of a workgroup that serves one row or one head
    rounding_workgroups  workgroups that round activations to int8 where rows are fewer
    sample_lanes         most lanes of the workgroup that samples a row
    sum_parts            lanes that share a sum over all lanes of it
    bins_from            smallest vocabulary that the sampler sorts into bins first, with many
                         workgroups; None: never
    strips_in_quads      lanes that prepare the sampler's keys take four strips of the vocabulary,
                         and need no workgroup memory
    attention_queries    most queries of one workgroup of attention
    attention_loads      how lanes of attention get keys and values, see `AttentionTiling`
    attention_bytes      most workgroup memory of attention with `coalesced` loads
    shared_attention_workgroups  fewest workgroups for which steps of many rows take `shared`
                         attention loads instead; None: never
    kv_split_size        keys of one split of attention
    split_rows           most rows of a step whose attention is split over workgroups
    merged_splits        most splits that the last workgroup of attention merges itself
    merge_ahead          splits that are loaded before the first of them is merged
    interleaves_weights  rows of a weight are interleaved block by block
    weights_in_textures  weights are textures instead of buffers
    loads_64_bits        words are loaded as 64-bit integers
    max_loop_rounds      rounds after which the driver ends a shader's loops; None: no limit
    capture_share        size of an arena for captured residual streams, as a share of the weights
                         and the KV cache
    capture_bytes        most of it
    probe_bytes          bytes of memory that its bandwidth is measured on
    probe_copies         bandwidth is measured by copies: on a software device a shader pays more
                         for its loads than for the memory
    steps_in_flight      most steps submitted and not yet read back
    submits_apart        a thread of its own finishes and submits a step while the next is recorded
    autotunes_at_start   a first start measures which matmul tiles are fastest. On GPUs only
                         `tokenglass devices --probe` does, which takes up to a minute
    timed_every          captured steps from one whose layers are timed to the next
    timestamp_us         measured cost of a timestamp inside a pass
    """

    max_rows: int
    tuning: Tuning
    row_lanes: int
    rounding_workgroups: int
    sample_lanes: int
    sum_parts: int
    bins_from: int | None
    strips_in_quads: bool
    attention_queries: int
    attention_loads: AttentionLoads
    attention_bytes: int
    shared_attention_workgroups: int | None
    kv_split_size: int
    split_rows: int
    merged_splits: int
    merge_ahead: int
    interleaves_weights: bool
    weights_in_textures: bool
    loads_64_bits: bool
    max_loop_rounds: int | None
    capture_share: float
    capture_bytes: int
    probe_bytes: int
    probe_copies: bool
    steps_in_flight: int
    submits_apart: bool
    autotunes_at_start: bool
    timed_every: int = TIMED_EVERY
    timestamp_us: float | None = None

    @classmethod
    def of(cls, info: AdapterInfo) -> DevicePolicy:
        return _software(info) if info.software else _gpu(info)

    def with_timestamp_cost(self, us: float | None) -> DevicePolicy:
        """Return the policy of a device whose timestamps inside a pass cost `us`; None: unknown."""
        cheap = us is not None and us <= CHEAP_TIMESTAMP_US
        return replace(self, timed_every=1 if cheap else TIMED_EVERY, timestamp_us=us)

    @property
    def lib(self) -> dict[str, str]:
        """Files of shaders/lib that replace others on this device, by the name they replace."""
        words = {"words": "words_64"} if self.loads_64_bits else {}
        store = {"weight_store": "weight_store_texture"} if self.weights_in_textures else {}
        strips = {"strip_summaries": "strip_summaries_own"} if self.strips_in_quads else {}
        return words | store | strips


def _gpu(info: AdapterInfo) -> DevicePolicy:
    """Return the policy of a GPU: many lanes with short sums; short splits keep many cores busy."""
    workgroup_bytes = info.limits.get("max-compute-workgroup-storage-size", LEAST_WORKGROUP_BYTES)
    large = workgroup_bytes >= SHARED_TILE_BYTES
    discrete = info.kind == DISCRETE
    tuning = NARROW if info.vendor in NARROW_VENDORS else DISCRETE_GPU if discrete else GPU
    if workgroup_bytes < FEW_ROWS_BYTES:
        tuning = replace(tuning, max_m=8)
    return DevicePolicy(
        max_rows=DISCRETE_ROWS if discrete else ROWS,
        tuning=tuning if large else replace(tuning, shared_m=SHARED_M_SIZES[-1]),
        row_lanes=64,
        rounding_workgroups=DISCRETE_ROUNDING_WORKGROUPS if discrete else ROUNDING_WORKGROUPS,
        sample_lanes=DISCRETE_SAMPLE_LANES if large and discrete else SAMPLE_LANES,
        sum_parts=SUM_PARTS,
        bins_from=BINS_FROM,
        strips_in_quads=False,
        attention_queries=8,
        attention_loads="coalesced",
        attention_bytes=min(
            workgroup_bytes, DISCRETE_ATTENTION_BYTES if discrete else SHARED_TILE_BYTES
        ),
        shared_attention_workgroups=(
            DISCRETE_SHARED_ATTENTION_WORKGROUPS if discrete else SHARED_ATTENTION_WORKGROUPS
        ),
        kv_split_size=128,
        split_rows=DISCRETE_SPLIT_ROWS if discrete else SPLIT_ROWS,
        merged_splits=MERGED_SPLITS if discrete and info.backend in MERGING_BACKENDS else 0,
        merge_ahead=MERGE_AHEAD,
        interleaves_weights=False,
        weights_in_textures=False,
        loads_64_bits=False,
        max_loop_rounds=None,
        capture_share=DISCRETE_CAPTURE_SHARE if discrete else CAPTURE_SHARE,
        capture_bytes=DISCRETE_CAPTURE_BYTES if discrete else CAPTURE_BYTES,
        probe_bytes=1 << 30,
        probe_copies=False,
        steps_in_flight=IN_FLIGHT,
        submits_apart=True,
        autotunes_at_start=False,
    )


def _software(info: AdapterInfo) -> DevicePolicy:
    """Return the policy of a software device: few lanes that reuse every load, because loads are
    emulated lane by lane.

    Splits are longer, since each costs a dispatch. Copies are smaller: touching memory for the
    first time is slow. Timestamps stop the device and are known to be dear.
    """
    wide = "shader-int64" in info.features
    return DevicePolicy(
        max_rows=ROWS,
        tuning=SOFTWARE,
        row_lanes=8,
        rounding_workgroups=1,
        sample_lanes=SAMPLE_LANES,
        sum_parts=1,
        bins_from=None,
        strips_in_quads=True,
        attention_queries=12,
        attention_loads="shuffle" if "subgroup" in info.features else "own",
        attention_bytes=LEAST_WORKGROUP_BYTES,
        shared_attention_workgroups=None,
        kv_split_size=512,
        split_rows=SPLIT_ROWS,
        merged_splits=0,
        merge_ahead=1,
        interleaves_weights=True,
        # SwiftShader, which has no 64-bit integers, reads textures more slowly than buffers.
        weights_in_textures=wide and info.backend == "Vulkan",
        loads_64_bits=wide,
        max_loop_rounds=MAX_LOOP_ROUNDS,
        capture_share=CAPTURE_SHARE,
        capture_bytes=CAPTURE_BYTES,
        probe_bytes=64 << 20,
        probe_copies=True,
        steps_in_flight=SOFTWARE_IN_FLIGHT,
        submits_apart=False,
        autotunes_at_start=True,
    )
