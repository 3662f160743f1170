"""Which experts of a mixture matter least on a text, by REAP: router-weighted expert activation
pruning (Lasby et al. 2025, "REAP the Experts: Why Pruning Prevails for One-Shot MoE compression",
arXiv 2510.13999).

The score of an expert is the mean of gate · ‖output‖ over the tokens that it was given: how far it
moves the residual stream where it is asked at all. One that was never asked has the score 0.

Pruning takes an expert out of its layer; the router goes on over those that stay. Where gates are
shares of all experts, not divided by the sum of those chosen (`norm_topk_prob` false), the gates of
those that stay grow by the share of those that went.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.errors import InvalidRequest
from gpu.inspection import Answer, Question, Routing
from gpu.perplexity import Window

Doubles = npt.NDArray[np.float64]


class Engine(Protocol):
    """What is asked of an engine; see `gpu.engine.engine.Engine`."""

    def inspect(self, question: Question) -> Future[Answer]: ...


@dataclass(frozen=True, slots=True)
class ExpertScores:
    """Of every expert of each layer that has some: sums of gate · ‖output‖, and how many tokens it
    was given, both (n_expert_layers, n_experts)."""

    layers: tuple[int, ...]
    sums: Doubles
    counts: npt.NDArray[np.int64]

    @property
    def means(self) -> Doubles:
        """The scores; 0 for an expert that was given nothing."""
        return self.sums / np.maximum(self.counts, 1)

    def kept(self, n_dropped: int) -> dict[int, tuple[int, ...]]:
        """Of each layer those that stay when `n_dropped` of the lowest score go, in order; of equal
        ones that with the higher number goes."""
        ranked = np.argsort(-self.means, axis=1, kind="stable")
        n_kept = self.means.shape[1] - n_dropped
        return {
            layer: tuple(sorted(order[:n_kept].tolist()))
            for layer, order in zip(self.layers, ranked, strict=True)
        }


def expert_scores(
    engine: Engine,
    config: ModelConfig,
    cut: Sequence[Window],
    told: Callable[[int], None] = lambda n_tokens: None,
) -> ExpertScores:
    """Of the experts of an engine's model on a text in windows, of which every token counts.
    `told`: of the tokens done so far. Raises InvalidRequest for a model without experts."""
    layers = config.expert_layers
    sums = np.zeros((len(layers), config.experts.n if config.experts else 0))
    counts = np.zeros(sums.shape, np.int64)
    n_done = 0
    for window in cut:
        found = engine.inspect(Routing(list(window.ids))).result()
        chosen = found["chosen"]
        places = np.broadcast_to(np.arange(len(layers))[:, None], chosen.shape), chosen
        np.add.at(sums, places, found["gates"].astype(np.float64) * found["norms"])
        np.add.at(counts, places, 1)
        n_done += len(window.ids)
        told(n_done)
    return ExpertScores(layers, sums, counts)


def n_dropped(config: ModelConfig, share: float) -> int:
    """How many experts of each layer are the lowest `share` of them, rounded down. Raises
    InvalidRequest for a model without experts, a share that is less than one expert, and one that
    leaves fewer than a token is given to."""
    experts = config.experts
    if experts is None:
        raise InvalidRequest(
            f"{config.model_type} models have no experts to prune; give a mixture of experts",
            "model",
        )
    dropped = math.floor(share * experts.n + 1e-9)
    if dropped < 1:
        raise InvalidRequest(
            f"a share of {share:g} of {experts.n} experts is less than one; "
            f"give {1 / experts.n:.3g} or more",
            "share",
        )
    if experts.n - dropped < experts.per_token:
        most = (experts.n - experts.per_token) / experts.n
        less = f"give {most:.3g} or less" if most else "nothing can be pruned"
        raise InvalidRequest(
            f"a share of {share:g} would leave {experts.n - dropped} of {experts.n} experts, but "
            f"each token is given to {experts.per_token}; {less}",
            "share",
        )
    return dropped
