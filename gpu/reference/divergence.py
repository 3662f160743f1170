"""Loss of logits, and the divergence between two sets of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu.reference.softmax import Doubles, log_softmax
from gpu.step import Floats


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence of logits from a reference.

    kl        mean over positions of KL(reference ‖ this) in nats
    same_top  share of positions with the same most likely token
    """

    kl: float
    same_top: float

    @classmethod
    def of(cls, reference: Floats, logits: Floats) -> Divergence:
        """Compare logits (n_positions, vocab_size) of the same positions."""
        return cls(mean_kl(reference, logits), same_top(reference, logits))

    @classmethod
    def mean(cls, parts: Sequence[tuple[int, Divergence]]) -> Divergence:
        """Combine (number of positions, divergence) of several sets of positions."""
        total = sum(n for n, _ in parts)
        return cls(
            sum(n * part.kl for n, part in parts) / total,
            sum(n * part.same_top for n, part in parts) / total,
        )

    def __str__(self) -> str:
        return f"mean KL {self.kl:.2e} nats, the same first choice at {self.same_top:.1%}"


def mean_loss(logits: Floats, ids: Sequence[int]) -> float:
    """Return the mean of −ln p(id) in nats over positions; its exponential is the perplexity.

    p is the softmax of `logits` (n_positions, vocab_size), `ids` the next token at each position.
    Computed in float64.
    """
    log_p = log_softmax(logits)
    return float(-log_p[np.arange(len(ids)), np.asarray(ids)].mean())


def mean_kl(reference: Floats, logits: Floats) -> float:
    """Return the mean over positions of `kl_of_rows`."""
    return float(kl_of_rows(reference, logits).mean())


def kl_of_rows(reference: Floats, logits: Floats) -> Doubles:
    """Return the Kullback-Leibler divergence Σ p log(p / q) of each position, in nats
    (n_positions,).

    p is the softmax of `reference` (n_positions, vocab_size), q that of `logits`. Computed in
    float64.
    """
    log_p, log_q = (log_softmax(x) for x in _pair(reference, logits))
    divergences: Doubles = (np.exp(log_p) * (log_p - log_q)).sum(1)
    return divergences


def same_top(reference: Floats, logits: Floats) -> float:
    """Return the share of positions at which both have the same most likely token."""
    reference, logits = _pair(reference, logits)
    return float((reference.argmax(1) == logits.argmax(1)).mean())


def _pair(reference: Floats, logits: Floats) -> tuple[Floats, Floats]:
    if reference.shape != logits.shape or reference.ndim != 2 or not reference.size:
        raise ValueError(
            "expected logits (n_positions, vocab_size) of the same positions, but got "
            f"{reference.shape} and {logits.shape}"
        )
    return reference, logits
