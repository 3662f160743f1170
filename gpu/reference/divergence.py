"""How far one set of logits is from another, as distributions over the next token."""

from __future__ import annotations

import numpy as np

from gpu.reference.softmax import log_softmax
from gpu.step import Floats


def mean_kl(reference: Floats, logits: Floats) -> float:
    """Kullback-Leibler divergence Σ p log(p / q) in nats, the mean over positions; p is the softmax
    of `reference` (n_positions, vocab_size), q that of `logits`. Computed in float64."""
    log_p, log_q = (log_softmax(x) for x in _pair(reference, logits))
    return float((np.exp(log_p) * (log_p - log_q)).sum(1).mean())


def same_top(reference: Floats, logits: Floats) -> float:
    """The share of positions at which both have the same most likely token."""
    reference, logits = _pair(reference, logits)
    return float((reference.argmax(1) == logits.argmax(1)).mean())


def _pair(reference: Floats, logits: Floats) -> tuple[Floats, Floats]:
    if reference.shape != logits.shape or reference.ndim != 2 or not reference.size:
        raise ValueError(
            "both should be logits (n_positions, vocab_size) of the same positions, but are "
            f"{reference.shape} and {logits.shape}"
        )
    return reference, logits
