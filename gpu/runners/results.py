"""Parsing of the bytes that a step leaves in its readback buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.ops.layer_stats import STATS_PER_LAYER, n_stats
from gpu.ops.sampling import CANDIDATE_FIELDS, RESULT_FIELDS, RESULT_WORDS
from gpu.plans.plan_cache import RecordedPlan
from gpu.step import CUTS, N_CANDIDATES, Candidate, Captured, Floats, Sampled, Times

HEADER_WORDS = len(RESULT_FIELDS)
MASS_END = 6 + len(CUTS)
"""Word of a sample after its masses, which begin at word 6."""


def parse_samples(data: bytes, n_samples: int) -> tuple[Sampled, ...]:
    """Return the first `n_samples` samples that shaders/sample.wgsl wrote."""
    words = np.frombuffer(data, np.uint32, n_samples * RESULT_WORDS)
    words = words.reshape(n_samples, RESULT_WORDS)
    listed = words[:, HEADER_WORDS:].reshape(n_samples, N_CANDIDATES, len(CANDIDATE_FIELDS))
    numbers = listed.view(np.float32)
    columns = (
        words[:, :HEADER_WORDS].tolist(),
        words.view(np.float32)[:, :HEADER_WORDS].tolist(),
        listed[:, :, 0].tolist(),
        numbers[:, :, 1].tolist(),
        numbers[:, :, 2].tolist(),
        listed[:, :, 3].tolist(),
    )
    return tuple(map(_sampled, *columns))


def parse_sent(data: bytes, recorded: RecordedPlan, n_rows: int) -> Floats | None:
    """Return the rows for the next stage (n_rows, width); None if there is none."""
    if recorded.sent is None:
        return None
    width = recorded.sent.shape[-1]
    sent: Floats = np.frombuffer(data, np.float32, n_rows * width, recorded.sent_at)
    return sent.reshape(n_rows, width)


def _sampled(
    words: list[int],
    floats: list[float],
    ids: list[int],
    before: list[float],
    after: list[float],
    cuts: list[int],
) -> Sampled:
    """Return a sample from the words of its header, also as floats, and the columns of its
    candidates."""
    named = [CUTS[cut] for cut in cuts[: min(words[MASS_END], N_CANDIDATES)]]
    return Sampled(
        id=words[0],
        logprob=floats[1],
        probability=floats[2],
        rank=words[3],
        n_kept=words[4],
        draw=floats[5],
        mass=tuple(floats[6:MASS_END]),
        candidates=tuple(map(Candidate, ids, before, after, named)),
        allowed=floats[MASS_END + 1],
        green=floats[MASS_END + 2],
    )


def parse_captured(
    data: bytes,
    config: ModelConfig,
    bucket: int,
    n_rows: int,
    entropy_stride: int,
    routing_stride: int,
    times: Times | None,
) -> Captured:
    """Return the statistics of the first `n_rows` rows of a plan recorded for `bucket` rows.

    data   stats (bucket, 1 + 5 · n_layers), then entropy (n_layers, entropy_stride), of which the
           first bucket · n_heads floats of a layer are (bucket, n_heads); float32. Of a model with
           experts, then ids and gates (n_expert_layers, routing_stride) in the same way, uint32 and
           float32
    times  milliseconds: begin, end, then the plan's marks: after the embedding, and after each
           layer's attention and MLP; None, or only begin and end, without in-pass timestamps
    """
    n_layers, n_heads = config.n_layers, config.n_heads
    n_floats = bucket * n_stats(config)
    stats = np.frombuffer(data, np.float32, n_floats).reshape(bucket, -1)[:n_rows]
    layers = stats[:, 1:].reshape(n_rows, n_layers, STATS_PER_LAYER)
    entropy = np.frombuffer(data, np.float32, n_layers * entropy_stride, n_floats * 4)
    entropy = entropy.reshape(n_layers, entropy_stride)[:, : n_rows * n_heads]
    entropy = entropy.reshape(n_layers, n_rows, n_heads).transpose(1, 0, 2)
    chosen, gates = _routing(
        data[4 * (n_floats + n_layers * entropy_stride) :], config, n_rows, routing_stride
    )
    layer_ms = embed_ms = head_ms = None
    if times is not None and len(times) > 2:
        begin, end, *marks = times.tolist()
        layer_ms = np.diff(marks).astype(np.float32).reshape(n_layers, 2)
        embed_ms, head_ms = marks[0] - begin, end - marks[-1]
    return Captured(
        embedding=stats[:, 0].copy(),
        residual=layers[:, :, 0].copy(),
        attention=layers[:, :, 1].copy(),
        mlp=layers[:, :, 2].copy(),
        attention_cosine=layers[:, :, 3].copy(),
        mlp_cosine=layers[:, :, 4].copy(),
        entropy=entropy.copy(),
        chosen=chosen,
        gates=gates,
        expert_layers=config.expert_layers,
        layer_ms=layer_ms,
        embed_ms=embed_ms,
        head_ms=head_ms,
    )


def _routing(
    data: bytes, config: ModelConfig, n_rows: int, stride: int
) -> tuple[npt.NDArray[np.uint32] | None, Floats | None]:
    """Return ids and gates, (n_rows, n_expert_layers, experts_per_token) each."""
    experts, n_layers = config.experts, len(config.expert_layers)
    if experts is None or not n_layers:
        return None, None
    words = np.frombuffer(data, np.uint32, 2 * n_layers * stride).reshape(2, n_layers, stride)
    both = words[:, :, : n_rows * experts.experts_per_token]
    chosen, gates = both.reshape(2, n_layers, n_rows, -1).swapaxes(1, 2).copy()
    return chosen, gates.view(np.float32)
