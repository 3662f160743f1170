"""Every op in NumPy and double precision: what the shader of the same name should compute.

Written from the formulas, not from the shaders: no padding, no shards, no tiles, no online sums.
The sampler's twin is `gpu.reference.sampler`. Rows of a step are given as arrays, one entry for
each row: `slots` and `positions`. A cache is [n_blocks][n_kv_heads][block_tokens][head_dim], as in
`gpu.kv.pools`, and `tables[slot]` names the blocks of a slot's sequence in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

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


def norm_parts(x: Array, gain: Array, eps: float) -> tuple[Array, Array]:
    """(n_rows, k) and (n_rows,): what rows of `rms_norm` are the products of."""
    return x * gain, 1 / np.sqrt(np.mean(x**2, axis=-1) + eps)


def silu(x: Array) -> Array:
    """x · sigmoid(x), without overflow on either side."""
    small = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1.0, small) / (1.0 + small)


def gelu_tanh(x: Array) -> Array:
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (Hendrycks & Gimpel 2016)."""
    result: Array = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def gelu(x: Array) -> Array:
    """x · Φ(x), Φ the standard normal distribution."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    result: Array = x / 2 * (1 + erf(x / np.sqrt(2)))
    return result


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
}


def capped(x: Array, cap: float | None) -> Array:
    """cap · tanh(x / cap); x where there is no cap."""
    return x if not cap else cap * np.tanh(x / cap)


def norm(
    x: Array,
    gain: Array,
    eps: float,
    *,
    centred: bool = False,
    bias: Array | None = None,
    residual: Array | None = None,
    rows: Ids | None = None,
) -> Array:
    """[residual +] RMSNorm of rows x (n_rows, k), or LayerNorm (Ba et al. 2016) when `centred`, [+
    bias]. `rows`: which rows of x to take, one for each row of the result."""
    if rows is not None:
        x = x[rows]
    if centred:
        x = x - x.mean(axis=-1, keepdims=True)
    y = rms_norm(x, gain, eps)
    if bias is not None:
        y = y + bias
    return y if residual is None else residual + y


def matmul(
    x: Array,
    weight: Array,
    *,
    gain: Array | None = None,
    eps: float = 0.0,
    bias: Array | None = None,
    residual: Array | None = None,
    activation: str | None = None,
    gated: bool = False,
    scale: float = 1.0,
    cap: float | None = None,
    rows: Ids | None = None,
) -> Array:
    """[residual +] scale · capped(act([rms_norm](x) · weightᵀ [+ bias])) for x (n_rows, k) and
    weight (n, k).

    `gain`: normalise first. `activation`: of `ACTIVATIONS`. `gated`: act(even columns) · odd
    columns (Shazeer 2020). `rows`: which rows of x to take, one for each row of the result.
    """
    act = ACTIVATIONS[activation] if activation else np.asarray
    if rows is not None:
        x = x[rows]
    if gain is not None:
        x = rms_norm(x, gain, eps)
    y = x @ weight.T
    if bias is not None:
        y = y + bias
    y = act(y[:, 0::2]) * y[:, 1::2] if gated else act(y)
    y = scale * capped(y, cap)
    return y if residual is None else residual + y


def rotate(x: Array, rotations: Array) -> Array:
    """RoPE (Su et al. 2021), the halves of what is turned paired: x (…, head_dim), rotations
    (…, rotary_dim / 2, 2) of cosine and sine; numbers from rotary_dim on stay as they are."""
    half = rotations.shape[-2]
    low, high, rest = np.split(x, [half, 2 * half], axis=-1)
    cos, sin = rotations[..., 0], rotations[..., 1]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


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
    gain: Array | None = None,
    eps: float = 0.0,
    bias: Array | None = None,
) -> Array:
    """Rotated queries (n_rows, n_heads, head_dim); rotated keys and values go into `keys` and
    `values` in place. x (n_rows, k), weight ((n_heads + 2 · n_kv_heads) · head_dim, k): the heads
    of queries, keys, values; rotations (context, rotary_dim / 2, 2)."""
    n_kv_heads, head_dim = keys.shape[1], keys.shape[3]
    heads = matmul(x, weight, gain=gain, eps=eps, bias=bias).reshape(len(x), -1, head_dim)
    q, k, v = np.split(heads, [n_heads, n_heads + n_kv_heads], axis=1)
    q, k = (rotate(part, rotations[positions][:, None]) for part in (q, k))
    _keep(k, v, slots, positions, tables, keys, values)
    return q


def place_heads(
    projected: Array,
    gains: Array,
    rotations: Array,
    slots: Ids,
    positions: Ids,
    tables: Ids,
    keys: Array,
    values: Array,
    n_heads: int,
    *,
    eps: float,
    whole: bool = False,
) -> Array:
    """As `qkv` from the projected heads (n_rows, (n_heads + 2 · n_kv_heads) · head_dim) on, for
    models that normalise queries and keys before they are turned: each head alone by gains
    (2 · head_dim,), or all heads together by gains ((n_heads + n_kv_heads) · head_dim,) when
    `whole`."""
    n_kv_heads, head_dim = keys.shape[1], keys.shape[3]
    at = np.array([n_heads, n_heads + n_kv_heads]) * head_dim
    q, k, v = np.split(projected, at, axis=1)
    q_gain, k_gain = np.split(gains, [at[0] if whole else head_dim])
    turned = []
    for part, gain in ((q, q_gain), (k, k_gain)):
        groups = part if whole else part.reshape(len(part), -1, head_dim)
        heads = rms_norm(groups, gain, eps).reshape(len(part), -1, head_dim)
        turned.append(rotate(heads, rotations[positions][:, None]))
    _keep(turned[1], v.reshape(turned[1].shape), slots, positions, tables, keys, values)
    return turned[0]


def _keep(
    k: Array, v: Array, slots: Ids, positions: Ids, tables: Ids, keys: Array, values: Array
) -> None:
    """Put keys and values of rows where their positions lie in the cache."""
    block_tokens = keys.shape[2]
    blocks = tables[slots, positions // block_tokens]
    keys[blocks, :, positions % block_tokens] = k
    values[blocks, :, positions % block_tokens] = v


def add_positions(x: Array, table: Array, positions: Ids) -> Array:
    """x (n_rows, k) plus the row of table (context, k) at each row's position."""
    return x + table[positions]


def scores(
    q: Array, keys: Array, scale: float | None, cap: float | None, window: int | None
) -> Array:
    """capped(keys · q · scale) of one query (head_dim,) and all keys (n, head_dim) up to its own;
    −∞ of those before the last `window`. `scale` None: 1 / √head_dim."""
    found = capped(keys @ q * (q.shape[-1] ** -0.5 if scale is None else scale), cap)
    if window is not None:
        found[: max(0, len(keys) - window)] = -np.inf
    return found


def attention(
    q: Array,
    keys: Array,
    values: Array,
    slots: Ids,
    positions: Ids,
    tables: Ids,
    *,
    scale: float | None = None,
    cap: float | None = None,
    window: int | None = None,
) -> tuple[Array, Array]:
    """softmax(scores) · v over the positions up to each row's own, heads in groups that share keys
    and values (Ainslie et al. 2023): (n_rows, n_heads, head_dim), and the entropy of each head's
    weights in bits (n_rows, n_heads)."""
    out, entropy = np.empty_like(q), np.empty(q.shape[:2])
    group = q.shape[1] // keys.shape[1]
    for row, p in enumerate(_weights(q, keys, slots, positions, tables, scale, cap, window)):
        v = gather(values, tables[slots[row]], positions[row] + 1)
        out[row] = [of_head @ v[:, head // group] for head, of_head in enumerate(p)]
        entropy[row] = -np.sum(p * np.log2(np.where(p > 0, p, 1.0)), axis=-1)
    return out, entropy


def attention_weights(
    q: Array,
    keys: Array,
    slots: Ids,
    positions: Ids,
    tables: Ids,
    first: int,
    n: int,
    *,
    scale: float | None = None,
    cap: float | None = None,
    window: int | None = None,
) -> Array:
    """(n_rows, n_heads, n): the weights that `attention` gives the keys at positions first …
    first + n − 1; 0 after each row's own."""
    weights = np.zeros((*q.shape[:2], first + n))
    for row, p in enumerate(_weights(q, keys, slots, positions, tables, scale, cap, window)):
        there = p[:, : first + n]
        weights[row, :, : there.shape[1]] = there
    return weights[:, :, first:]


def _weights(
    q: Array,
    keys: Array,
    slots: Ids,
    positions: Ids,
    tables: Ids,
    scale: float | None,
    cap: float | None,
    window: int | None,
) -> Iterator[Array]:
    """softmax(scores) of each row in turn: (n_heads, positions up to the row's own)."""
    n_rows, n_heads, _ = q.shape
    group = n_heads // keys.shape[1]
    for row in range(n_rows):
        k = gather(keys, tables[slots[row]], positions[row] + 1)
        of_heads = (scores(q[row, i], k[:, i // group], scale, cap, window) for i in range(n_heads))
        yield np.stack([softmax(each) for each in of_heads])


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


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max())
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


def expert_norms(parts: Array) -> Array:
    """(n_pairs,): lengths of parts (n_pairs, width)."""
    norms: Array = np.linalg.norm(parts, axis=-1)
    return norms


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


def lora_expand(
    shrunk: Array,
    b: Array,
    first: Ids,
    ends: Ids,
    strengths: Array,
    slots: Ids,
    bias: Array | None = None,
) -> Array:
    """(n_rows, n): [bias (n,) +] what adapters whose ranks end at `ends` (n_loras,) make of shrunk
    (n_rows, n_modules · R) with b (R, n), or that of each row (n_rows, R, n), by the strengths
    (n_slots, n_loras) of the rows' slots; `first` (n,): where the numbers of an output's module
    begin."""
    out = np.zeros((len(slots), b.shape[-1])) + (0.0 if bias is None else bias)
    for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        ranks = np.arange(start, end)
        x = shrunk[:, first[None, :] + ranks[:, None]]  # (n_rows, ranks, n)
        out += strengths[slots, i][:, None] * (x * b[..., start:end, :]).sum(axis=1)
    return out
