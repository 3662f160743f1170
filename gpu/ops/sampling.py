"""The two operations that choose a token, and the buffer between them."""

from __future__ import annotations

from gpu.errors import DeviceError
from gpu.ops.batch import Batch, expect_shape
from gpu.step import N_CANDIDATES
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Recorder

RESULT_WORDS = 12 + 4 * N_CANDIDATES
"""u32 words the sampler reports for each sample; shaders/sample.wgsl writes them."""

SLICE_LANES = 64
"""Lanes of a workgroup of shaders/sample_keys.wgsl, and strips of a slice."""

MAX_STRIP_QUADS = 8
MAX_LANES = 128


def strip_quads(vocab_size: int) -> int:
    """Groups of four tokens in a strip: a power of two that leaves a thousand strips or more, so
    that the strips of the most likely tokens are few of all."""
    quads = 1
    while quads < MAX_STRIP_QUADS and 8 * quads * 1024 <= vocab_size:
        quads *= 2
    return quads


def slices(vocab_size: int) -> int:
    """Slices that cover the vocabulary."""
    return -(-vocab_size // (4 * SLICE_LANES * strip_quads(vocab_size)))


def keys_tensor(memory: Memory, n_samples: int, vocab_size: int) -> Tensor:
    """Room for the rows of keys that shaders/lib/keys.wgsl describes."""
    strips = slices(vocab_size) * SLICE_LANES
    return memory.zeros("keys", (n_samples, 4 * strips * (strip_quads(vocab_size) + 1)), "u32")


def sample_keys(
    rec: Recorder,
    batch: Batch,
    label: str,
    vocab_size: int,
    logits: Tensor,
    seen: Tensor,
    keys: Tensor,
) -> None:
    """Scale each sampled row by penalty and temperature; leave its keys and their summaries."""
    expect_shape(logits, (padded(vocab_size),), label)
    rec.dispatch(
        label,
        "sample_keys",
        {"step": batch.step, "logits": logits, "seen": seen, "keys": keys},
        (slices(vocab_size), batch.n_samples, 1),
        {
            **_layout(vocab_size),
            "LOGIT_QUADS": padded(vocab_size) // 4,
            "SEEN_WORDS": seen.shape[-1],
        },
    )


def sample(
    rec: Recorder,
    batch: Batch,
    label: str,
    vocab_size: int,
    logits: Tensor,
    keys: Tensor,
    seen: Tensor,
    chosen: Tensor,
    results: Tensor,
) -> None:
    """Choose the token that follows each sampled row, of the keys that `sample_keys` left."""
    expect_shape(logits, (padded(vocab_size),), label)
    expect_shape(results, (RESULT_WORDS,), label)
    rec.dispatch(
        label,
        "sample",
        {
            "step": batch.step,
            "logits": logits,
            "keys": keys,
            "seen": seen,
            "chosen": chosen,
            "results": results,
        },
        (batch.n_samples, 1, 1),
        {
            **_layout(vocab_size),
            "LOGIT_STRIDE": padded(vocab_size),
            "SEEN_WORDS": seen.shape[-1],
            "LANES": sample_lanes(vocab_size, rec.device.info.software),
        },
    )


def sample_lanes(vocab_size: int, software: bool) -> int:
    """Lanes over the vocabulary: on a real GPU as many as workgroup memory holds.

    Mesa's software device ends all loops of a shader after 65,535 rounds in all, without a word.
    At worst the sampler walks a lane's share 54 times, four tokens a round, and makes 112 sums over
    the lanes, so 3072 tokens are safe. Raises DeviceError when a software device would need more
    lanes than that.
    """
    if not software:
        return MAX_LANES
    for lanes in (64, MAX_LANES):
        if vocab_size <= 3072 * lanes:
            return lanes
    raise DeviceError(
        f"a vocabulary of {vocab_size:,} tokens needs a real GPU; software devices sample from "
        f"{3072 * MAX_LANES:,} at most"
    )


def _layout(vocab_size: int) -> dict[str, Number]:
    return {
        "VOCAB": vocab_size,
        "SLICES": slices(vocab_size),
        "STRIP_QUADS": strip_quads(vocab_size),
        "SLICE_LANES": SLICE_LANES,
    }
