"""Mixtures of experts in NumPy and double precision: the twins of the ops in `gpu.ops.experts`.

A pair is a row and one of the experts it was given to: pair = row · per_token + k.
"""

from __future__ import annotations

import numpy as np

from gpu.reference.ops import ACTIVATIONS, Array, Ids, rms_norm


def choose_experts(logits: Array, per_token: int, normalised: bool) -> tuple[Ids, Array]:
    """(ids, gates), each (n_rows, per_token), of logits (n_rows, n_experts): the largest first, of
    equal ones the smaller id. Gates are those of a softmax over all experts or, `normalised`, over
    those chosen."""
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, :per_token]
    masses = np.exp(logits - logits.max(axis=1, keepdims=True))
    taken = np.take_along_axis(masses, chosen, axis=1)
    gates: Array = taken / (taken if normalised else masses).sum(axis=1, keepdims=True)
    return chosen, gates


def group_pairs(chosen: Ids, tile: int) -> tuple[Ids, Ids]:
    """(order, tiles) of chosen (n_rows, per_token): pairs by expert, those of one in order; tiles
    (n, 3) of (expert, first, end) in that order, `tile` pairs at most."""
    of_pairs = chosen.reshape(-1)
    order = np.argsort(of_pairs, kind="stable")
    tiles = []
    for expert in np.unique(of_pairs):
        places = np.flatnonzero(of_pairs[order] == expert)
        for first in range(places[0], places[-1] + 1, tile):
            tiles.append((expert, first, min(first + tile, places[-1] + 1)))
    return order, np.array(tiles)


def experts(
    x: Array,
    weights: Array,
    chosen: Ids,
    *,
    gain: Array | None = None,
    eps: float = 0.0,
    bias: Array | None = None,
    activation: str | None = None,
    gated: bool = False,
    of_pairs: bool = False,
) -> Array:
    """(n_pairs, …): act([rms_norm](x) · weightᵀ [+ bias]) with weights (n_experts, n, k) of each
    pair's expert; x (n_rows, k) or, `of_pairs`, (n_pairs, k); bias (n_pairs, n). `gated` as in
    `matmul`."""
    act = ACTIVATIONS[activation] if activation else np.asarray
    x = x if of_pairs else np.repeat(x, chosen.shape[1], axis=0)
    if gain is not None:
        x = rms_norm(x, gain, eps)
    y: Array = np.einsum("pnk,pk->pn", weights[chosen.reshape(-1)], x)
    if bias is not None:
        y = y + bias
    return act(y[:, 0::2]) * y[:, 1::2] if gated else act(y)


def combine_experts(
    parts: Array,
    gates: Array,
    *,
    shared: Array | None = None,
    logit: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """[residual +] Σ gate · part over the pairs of a row [+ sigmoid(logit) · shared]; parts
    (n_pairs, width), gates (n_rows, per_token), logit (n_rows,), the others (n_rows, width)."""
    n_rows, per_token = gates.shape
    y: Array = np.einsum("rk,rkn->rn", gates, parts.reshape(n_rows, per_token, -1))
    if shared is not None and logit is not None:
        y = y + shared / (1 + np.exp(-logit))[:, None]
    return y if residual is None else residual + y
