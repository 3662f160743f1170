"""Expert scores of a mixture-of-experts model on a text by REAP: router-weighted expert activation
pruning (Lasby et al. 2025, "REAP the Experts: Why Pruning Prevails for One-Shot MoE compression",
arXiv 2510.13999).

The score of an expert is the mean of gate · ‖output‖ over the tokens routed to it: how far it moves
the residual stream when it is used. An expert that is never used has the score 0.

Pruning removes an expert from its layer; the router continues over the remaining ones. If gates are
shares of all experts, not normalised over the chosen ones (`norm_topk_prob` false), the gates of
the remaining experts grow by the share of the pruned ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpu.analysis.perplexity import TextSpan
from gpu.config import ModelConfig
from gpu.errors import InvalidRequest
from gpu.inspection.requests import Answer, Question, Routing

Doubles = npt.NDArray[np.float64]


class Engine(Protocol):
    """Interface of the engine; see `gpu.engine.engine.Engine`."""

    def inspect(self, question: Question) -> Future[Answer]: ...


@dataclass(frozen=True, slots=True)
class ExpertScores:
    """Sums of gate · ‖output‖ and token counts of every expert, both (n_expert_layers,
    n_experts)."""

    layers: tuple[int, ...]
    sums: Doubles
    counts: npt.NDArray[np.int64]

    @property
    def means(self) -> Doubles:
        """Scores; 0 for an expert without tokens."""
        return self.sums / np.maximum(self.counts, 1)

    def kept(self, n_dropped: int) -> dict[int, tuple[int, ...]]:
        """Return the remaining experts of each layer, in order, after dropping the `n_dropped` with
        the lowest scores; of equal scores the higher number is dropped."""
        ranked = np.argsort(-self.means, axis=1, kind="stable")
        n_kept = self.means.shape[1] - n_dropped
        return {
            layer: tuple(sorted(order[:n_kept].tolist()))
            for layer, order in zip(self.layers, ranked, strict=True)
        }


def expert_scores(
    engine: Engine,
    config: ModelConfig,
    spans: Sequence[TextSpan],
    on_progress: Callable[[int], None] = lambda n_tokens: None,
) -> ExpertScores:
    """Return the scores of a model's experts on the spans of a text; every token counts.

    `on_progress`: called with the number of tokens done so far. Raises InvalidRequest for a model
    without experts.
    """
    layers = config.expert_layers
    sums = np.zeros((len(layers), config.experts.n_experts if config.experts else 0))
    counts = np.zeros(sums.shape, np.int64)
    n_done = 0
    for span in spans:
        found = engine.inspect(Routing(list(span.ids))).result()
        chosen = found["chosen"]
        places = np.broadcast_to(np.arange(len(layers))[:, None], chosen.shape), chosen
        np.add.at(sums, places, found["gates"].astype(np.float64) * found["norms"])
        np.add.at(counts, places, 1)
        n_done += len(span.ids)
        on_progress(n_done)
    return ExpertScores(layers, sums, counts)


def n_dropped(config: ModelConfig, share: float) -> int:
    """Return how many experts are the lowest `share` of each layer, rounded down.

    Raises InvalidRequest for a model without experts, a share of less than one expert, and a share
    that leaves fewer experts than each token uses.
    """
    experts = config.experts
    if experts is None:
        raise InvalidRequest(
            f"{config.model_type} models have no experts to prune; use a mixture-of-experts model",
            "model",
        )
    dropped = math.floor(share * experts.n_experts + 1e-9)
    if dropped < 1:
        raise InvalidRequest(
            f"a share of {share:g} of {experts.n_experts} experts is less than one; "
            f"use {1 / experts.n_experts:.3g} or more",
            "share",
        )
    if experts.n_experts - dropped < experts.experts_per_token:
        most = (experts.n_experts - experts.experts_per_token) / experts.n_experts
        less = f"use {most:.3g} or less" if most else "nothing can be pruned"
        raise InvalidRequest(
            f"a share of {share:g} would leave {experts.n_experts - dropped} of "
            f"{experts.n_experts} experts, but each token uses {experts.experts_per_token}; {less}",
            "share",
        )
    return dropped
