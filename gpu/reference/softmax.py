"""Softmax and entropy in double precision, over the last dimension."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def log_softmax(logits: npt.ArrayLike) -> Doubles:
    """Return natural logarithms of the probabilities; same shape."""
    values = np.asarray(logits, np.float64)
    shifted = values - values.max(-1, keepdims=True)
    normalised: Doubles = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


def softmax(logits: npt.ArrayLike) -> Doubles:
    """Return probabilities; same shape."""
    values = np.asarray(logits, np.float64)
    shares = np.exp(values - values.max(-1, keepdims=True))
    normalised: Doubles = shares / shares.sum(-1, keepdims=True)
    return normalised


def entropy(probabilities: Doubles) -> Doubles:
    """Return Σ −p log₂ p in bits (Shannon 1948) over the last dimension; zeros add nothing."""
    logs = np.log2(probabilities, where=probabilities > 0, out=np.zeros_like(probabilities))
    summed: Doubles = -(probabilities * logs).sum(-1)
    return summed
