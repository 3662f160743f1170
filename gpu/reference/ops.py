"""Every op in NumPy and double precision: what the shader of the same name should compute.

Written from the formulas, not from the shaders: no padding, no shards, no tiles, no online sums.
The sampler's twin is `gpu.reference.sampler`. Rows of a step are given as arrays, one entry for
each row: `slots` and `positions`. A cache is [n_blocks][n_kv_heads][block_tokens][head_dim], as in
`gpu.kv.pools`, and `tables[slot]` names the blocks of a slot's sequence in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

FROM_GPU = -1


def embed(table: Array, tokens: Ids, slots: Ids, chosen: Ids) -> Array:
    """(n_rows, k): rows of `table` (vocab_size, k); a token of FROM_GPU is its slot's `chosen`."""
    rows: Array = table[np.where(tokens == FROM_GPU, chosen[slots], tokens)]
    return rows


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    """x · gain / sqrt(mean(x²) + eps) over the last dimension (Zhang & Sennrich 2019)."""
    normed: Array = x * gain / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)
    return normed


def silu(x: Array) -> Array:
    """x · sigmoid(x), without overflow on either side."""
    small = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1.0, small) / (1.0 + small)


def matmul(
    x: Array,
    weight: Array,
    *,
    gain: Array | None = None,
    eps: float = 0.0,
    bias: Array | None = None,
    residual: Array | None = None,
    gated: bool = False,
    rows: Ids | None = None,
) -> Array:
    """[residual +] act([rms_norm](x) · weightᵀ [+ bias]) for x (n_rows, k) and weight (n, k).

    `gain`: normalise first. `gated`: silu(even columns) · odd columns (SwiGLU, Shazeer 2020).
    `rows`: which rows of x to take, one for each row of the result.
    """
    if rows is not None:
        x = x[rows]
    if gain is not None:
        x = rms_norm(x, gain, eps)
    y = x @ weight.T
    if bias is not None:
        y = y + bias
    if gated:
        y = silu(y[:, 0::2]) * y[:, 1::2]
    return y if residual is None else residual + y


def rotate(x: Array, rotations: Array) -> Array:
    """RoPE (Su et al. 2021), the halves of a head paired: x (…, head_dim), rotations
    (…, head_dim / 2, 2) of cosine and sine."""
    low, high = np.split(x, 2, axis=-1)
    cos, sin = rotations[..., 0], rotations[..., 1]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def qkv(
    x: Array,
    weight: Array,
    rotations: Array,
    slots: Ids,
    positions: Ids,
    tables: Ids,
    keys: Array,
    values: Array,
    n_heads: int,
    *,
    gain: Array,
    eps: float,
    bias: Array | None = None,
) -> Array:
    """Rotated queries (n_rows, n_heads, head_dim); rotated keys and values go into `keys` and
    `values` in place. x (n_rows, k), weight ((n_heads + 2 · n_kv_heads) · head_dim, k): the heads
    of queries, keys, values; rotations (context, head_dim / 2, 2)."""
    _, n_kv_heads, block_tokens, head_dim = keys.shape
    heads = matmul(x, weight, gain=gain, eps=eps, bias=bias).reshape(len(x), -1, head_dim)
    turned = rotate(heads, rotations[positions][:, None])
    blocks = tables[slots, positions // block_tokens]
    keys[blocks, :, positions % block_tokens] = turned[:, n_heads : n_heads + n_kv_heads]
    values[blocks, :, positions % block_tokens] = heads[:, n_heads + n_kv_heads :]
    return turned[:, :n_heads]


def attention(
    q: Array, keys: Array, values: Array, slots: Ids, positions: Ids, tables: Ids
) -> tuple[Array, Array]:
    """softmax(q · kᵀ / √head_dim) · v over the positions up to each row's own, heads in groups that
    share keys and values (Ainslie et al. 2023): (n_rows, n_heads, head_dim), and the entropy of
    each head's weights in bits (n_rows, n_heads)."""
    n_rows, n_heads, head_dim = q.shape
    out, entropy = np.empty_like(q), np.empty((n_rows, n_heads))
    for row in range(n_rows):
        k, v = (gather(pool, tables[slots[row]], positions[row] + 1) for pool in (keys, values))
        group = n_heads // k.shape[1]
        for head in range(n_heads):
            p = softmax(k[:, head // group] @ q[row, head] / np.sqrt(head_dim))
            out[row, head] = p @ v[:, head // group]
            entropy[row, head] = -np.sum(p * np.log2(np.where(p > 0, p, 1.0)))
    return out, entropy


def attention_weights(
    q: Array, keys: Array, slots: Ids, positions: Ids, tables: Ids, first: int, n: int
) -> Array:
    """(n_rows, n_heads, n): the weights that `attention` gives the keys at positions first …
    first + n − 1; 0 after each row's own."""
    n_rows, n_heads, head_dim = q.shape
    weights = np.zeros((n_rows, n_heads, first + n))
    for row in range(n_rows):
        k = gather(keys, tables[slots[row]], positions[row] + 1)
        there = min(len(k), first + n)
        for head in range(n_heads):
            scores = k[:, head * k.shape[1] // n_heads] @ q[row, head] / np.sqrt(head_dim)
            weights[row, head, :there] = softmax(scores)[:there]
    return weights[:, :, first:]


def attention_merge(values: Array, states: Array) -> tuple[Array, Array]:
    """Attention and its entropy in bits from splits of the keys: values (n_splits, n_rows, n_heads,
    head_dim), states (n_splits, n_rows, n_heads, 3) of each split's greatest score g in bits,
    Σ 2^(s - g) and Σ 2^(s - g) · (s - g)."""
    greatest, sums, weighted = np.moveaxis(states, -1, 0)
    drop = greatest - greatest.max(axis=0)
    total = (np.exp2(drop) * sums).sum(axis=0)
    out = (np.exp2(drop)[..., None] * values).sum(axis=0) / total[..., None]
    terms = (np.exp2(drop) * (weighted + sums * drop)).sum(axis=0)
    return out, np.maximum(0.0, np.log2(total) - terms / total)


def gather(pool: Array, table: Ids, n_tokens: int) -> Array:
    """The first `n_tokens` tokens of a sequence: (n_tokens, n_kv_heads, head_dim)."""
    block_tokens = pool.shape[2]
    at = np.arange(n_tokens)
    tokens: Array = pool[table[at // block_tokens], :, at % block_tokens]
    return tokens


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    shares: Array = weights / weights.sum()
    return shares


def layer_stats(states: Array, middles: Array) -> Array:
    """(n_rows, 1 + 5 · n_layers): ‖embedding‖, then of each layer ‖residual after it‖, ‖attention
    update‖, ‖MLP update‖ and the cosines of the two to what they are added to.
    states (n_layers + 1, n_rows, k), middles (n_layers, n_rows, k)."""
    n_layers, n_rows, _ = middles.shape
    attention, mlp = middles - states[:-1], states[1:] - middles
    stats = np.empty((n_rows, 1 + 5 * n_layers))
    stats[:, 0] = np.linalg.norm(states[0], axis=-1)
    stats[:, 1::5] = np.linalg.norm(states[1:], axis=-1).T
    stats[:, 2::5] = np.linalg.norm(attention, axis=-1).T
    stats[:, 3::5] = np.linalg.norm(mlp, axis=-1).T
    stats[:, 4::5] = cosine(states[:-1], attention).T
    stats[:, 5::5] = cosine(middles, mlp).T
    return stats


def cosine(a: Array, b: Array) -> Array:
    """Of the angle between a and b, along the last axis; 0 where either has no length."""
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    quotient: Array = (a * b).sum(axis=-1) / np.where(lengths > 0, lengths, 1.0)
    return quotient


def scale_heads(x: Array, factors: Array, slots: Ids) -> Array:
    """x (n_rows, n_heads, head_dim) times the factors (n_slots, n_heads) of each row's slot."""
    return x * factors[slots][:, :, None]


def scale_update(before: Array, update: Array, factors: Array, slots: Ids) -> Array:
    """before + factor · update, rows (n_rows, k), by the factors (n_slots,) of their slots."""
    return before + factors[slots][:, None] * update


def steer(x: Array, vectors: Array, keeps: Array, slots: Ids) -> Array:
    """x (n_rows, k) plus the vectors (n_slots, k) of its rows' slots, or those alone where their
    slots' `keeps` (n_slots,) is 0."""
    return np.where((keeps[slots] == 0)[:, None], 0.0, x) + vectors[slots]
