"""Answers to questions, computed from a step's results: logit lens, losses, experts, KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

from gpu.config import ModelConfig
from gpu.inspection.requests import Answer, Array
from gpu.kv.blocks import text_blocks
from gpu.kv.state import KvState
from gpu.reference.divergence import kl_of_rows
from gpu.reference.softmax import Doubles, entropy, log_softmax
from gpu.step import ExpertChoices, Floats, KvVariant


def lens_reading(logits: Floats, chosen: int, top: int) -> Answer:
    """Return the arrays of `gpu.inspection.requests.LogitLens` from `logits` (n_layers + 1,
    vocab_size) of the residual stream after the embedding and every layer."""
    logs = log_softmax(logits)
    shares = np.exp(logs)
    ids = most_likely(logs, top)
    arrays = {
        "ids": ids,
        "probabilities": np.take_along_axis(shares, ids, -1),
        "entropy": entropy(shares),
        "rank": (logs > logs[:, chosen, None]).sum(-1),
        "probability": shares[:, chosen],
    }
    return Answer({"chosen": chosen}, tuple(Array.of(n, v) for n, v in arrays.items()))


class LossReading:
    """Losses of the tokens of a text, added a piece at a time, in order."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._parts: list[dict[str, npt.NDArray[Any]]] = []

    def add(self, logits: Floats, followed_by: Sequence[int]) -> None:
        """Add `logits` (n, vocab_size) after n tokens of the text; `followed_by`: the token that
        came after each."""
        logs = log_softmax(logits)
        logprob = np.take_along_axis(logs, np.asarray(followed_by, np.intp)[:, None], -1)
        best = most_likely(logs, self._top)
        self._parts.append(
            {
                "logprob": logprob[:, 0],
                "rank": (logs > logprob).sum(-1),
                "entropy": entropy(np.exp(logs)),
                "top_ids": best,
                "top_logprobs": np.take_along_axis(logs, best, -1),
            }
        )

    def answer(self) -> Answer:
        """Return the arrays of `gpu.inspection.requests.Losses`. info: the mean loss in nats and
        its exponential, the perplexity (Jelinek et al. 1977)."""
        names = self._parts[0]
        arrays = {name: np.concatenate([part[name] for part in self._parts]) for name in names}
        mean = -float(arrays["logprob"].mean())
        info = {"mean_loss": mean, "perplexity": float(np.exp(mean))}
        return Answer(info, tuple(Array.of(n, v) for n, v in arrays.items()))


class DivergenceReading:
    """Distributions and attention in the model and in a changed one, of the tokens of a text from
    `first` on, added a piece at a time, in order. `n`: tokens of the text; `windows`: of each group
    of layers of the model."""

    def __init__(self, n: int, first: int, windows: tuple[int | None, ...], kv: KvVariant) -> None:
        self._kl: list[Doubles] = []
        self._moved: list[Doubles] = []
        self._top_ids: list[npt.NDArray[np.intp]] = []
        self._received = np.zeros((2, n))
        changed = tuple(kv.window_of(window) for window in windows)
        self._blocks = [
            [sum(text_blocks(window, i + 1) for window in each) for i in range(first, n)]
            for each in (windows, changed)
        ]

    def add(self, own: tuple[Floats, Floats], changed: tuple[Floats, Floats]) -> None:
        """Add the next tokens: logits (n_rows, vocab_size) and attention weights (n_rows, n_layers,
        n_heads, n_keys), n_keys tokens up to the last of them, of both models."""
        self._kl.append(kl_of_rows(own[0], changed[0]))
        self._top_ids.append(np.stack([logits.argmax(1) for logits, _ in (own, changed)]))
        before, after = (weights.astype(np.float64) for _, weights in (own, changed))
        self._moved.append(np.abs(after - before).sum(-1).mean((1, 2)) / 2)
        received = [weights.mean((1, 2)).sum(0) for weights in (before, after)]
        self._received[:, : before.shape[-1]] += received

    def answer(self) -> Answer:
        """Return the arrays of `gpu.inspection.requests.Divergence`."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "kl": np.concatenate(self._kl),
            "top_ids": np.concatenate(self._top_ids, axis=1),
            "moved": np.concatenate(self._moved),
            "received": self._received,
            "blocks": np.array(self._blocks, np.uint32),
        }
        return Answer({}, tuple(Array.of(n, v) for n, v in arrays.items()))


class EffectReading:
    """Effect of interventions on the predictions of a text, added a piece at a time, in order."""

    def __init__(self) -> None:
        self._parts: list[tuple[Doubles, npt.NDArray[np.bool_], Doubles]] = []

    def add(self, reference: Floats, logits: Floats, followed_by: Sequence[int]) -> None:
        """Add logits (n, vocab_size) after n tokens; `followed_by`: the token that came after each,
        one fewer at the end of the text."""
        both = np.stack([log_softmax(reference), log_softmax(logits)])
        rows = np.arange(len(followed_by))
        logprobs = both[:, rows, np.asarray(followed_by, np.intp)]
        self._parts.append((kl_of_rows(reference, logits), np.equal(*both.argmax(-1)), logprobs))

    def answer(self) -> Answer:
        """Return the arrays of `gpu.inspection.requests.InterventionEffect`; no info."""
        kl, same_top, logprobs = zip(*self._parts, strict=True)
        arrays = {
            "kl": np.concatenate(kl),
            "same_top": np.concatenate(same_top).astype(np.uint32),
            "logprobs": np.concatenate(logprobs, -1),
        }
        return Answer({}, tuple(Array.of(n, v) for n, v in arrays.items()))


def expert_reading(parts: Sequence[ExpertChoices], config: ModelConfig) -> Answer:
    """Join the expert choices of a text's pieces; arrays and info as
    `gpu.inspection.requests.Routing`."""
    assert config.experts is not None
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("chosen", "gates", "norms")
    }
    info = {"layers": list(config.expert_layers), "n_experts": config.experts.n_experts}
    return Answer(info, tuple(Array.of(n, v) for n, v in arrays.items()))


def kv_reading(state: KvState) -> Answer:
    """Return the arrays and info of `gpu.inspection.requests.CacheBlocks`."""
    info = asdict(state)
    tables = info.pop("tables")
    blocks = [block for _, own in tables for block in own]
    arrays = {name: np.array(info.pop(name)) for name in ("owners", "n_found", "used", "first")}
    arrays["first"] = arrays["first"].astype(np.float32)
    if groups := info.pop("groups"):
        arrays["group"] = np.array(groups, np.float32)
    arrays["runs"] = np.array([run for run, _ in tables], np.uint32)
    arrays["n_run_blocks"] = np.array([len(own) for _, own in tables], np.uint32)
    arrays["run_blocks"] = np.array(blocks, np.uint32)
    return Answer(info, tuple(Array.of(n, v) for n, v in arrays.items()))


def most_likely(values: Doubles, top: int) -> npt.NDArray[np.intp]:
    """Return the indices of the largest values of each row, (…, top), largest first, ties by
    index."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :top]
