"""Sampling in two operations, and their buffers.

`logit_sort_keys` applies grammar bitmask, biases, penalties and temperature (logits processors in
other engines); `sample` applies `top_k`, `top_p` and `min_p`, and draws. A watermark
takes two more: `watermark_keys` adds its bias to the survivors, and `sample` draws again. If its
seeding scheme is selfhash, `selfhash_greenlist` finds the green tokens before.
`gpu.sampling_params` declares these settings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpu.errors import DeviceError
from gpu.ops.batch import Batch, expect_shape
from gpu.ops.cost import Cost, StepSize, constants_of, cost_of_kernel
from gpu.ops.step_buffer import Fields
from gpu.sampling_params import MAX_HASHED, MAX_LOGIT_BIASES, TokenBias
from gpu.step import CUTS, MAX_TIMES_WRITTEN, N_CANDIDATES, N_RANKED, Selfhash
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Dispatch, Recorder

RESULT_FIELDS: Fields = (
    ("id", "u32"), ("logprob", "f32"), ("probability", "f32"), ("rank", "u32"), ("n_kept", "u32"),
    ("draw", "f32"), ("mass_kept", "f32"), *((f"mass_cut_{name}", "f32") for name in CUTS[1:]),
    ("n_candidates", "u32"), ("allowed", "f32"), ("green", "f32"),
)  # fmt: skip
"""Words of a sample's result, before its candidates (`gpu.step.Sampled`); shaders/sample.wgsl
writes them."""
CANDIDATE_FIELDS: Fields = (("id", "u32"), ("before", "f32"), ("after", "f32"), ("cut", "u32"))
"""Words of a candidate; `cut`: index into `gpu.step.CUTS`."""
RESULT_WORDS = len(RESULT_FIELDS) + len(CANDIDATE_FIELDS) * N_CANDIDATES

CAPACITY = 256
"""Tokens that shaders/lib/sampler_buffer.wgsl sorts at once."""
LEAST_LANES, USUAL_LANES = 8, 64
"""Lanes of shaders/sample.wgsl on a device that limits loops. A software device runs eight at a
time, and every such group walks through all branches of the shader, taken or not."""
LANE_TOKENS = 768
"""Most tokens of a lane with fewer than `USUAL_LANES`: sums of more would be less exact."""
SLICE_LANES = 64
"""Lanes of a workgroup of shaders/logit_sort_keys.wgsl, one strip each."""

N_BINS = 256
"""Bins of a row's tokens in shaders/lib/sampler_bins.wgsl."""
GROUP_QUADS = 1000
"""Quads of tokens that one workgroup sorts into bins. Masses of 1,023 quads fit 32 bits; with fewer
quads there would be more workgroups, each of which reads the counts of all."""
MOST_BINNED = 500_000
"""Largest vocabulary that is sorted into bins: in the sampler's workgroup, 128 lanes may have to
add up the masses of all tokens in 32 bits each."""

MAX_STRIP_QUADS = 8
SORT_KEY_FLOPS = 8
"""Per token: penalty, temperature, and for raw and scaled logits a difference, exp and sum."""
STRIP_FLOPS = 4
STRIP_SUMMARIES = 5
"""u32 words that summarise a strip in shaders/lib/sort_keys.wgsl."""
SUMMARY_BYTES = 16
"""Bytes of those that are used without a grammar."""


def strip_quads(vocab_size: int) -> int:
    """Return the groups of four tokens in a strip: a power of two that gives at least a thousand
    strips, so that the most likely tokens are in few of them."""
    quads = 1
    while quads < MAX_STRIP_QUADS and 8 * quads * 1024 <= vocab_size:
        quads *= 2
    return quads


def slices(vocab_size: int) -> int:
    """Return how many slices cover the vocabulary."""
    return -(-vocab_size // (4 * SLICE_LANES * strip_quads(vocab_size)))


def bin_groups(vocab_size: int, policy: DevicePolicy) -> int:
    """Return how many workgroups sort the tokens of a row into bins; 0: none do, and the row's one
    workgroup walks over all of them."""
    if policy.bins_from is None or not policy.bins_from <= vocab_size <= MOST_BINNED:
        return 0
    return -(-_token_quads(vocab_size) // GROUP_QUADS)


@dataclass(frozen=True, slots=True)
class SortKeys:
    """Tensors between the kernels of the sampler, with a row for each sample.

    keys  sort keys of the vocabulary, in the layout of shaders/lib/sort_keys.wgsl
    bins  its tokens by logit, in the layout of shaders/lib/sampler_bins.wgsl; None: they are not
          sorted into bins
    """

    keys: Tensor
    bins: Tensor | None

    @classmethod
    def make(cls, memory: Memory, n_samples: int, vocab_size: int) -> SortKeys:
        strips, quads = slices(vocab_size) * SLICE_LANES, _token_quads(vocab_size)
        words = 4 * quads + STRIP_SUMMARIES * strips
        keys = memory.zeros("sort_keys", (n_samples, words), "u32")
        groups = bin_groups(vocab_size, memory.device.policy)
        if not groups:
            return cls(keys, None)
        words = 2 * groups * N_BINS + 4 * (2 * N_BINS + quads)
        return cls(keys, memory.zeros("bins", (n_samples, words), "u32"))


@dataclass(frozen=True, slots=True)
class SlotTexts:
    """Tensors that penalties and biases read, with a row for each slot.

    seen    (n_slots, vocab_size / 32) u32  bit set: the token is in the context
    counts  (n_slots, vocab_size / 2) u32   16 bits for each token: how often the run wrote it
    biases  (n_slots, 2 · 300) u32          id and number (f32) of each biased token, by rising id
    """

    seen: Tensor
    counts: Tensor
    biases: Tensor

    @classmethod
    def make(cls, memory: Memory, n_slots: int, vocab_size: int) -> SlotTexts:
        quads = -(-vocab_size // 4)
        return cls(
            memory.zeros("seen", (n_slots, -(-vocab_size // 32)), "u32"),
            memory.zeros("counts", (n_slots, 2 * quads), "u32"),
            memory.zeros("biases", (n_slots, 2 * MAX_LOGIT_BIASES), "u32"),
        )

    def set_text(
        self, memory: Memory, slot: int, ids: npt.NDArray[np.uint32], n_written: int
    ) -> None:
        """Set the context of a slot, of which its run wrote the last `n_written` ids."""
        bits = np.zeros(self.seen.shape[1] * 32, np.uint8)
        bits[ids] = 1
        counts = np.zeros(self.counts.shape[1] * 2, np.uint16)
        written, times = np.unique(ids[len(ids) - n_written :], return_counts=True)
        counts[written] = np.minimum(times, MAX_TIMES_WRITTEN)
        _write_row(memory, self.seen, slot, np.packbits(bits, bitorder="little").view(np.uint32))
        _write_row(memory, self.counts, slot, counts.view(np.uint32))

    def set_biases(self, memory: Memory, slot: int, biases: Collection[TokenBias]) -> None:
        """Set the biases of a slot. Samples say how many of them act."""
        entries = np.empty((len(biases), 2), np.uint32)
        for i, (id, bias) in enumerate(sorted((each.id, each.bias) for each in biases)):
            entries[i] = id, np.float32(bias).view(np.uint32)
        _write_row(memory, self.biases, slot, entries)


def _write_row(memory: Memory, tensor: Tensor, row: int, words: npt.NDArray[np.uint32]) -> None:
    """Write to the beginning of a row of `tensor`, which has a row for each slot."""
    memory.write(tensor, words, at=4 * row * tensor.shape[1])


def logit_sort_keys(
    rec: Recorder,
    batch: Batch,
    label: str,
    vocab_size: int,
    logits: Tensor,
    texts: SlotTexts,
    allowed: Tensor,
    sort_keys: SortKeys,
) -> None:
    """Apply grammar mask, biases, penalties and temperature to each sampled row; write its sort
    keys."""
    expect_shape(allowed, (texts.seen.shape[-1],), label)
    expect_shape(logits, (padded(vocab_size),), label)
    rec.dispatch(
        label,
        "logit_sort_keys",
        {
            "step": batch.step,
            "logits": logits,
            "seen": texts.seen,
            "allowed": allowed,
            "counts": texts.counts,
            "biases": texts.biases,
            "sort_keys": sort_keys.keys,
        },
        (slices(vocab_size), batch.n_samples, 1),
        {
            "VOCAB": vocab_size,
            **_layout(vocab_size),
            "LOGIT_QUADS": padded(vocab_size) // 4,
            "SEEN_WORDS": texts.seen.shape[-1],
            "COUNT_QUADS": texts.counts.shape[-1] // 2,
            "BIASES": MAX_LOGIT_BIASES,
        },
    )


@cost_of_kernel("logit_sort_keys")
def logit_sort_keys_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 8 per token of the vocabulary. Bytes: logits, seen, sort keys written."""
    c, row = constants_of(dispatch), dispatch.tensors["sort_keys"].shape[-1]
    n_bytes = 4 * (c["VOCAB"] + c["SEEN_WORDS"] + row)
    return Cost(size.n_samples * SORT_KEY_FLOPS * c["VOCAB"], size.n_samples * n_bytes)


def sample(
    rec: Recorder,
    batch: Batch,
    label: str,
    vocab_size: int,
    logits: Tensor,
    sort_keys: SortKeys,
    texts: SlotTexts,
    chosen: Tensor,
    results: Tensor,
    *,
    watermarked: bool = False,
    ranked: Tensor | None = None,
) -> None:
    """Choose the next token of each sampled row from the keys of `logit_sort_keys`. If they have
    bins, their tokens are sorted into these before. `watermarked`: choose again for rows with a
    watermark, after `watermark_keys`. `ranked` (samples, N_RANKED): where ids of the most likely
    tokens are written, for `selfhash_greenlist`."""
    expect_shape(logits, (padded(vocab_size),), label)
    expect_shape(results, (RESULT_WORDS,), label)
    lanes = sample_lanes(vocab_size, rec.device.policy)
    bins = {} if sort_keys.bins is None else {"bins": sort_keys.bins}
    if bins:
        logit_histogram(rec, batch, f"{label}.histogram", vocab_size, sort_keys)
        logit_scatter(rec, batch, f"{label}.scatter", vocab_size, sort_keys)
    rec.dispatch(
        label,
        "sample",
        {
            "step": batch.step,
            "logits": logits,
            "sort_keys": sort_keys.keys,
            "seen": texts.seen,
            "counts": texts.counts,
            "chosen": chosen,
            "results": results,
            "ranked": ranked,
            **bins,
        },
        (batch.n_samples, 1, 1),
        {
            "VOCAB": vocab_size,
            **_layout(vocab_size),
            **({"GROUPS": bin_groups(vocab_size, rec.device.policy)} if bins else {}),
            "LOGIT_STRIDE": padded(vocab_size),
            "SEEN_WORDS": texts.seen.shape[-1],
            "COUNT_WORDS": texts.counts.shape[-1],
            "LANES": lanes,
            "SUM_PARTS": rec.device.policy.sum_parts,
            **({"WATERMARKED": True} if watermarked else {}),
            **({"RANKED": True} if ranked is not None else {}),
        },
        {"const SORT_QUADS": f"{max(1, CAPACITY // (4 * lanes))}u"},
        {"sampler_row": "sampler_row_binned"} if bins else None,
    )


@dataclass(frozen=True, slots=True)
class SelfhashTensors:
    """Tensors of the seeding scheme selfhash.

    ranked    (samples, N_RANKED) u32: ids of the most likely tokens
    hashes    (n_slots, vocab_size) u32, see `gpu.step.Selfhash`
    products  (n_slots, 1 + MAX_HASHED, 2) u32: n_green and 0, then the products, low word first
    """

    ranked: Tensor
    hashes: Tensor
    products: Tensor
    _held: dict[int, npt.NDArray[np.uint32]] = field(default_factory=dict)

    @classmethod
    def make(cls, memory: Memory, n_samples: int, n_slots: int, vocab_size: int) -> SelfhashTensors:
        return cls(
            memory.zeros("selfhash.ranked", (n_samples, N_RANKED), "u32"),
            memory.zeros("selfhash.hashes", (n_slots, vocab_size), "u32"),
            memory.zeros("selfhash.products", (n_slots, 1 + MAX_HASHED, 2), "u32"),
        )

    def set(self, memory: Memory, slot: int, selfhash: Selfhash) -> None:
        """Write the numbers of a slot, the hashes only if they change."""
        words = np.array([selfhash.n_green, *selfhash.products.tolist()], np.uint64)
        memory.write(self.products, words.view(np.uint32), at=slot * 8 * (1 + MAX_HASHED))
        held = self._held.get(slot)
        if held is None or not np.array_equal(held, selfhash.hashes):
            memory.write(self.hashes, selfhash.hashes, at=slot * 4 * self.hashes.shape[1])
            self._held[slot] = selfhash.hashes


def selfhash_greenlist(
    rec: Recorder,
    batch: Batch,
    label: str,
    vocab_size: int,
    tensors: SelfhashTensors,
    greenlist: Tensor,
) -> None:
    """Set the bits of the tokens of `tensors.ranked` that are green, of rows whose watermark has
    the seeding scheme selfhash; `greenlist` (n_slots, ⌈vocab_size / 32⌉) is 0 there before."""
    expect_shape(tensors.hashes, (vocab_size,), label)
    rec.dispatch(
        label,
        "selfhash_greenlist",
        {
            "step": batch.step,
            "ranked": tensors.ranked,
            "hashes": tensors.hashes,
            "products": tensors.products,
            "greenlist": greenlist,
        },
        (N_RANKED, batch.n_samples, 1),
        {
            "VOCAB": vocab_size,
            "GREEN_WORDS": greenlist.shape[-1],
            "PRODUCTS": 1 + MAX_HASHED,
            "LANES": rec.device.policy.row_lanes,
        },
    )


@cost_of_kernel("selfhash_greenlist")
def selfhash_greenlist_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 30 for each ranked token and token of its greenlist, here a quarter of the
    vocabulary. Bytes: ids, hashes and products of the ranked tokens, a bit each."""
    n_ranked = size.n_samples * N_RANKED
    return Cost(n_ranked * 30 * constants_of(dispatch)["VOCAB"] // 4, n_ranked * 16)


def watermark_keys(
    rec: Recorder,
    batch: Batch,
    label: str,
    vocab_size: int,
    greenlist: Tensor,
    results: Tensor,
    sort_keys: SortKeys,
) -> None:
    """Add the bias of a watermark to the keys of the green tokens that `sample` let survive, in
    rows that have one; for `sample` to choose again."""
    expect_shape(results, (RESULT_WORDS,), label)
    rec.dispatch(
        label,
        "watermark_keys",
        {
            "step": batch.step,
            "greenlist": greenlist,
            "results": results,
            "sort_keys": sort_keys.keys,
        },
        (slices(vocab_size), batch.n_samples, 1),
        {
            **_layout(vocab_size),
            "GREEN_WORDS": greenlist.shape[-1],
            "RESULT_WORDS": RESULT_WORDS,
            "FLOOR_WORD": len(RESULT_FIELDS) - 1,
        },
    )


@cost_of_kernel("watermark_keys")
def watermark_keys_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 8 per token. Bytes: sort keys read and written, the greenlist."""
    c, row = constants_of(dispatch), dispatch.tensors["sort_keys"].shape[-1]
    n_tokens = 4 * c["SLICES"] * c["SLICE_LANES"] * c["STRIP_QUADS"]
    n_bytes = 4 * (2 * row + c["GREEN_WORDS"])
    return Cost(size.n_samples * SORT_KEY_FLOPS * n_tokens, size.n_samples * n_bytes)


def logit_histogram(
    rec: Recorder, batch: Batch, label: str, vocab_size: int, sort_keys: SortKeys
) -> None:
    """Count the tokens of each sampled row in bins of logits, and add up their masses."""
    _dispatch_bins(rec, batch, label, "logit_histogram", vocab_size, sort_keys)


def logit_scatter(
    rec: Recorder, batch: Batch, label: str, vocab_size: int, sort_keys: SortKeys
) -> None:
    """List the tokens of each sampled row by bin, after `logit_histogram`."""
    _dispatch_bins(rec, batch, label, "logit_scatter", vocab_size, sort_keys)


def _dispatch_bins(
    rec: Recorder, batch: Batch, label: str, shader: str, vocab_size: int, sort_keys: SortKeys
) -> None:
    groups = bin_groups(vocab_size, rec.device.policy)
    assert sort_keys.bins is not None
    tensors = {"step": batch.step, "sort_keys": sort_keys.keys, "bins": sort_keys.bins}
    layout = {**_layout(vocab_size), "GROUPS": groups, "GROUP_QUADS": GROUP_QUADS, "LANES": N_BINS}
    rec.dispatch(label, shader, tensors, (groups, batch.n_samples, 1), layout)


@cost_of_kernel("logit_histogram")
@cost_of_kernel("logit_scatter")
def bins_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 4 per token. Bytes: sort keys, and what is written of the bins: counts, or ids
    and spans."""
    c = constants_of(dispatch)
    n_tokens, n_counts = 4 * c["SLICES"] * c["SLICE_LANES"] * c["STRIP_QUADS"], c["GROUPS"] * N_BINS
    counts = 8 * n_counts * size.n_samples
    written = 0 if dispatch.kernel.name == "logit_histogram" else 4 * (n_tokens + 4 * N_BINS)
    n_bytes = size.n_samples * (4 * n_tokens + written) + counts
    return Cost(size.n_samples * STRIP_FLOPS * n_tokens, n_bytes)


@cost_of_kernel("sample")
def sample_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 4 per strip of the vocabulary. Bytes: summaries of the strips, results. Strips
    that are searched key by key depend on the logits and are left out."""
    c, results = constants_of(dispatch), dispatch.tensors["results"]
    strips = c["SLICES"] * c["SLICE_LANES"]
    n_bytes = SUMMARY_BYTES * strips + 4 * results.shape[-1]
    return Cost(size.n_samples * STRIP_FLOPS * strips, size.n_samples * n_bytes)


def sample_lanes(vocab_size: int, policy: DevicePolicy) -> int:
    """Return the lanes over the vocabulary: `policy.sample_lanes`, or fewer where the device limits
    loops and they are enough.

    With a limit of 65,535 rounds 3072 tokens per lane are safe: at worst the sampler walks a lane's
    tokens 54 times, four per round, and makes 112 sums over the lanes. Raises DeviceError if the
    vocabulary needs more lanes than there are.
    """
    if policy.max_loop_rounds is None:
        return policy.sample_lanes
    lanes = LEAST_LANES
    while lanes < USUAL_LANES and vocab_size > LANE_TOKENS * lanes:
        lanes *= 2
    for enough in (lanes, policy.sample_lanes):
        if vocab_size <= 3072 * enough:
            return enough
    raise DeviceError(
        f"a vocabulary of {vocab_size:,} tokens needs a real GPU; software devices sample from "
        f"{3072 * policy.sample_lanes:,} at most"
    )


def _token_quads(vocab_size: int) -> int:
    """Return the groups of four tokens in a row of sort keys."""
    return slices(vocab_size) * SLICE_LANES * strip_quads(vocab_size)


def _layout(vocab_size: int) -> dict[str, Number]:
    return {
        "SLICES": slices(vocab_size),
        "STRIP_QUADS": strip_quads(vocab_size),
        "SLICE_LANES": SLICE_LANES,
    }
