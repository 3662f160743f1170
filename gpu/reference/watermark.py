"""Greenlists of a watermark in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu.step import N_RANKED, Selfhash


def selfhash_greenlist(ranked: npt.ArrayLike, selfhash: Selfhash) -> npt.NDArray[np.bool_]:
    """Return which tokens (vocab_size,) are green among the first `N_RANKED` of `ranked`, each by a
    seed of its own: the twin of shaders/selfhash_greenlist.wgsl.

    The seed is the smallest of the products times the token's own hash, as signed numbers of 64
    bits, modulo 2⁶⁴ − 1. It shuffles the vocabulary (Fisher–Yates with MT19937, as
    `torch.randperm`), and the first `n_green` tokens are green.
    """
    green = np.zeros(len(selfhash.hashes), np.bool_)
    for id in np.asarray(ranked)[:N_RANKED].tolist():
        own = int(selfhash.hashes[id])
        key, *others = selfhash.products.tolist()
        seed = min(_signed(product * own) for product in (key * own, *others)) % (2**64 - 1)
        green[id] = _is_first(id, len(green), selfhash.n_green, seed & 0xFFFFFFFF)
    return green


def _signed(number: int) -> int:
    """Return the lowest 64 bits as a signed number."""
    return (number + 2**63) % 2**64 - 2**63


def _is_first(number: int, n: int, n_first: int, seed: int) -> bool:
    """Return whether `number` is among the first `n_first` of 0 … n − 1, shuffled."""
    steps = np.arange(n_first)
    draws = np.random.RandomState(seed).randint(0, 2**32, n_first, np.uint32)
    partners, place, step = steps + draws % (n - steps), number, 0
    while True:
        if (partners[step:place] == place).any():
            return True  # an earlier step brings it to the front, where it stays
        if place >= n_first:
            return False
        place, step = int(partners[place]), place + 1
        if place < step:
            return True
