"""Answers of the fake engine to questions: deterministic, with the shapes of the real engine.
The logits are random; the analysis of them is the engine's own code."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpu import EngineInfo, InvalidRequest, SamplingParams
from gpu.inspection.beam import beam_answer
from gpu.inspection.readings import DivergenceReading, kv_reading, lens_reading
from gpu.inspection.requests import (
    Answer,
    Array,
    AttentionFrom,
    AttentionTo,
    Beam,
    CacheBlocks,
    DevicePeaks,
    Divergence,
    Embedding,
    Encode,
    EncoderAttention,
    ForwardPass,
    LogitLens,
    Losses,
    Neighbours,
    Profile,
    Question,
    Routing,
    Seq2Seq,
    StepPlan,
    Waterfall,
    WeightsDigest,
)
from gpu.inspection.waterfall import waterfall
from gpu.kv.state import KvState
from gpu.reference.softmax import entropy, log_softmax
from gpu.sampling_params import DISTRIBUTION
from gpu.step import KvVariant, Sample
from gpu.watermark.greenlist import Greenlists, WatermarkConfig
from tests.app.fake_forward import fake_forward
from tests.app.fake_plan import fake_plan

FAKE_ENCODER_HEADS = 3
OTHER_RUN = 2**32 - 1
"""Number of a run of another client, which no page started."""


def answer(question: Question, info: EngineInfo, run: int = 1) -> Answer:
    """Return the answer to a question. `run`: number of the newest run. Raises InvalidRequest as
    the real engine does."""
    _check(question, info)
    asked = msgspec.structs.replace(question, cache_salt="")
    rng = np.random.default_rng(zlib.crc32(msgspec.json.encode(asked)))
    if isinstance(question, CacheBlocks):
        return kv_reading(_kv_state(info, run))
    found = _answer(question, info, rng)
    reused = max(0, len(getattr(question, "ids", ())) - 1)
    return Answer({**found.info, "reused": reused}, found.arrays)


def _check(question: Question, info: EngineInfo) -> None:
    if isinstance(question, Encode | EncoderAttention) and info.embedding is None:
        raise InvalidRequest(
            "there is no embedding model; start the server with --embedding-model", "kind"
        )
    if isinstance(question, Seq2Seq) and info.encoder_decoder is None:
        raise InvalidRequest(
            "there is no encoder-decoder; start the server with --encoder-decoder-model", "kind"
        )
    ids = getattr(question, "ids", [0])
    if not ids or not all(0 <= id < info.model.vocab_size for id in ids):
        raise InvalidRequest(f"ids must be from 0 to {info.model.vocab_size - 1}", "ids")
    if not 0 <= getattr(question, "position", 0) < len(ids):
        raise InvalidRequest(f"position must be from 0 to {len(ids) - 1}", "position")
    if not 1 <= getattr(question, "top", 1) <= 100:
        raise InvalidRequest("top must be from 1 to 100", "top")
    for name, n in (("layer", info.model.n_layers), ("head", info.model.n_heads)):
        if not 0 <= getattr(question, name, 0) < n:
            raise InvalidRequest(f"{name} must be from 0 to {n - 1}", name)


def _answer(question: Question, info: EngineInfo, rng: np.random.Generator) -> Answer:
    vocab = info.model.vocab_size
    match question:
        case AttentionFrom(position=position):
            shares = rng.dirichlet(
                [0.3] * (position + 1), (info.model.n_layers, info.model.n_heads)
            )
            return Answer({}, (Array.of("weights", shares),))
        case AttentionTo(ids=ids, position=position):
            shape = (len(ids) - position, info.model.n_layers, info.model.n_heads)
            return Answer({}, (Array.of("weights", rng.beta(0.3, 3.0, shape)),))
        case LogitLens(chosen=chosen, top=top):
            sharper = np.linspace(0.5, 4, info.model.n_layers + 1)[:, None]
            logits = _logits(rng, info.model.n_layers + 1, vocab) * sharper.astype(np.float32)
            return lens_reading(logits, chosen, top)
        case ForwardPass():
            return fake_forward(question, info, rng)
        case Waterfall(ids=ids, position=position, params=params, index=index, top=top):
            # Independent of the settings, as with a real model, but not of interventions.
            rng = np.random.default_rng([*ids, zlib.crc32(msgspec.json.encode(question.spans))])
            logits = _logits(rng, 1, vocab)[0]
            sample = _sample(params, index)
            text = ids[: position + 1]
            green = Greenlists(vocab).green(WatermarkConfig.of(params), text)
            return waterfall(logits, text, sample, top, also=question.also, green=green)
        case Losses(ids=ids, top=top, first=first):
            return _losses(_logits(rng, len(ids) - 1 - first, vocab), ids[first + 1 :], top)
        case Divergence():
            return _divergence(question, info, rng)
        case Beam():
            return _beam(question, info)
        case Embedding(ids=ids, pooling=pooling):
            return Answer({}, (Array.of("vector", fake_vector(ids, pooling, info)),))
        case Neighbours(ids=ids, top=top):
            cosines = -np.sort(-rng.uniform(0.1, 1.0, (len(ids), top)))
            near = rng.integers(0, vocab, cosines.shape)
            return Answer({}, (Array.of("ids", near), Array.of("cosines", cosines)))
        case Encode(texts=texts):
            vectors = np.array([fake_encoded(ids, info) for ids in texts])
            return Answer({}, (Array.of("vectors", vectors),))
        case EncoderAttention(ids=ids):
            return Answer({}, (Array.of("weights", _encoder_weights(len(ids), info, rng)),))
        case Seq2Seq():
            return _seq2seq(question, info, rng)
        case StepPlan(n_rows=n_rows, context=context):
            return Answer(fake_plan(info, n_rows, context), ())
        case Profile(n_rows=n_rows, context=context):
            dispatches = fake_plan(info, n_rows, context)["dispatches"]
            ms = rng.gamma(2.0, 0.05 * n_rows, len(dispatches))
            return Answer({"dispatches": dispatches}, (Array.of("ms", ms),))
        case DevicePeaks():
            cache = {"cache_bytes": 40_000, "cache_bytes_per_s": 5e10, "bus_bytes_per_s": 0.0}
            return Answer(
                {"bytes_per_s": 2e10, "flops_per_s": 3e11, "read_bytes": 1 << 30, **cache}, ()
            )
        case WeightsDigest():
            return Answer({"sha256": "3fa9" * 16, "n_tensors": 57, "n_bytes": 1 << 20}, ())
        case Routing() if not info.model.n_experts:
            raise InvalidRequest("this model has no experts; ask one that has", "kind")
    raise AssertionError(f"no answer is made up for {question}")


def fake_vector(ids: list[int], pooling: str, info: EngineInfo) -> npt.NDArray[np.float64]:
    """Return the vector of a text: random for each text and pooling."""
    seed = [*ids, pooling == "mean"]
    return np.random.default_rng(seed).normal(0.0, 3.0, info.model.hidden_size)


def fake_encoded(ids: list[int], info: EngineInfo) -> npt.NDArray[np.float64]:
    """Return the vector of a text by the embedding model: random for each text."""
    assert info.embedding is not None
    vector = np.random.default_rng(ids).normal(size=info.embedding.hidden_size)
    return vector / np.linalg.norm(vector) if info.embedding.normalize else vector


def _encoder_weights(n: int, info: EngineInfo, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return random attention weights of a text of n tokens in the embedding model."""
    assert info.embedding is not None
    return rng.dirichlet([0.5] * n, (info.embedding.n_layers, FAKE_ENCODER_HEADS, n))


def _seq2seq(question: Seq2Seq, info: EngineInfo, rng: np.random.Generator) -> Answer:
    """Return a text of random tokens, one fewer than there is room for, and random attention."""
    model = info.encoder_decoder
    assert model is not None
    n, m = len(question.ids), max(1, min(question.max_tokens, model.max_written) - 1)
    own = np.tril(rng.beta(0.5, 2.0, (model.n_decoder_layers, model.n_heads, m, m)) + 1e-3)
    arrays = {
        "written": rng.integers(0, 256, m).astype(np.uint32),
        "probabilities": rng.uniform(0.2, 1.0, m),
        "encoder": rng.dirichlet([0.5] * n, (model.n_layers, model.n_heads, n)),
        "decoder": own / own.sum(-1, keepdims=True),
        "cross": rng.dirichlet([0.5] * n, (model.n_decoder_layers, model.n_heads, m)),
        "step_ms": rng.gamma(9.0, 1.0, m),
    }
    info_ = {"encode_ms": 12.5, "ended": m < question.max_tokens}
    return Answer(info_, tuple(Array.of(name, values) for name, values in arrays.items()))


def _kv_state(info: EngineInfo, run: int = 1) -> KvState:
    """Return a KV cache: two blocks of `run`, one of another, one that both share, two cached, the
    rest free."""
    n, size = info.limits.n_blocks, info.limits.block_tokens
    blank = [0] * (n - 6)
    return KvState(
        size,
        owners=(2, 1, 1, 1, 0, 0, *blank),
        first=(0, size, 2 * size, 3 * size, 0, size, *[-1] * (n - 6)),
        n_found=(size, size, size, 4, size, 7, *blank),
        used=(9, 8, 7, 6, 2, 1, *blank),
        tables=((run, (0, 1, 2)), (OTHER_RUN, (0, 3))),
        prompt_tokens=100,
        reused_tokens=40,
        copies=1,
        evictions=3,
        groups=(0, 1, 0, 1, 0, 1, *[-1] * (n - 6)) if info.limits.kv_groups else (),
    )


def _losses(logits: npt.NDArray[np.float32], ids: list[int], top: int) -> Answer:
    logs = log_softmax(logits)
    own = np.take_along_axis(logs, np.array(ids, int)[:, None], 1)
    best = np.argsort(-logs, axis=1, kind="stable")[:, :top]
    arrays = {
        "logprob": own[:, 0],
        "rank": (logs > own).sum(1),
        "entropy": entropy(np.exp(logs)),
        "top_ids": best,
        "top_logprobs": np.take_along_axis(logs, best, 1),
    }
    mean = -float(own.mean())
    info = {"mean_loss": mean, "perplexity": float(np.exp(mean))}
    return Answer(info, tuple(Array.of(name, values) for name, values in arrays.items()))


def _divergence(question: Divergence, info: EngineInfo, rng: np.random.Generator) -> Answer:
    n, first = len(question.ids), question.first
    kv = KvVariant(question.keys, question.values, question.window)
    windows = tuple(group.window for group in info.limits.kv_groups) or (None,)
    reading = DivergenceReading(n, first, windows, kv)
    own = _logits(rng, n - first, info.model.vocab_size)
    changed = own + rng.normal(0, 0.1, own.shape).astype(np.float32)
    shape = (2, n - first, info.model.n_layers, info.model.n_heads, n)
    seen = rng.random(shape, np.float32) * np.tri(n, dtype=np.float32)[first:, None, None]
    before, after = seen / seen.sum(-1, keepdims=True)
    reading.add((own, before), (changed, after))
    return reading.answer()


def _beam(question: Beam, info: EngineInfo) -> Answer:
    """Return the engine's own beam search over logits that are random for each text."""

    def after(ids: list[int]) -> Generator[None, None, npt.NDArray[np.float32]]:
        yield from ()
        return _logits(np.random.default_rng(ids), 1, info.model.vocab_size)

    searching = beam_answer(question, after, info.model.eos_ids, info.limits.context)
    while True:
        try:
            next(searching)
        except StopIteration as done:
            found: Answer = done.value
            return found


def _logits(rng: np.random.Generator, n: int, vocab_size: int) -> npt.NDArray[np.float32]:
    return rng.normal(0.0, 3.0, (n, vocab_size)).astype(np.float32)


def _sample(params: SamplingParams, index: int) -> Sample:
    settings: dict[str, Any] = {name: getattr(params, name) for name in DISTRIBUTION}
    return Sample(0, 0, params.seed or 0, index, logit_bias=params.logit_bias, **settings)
