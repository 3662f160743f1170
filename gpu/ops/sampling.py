"""Sampling: the two operations that choose a token, and the buffer between them."""

from __future__ import annotations

from gpu.errors import DeviceError
from gpu.ops.batch import Batch, expect_shape
from gpu.ops.cost import Cost, StepSize, constants_of, cost_of_kernel
from gpu.step import N_CANDIDATES
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Dispatch, Recorder

RESULT_WORDS = 12 + 4 * N_CANDIDATES
"""u32 words of a sample's result; shaders/sample.wgsl writes them."""

SLICE_LANES = 64
"""Lanes of a workgroup of shaders/logit_sort_keys.wgsl, one strip each."""

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


def sort_keys_tensor(memory: Memory, n_samples: int, vocab_size: int) -> Tensor:
    """Allocate a row of sort keys per sample; shaders/lib/sort_keys.wgsl has the layout."""
    strips = slices(vocab_size) * SLICE_LANES
    return memory.zeros(
        "sort_keys", (n_samples, strips * (4 * strip_quads(vocab_size) + STRIP_SUMMARIES)), "u32"
    )


def logit_sort_keys(
    rec: Recorder,
    batch: Batch,
    label: str,
    vocab_size: int,
    logits: Tensor,
    seen: Tensor,
    allowed: Tensor,
    sort_keys: Tensor,
) -> None:
    """Apply grammar mask, repetition penalty and temperature to each sampled row; write its sort
    keys."""
    expect_shape(allowed, (seen.shape[-1],), label)
    expect_shape(logits, (padded(vocab_size),), label)
    rec.dispatch(
        label,
        "logit_sort_keys",
        {
            "step": batch.step,
            "logits": logits,
            "seen": seen,
            "allowed": allowed,
            "sort_keys": sort_keys,
        },
        (slices(vocab_size), batch.n_samples, 1),
        {
            **_layout(vocab_size),
            "LOGIT_QUADS": padded(vocab_size) // 4,
            "SEEN_WORDS": seen.shape[-1],
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
    sort_keys: Tensor,
    seen: Tensor,
    chosen: Tensor,
    results: Tensor,
) -> None:
    """Choose the next token of each sampled row from the keys of `logit_sort_keys`."""
    expect_shape(logits, (padded(vocab_size),), label)
    expect_shape(results, (RESULT_WORDS,), label)
    rec.dispatch(
        label,
        "sample",
        {
            "step": batch.step,
            "logits": logits,
            "sort_keys": sort_keys,
            "seen": seen,
            "chosen": chosen,
            "results": results,
        },
        (batch.n_samples, 1, 1),
        {
            **_layout(vocab_size),
            "LOGIT_STRIDE": padded(vocab_size),
            "SEEN_WORDS": seen.shape[-1],
            "LANES": sample_lanes(vocab_size, rec.device.policy),
            "SUM_PARTS": rec.device.policy.sum_parts,
        },
    )


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
    for lanes in (64, policy.sample_lanes):
        if vocab_size <= 3072 * lanes:
            return lanes
    raise DeviceError(
        f"a vocabulary of {vocab_size:,} tokens needs a real GPU; software devices sample from "
        f"{3072 * policy.sample_lanes:,} at most"
    )


def _layout(vocab_size: int) -> dict[str, Number]:
    return {
        "VOCAB": vocab_size,
        "SLICES": slices(vocab_size),
        "STRIP_QUADS": strip_quads(vocab_size),
        "SLICE_LANES": SLICE_LANES,
    }
