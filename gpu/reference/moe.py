"""Mixtures of experts in NumPy and double precision: the twins of the ops in `gpu.ops.moe` and
`gpu.ops.moe_routing`.

An assignment is a row and one of its experts: assignment = row · experts_per_token + k.
"""

from __future__ import annotations

import numpy as np

from gpu.reference.ops import Array, Epilogue, Ids, Norm, rms_norm


def moe_topk(
    logits: Array, experts_per_token: int, norm_topk_prob: bool, keeps: Array | None = None
) -> tuple[Ids, Array]:
    """Return (expert_ids, gates), each (n_rows, experts_per_token), of logits (n_rows, n_experts).

    Largest logit first, the smaller id first among equals. Gates are a softmax over all experts or,
    with `norm_topk_prob`, over the chosen ones. `keeps` (n_rows, n_experts): experts where it is 0
    are left out.
    """
    if keeps is not None:
        logits = np.where(keeps == 0, -np.inf, logits)
    expert_ids = np.argsort(-logits, axis=1, kind="stable")[:, :experts_per_token]
    masses = np.exp(logits - logits.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(masses, expert_ids, axis=1)
    gates: Array = chosen / (chosen if norm_topk_prob else masses).sum(axis=1, keepdims=True)
    return expert_ids, gates


def moe_permute(expert_ids: Ids, tile: int) -> tuple[Ids, Ids]:
    """Return (order, tiles) of expert_ids (n_rows, experts_per_token).

    order holds the assignments sorted by expert (stable). tiles (n, 3) are (expert, first, end) in
    that order, at most `tile` assignments each.
    """
    by_assignment = expert_ids.reshape(-1)
    order = np.argsort(by_assignment, kind="stable")
    tiles = []
    for expert in np.unique(by_assignment):
        places = np.flatnonzero(by_assignment[order] == expert)
        for first in range(places[0], places[-1] + 1, tile):
            tiles.append((expert, first, min(first + tile, places[-1] + 1)))
    return order, np.array(tiles)


def moe_matmul(
    x: Array,
    weights: Array,
    expert_ids: Ids,
    epilogue: Epilogue | None = None,
    *,
    norm: Norm | None = None,
    per_assignment: bool = False,
) -> Array:
    """Return epilogue([rms_norm](x) · weightᵀ) with the weight of each assignment's expert:
    (n_assignments, …).

    weights are (n_experts, n, k); x is (n_rows, k) or, with `per_assignment`, (n_assignments, k).
    """
    x = x if per_assignment else np.repeat(x, expert_ids.shape[1], axis=0)
    if norm is not None:
        x = rms_norm(x, norm.gain, norm.eps)
    y: Array = np.einsum("pnk,pk->pn", weights[expert_ids.reshape(-1)], x)
    return (epilogue or Epilogue()).apply(y)


def moe_combine(
    expert_out: Array,
    gates: Array,
    *,
    shared: Array | None = None,
    logit: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """Return [residual +] Σ gate · expert_out over a row's assignments [+ sigmoid(logit) · shared].

    expert_out is (n_assignments, width), gates (n_rows, experts_per_token), logit (n_rows,), the
    rest (n_rows, width).
    """
    n_rows, experts_per_token = gates.shape
    y: Array = np.einsum("rk,rkn->rn", gates, expert_out.reshape(n_rows, experts_per_token, -1))
    if shared is not None and logit is not None:
        y = y + shared / (1 + np.exp(-logit))[:, None]
    return y if residual is None else residual + y
