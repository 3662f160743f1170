"""Every op in NumPy and double precision: what the shader of the same name should compute.

Written from the formulas, not from the shaders: no padding, shards, tiles or online sums. The
sampler is in `gpu.reference.sampler`, mixtures of experts in `gpu.reference.moe`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.reference.softmax import softmax

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

FROM_GPU = -1


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a step.

    slots      (n_rows,)
    positions  (n_rows,)
    tables     (n_slots, max_blocks): block table of each slot
    text_ends  (n_rows,): last positions of the rows' texts in an encoder, whose rows see them;
               None: a row sees positions up to its own
    """

    slots: Ids
    positions: Ids
    tables: Ids
    text_ends: Ids | None = None

    def n_keys(self, row: int) -> int:
        """Return the number of a row's keys without a window."""
        ends = self.positions if self.text_ends is None else self.text_ends
        return int(ends[row]) + 1


@dataclass(frozen=True, slots=True)
class KvArrays:
    """Paged KV cache of one layer: each (n_blocks, n_kv_heads, block_tokens, head_dim), as in
    `gpu.kv.pools`."""

    keys: Array
    values: Array


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm before a matmul: gain (k,)."""

    gain: Array
    eps: float


@dataclass(frozen=True, slots=True)
class AttentionScoring:
    """Settings of attention scores. `scale` None: 1 / √head_dim. `masked`: for each slot, positions
    first … end − 1 to which each head does not attend there; (): none. `position_biases` (n_heads,
    2d + 1): added to the scores of keys at distances −d to d; the outermost also to those beyond.
    """

    scale: float | None = None
    cap: float | None = None
    window: int | None = None
    masked: tuple[tuple[tuple[int, int], ...], ...] = ()
    position_biases: Array | None = None


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Everything after x · weightᵀ: [residual +] scale · soft_cap(act(y [+ bias])).

    activation  a key of `ACTIVATIONS`, or None
    gated       act(even columns) · odd columns (Shazeer 2020)
    bias        (n,) or (n_rows, n)
    residual    (n_rows, columns of the result)
    """

    activation: str | None = None
    gated: bool = False
    scale: float = 1.0
    cap: float | None = None
    bias: Array | None = None
    residual: Array | None = None

    def apply(self, y: Array) -> Array:
        """Return the result (n_rows, n or n / 2) for y (n_rows, n)."""
        act = ACTIVATIONS[self.activation] if self.activation else np.asarray
        if self.bias is not None:
            y = y + self.bias
        y = act(y[:, 0::2]) * y[:, 1::2] if self.gated else act(y)
        y = self.scale * soft_cap(y, self.cap)
        return y if self.residual is None else self.residual + y


def embed(table: Array, tokens: Ids, slots: Ids, chosen: Ids) -> Array:
    """Return rows of `table` (vocab_size, k): (n_rows, k). A token FROM_GPU stands for its slot's
    `chosen`."""
    rows: Array = table[np.where(tokens == FROM_GPU, chosen[slots], tokens)]
    return rows


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    """Return x · gain / sqrt(mean(x²) + eps) over the last dimension (Zhang & Sennrich 2019)."""
    normed: Array = x * gain / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)
    return normed


def rms_norm_split(x: Array, gain: Array, eps: float) -> tuple[Array, Array]:
    """Return x · gain (n_rows, k) and the scales (n_rows,) whose product is `rms_norm`."""
    return x * gain, 1 / np.sqrt(np.mean(x**2, axis=-1) + eps)


def silu(x: Array) -> Array:
    """Return x · sigmoid(x), without overflow for large |x|."""
    small = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1.0, small) / (1.0 + small)


def gelu_tanh(x: Array) -> Array:
    """Return x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (Hendrycks & Gimpel 2016)."""
    result: Array = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def gelu(x: Array) -> Array:
    """Return x · Φ(x), Φ the standard normal distribution."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    result: Array = x / 2 * (1 + erf(x / np.sqrt(2)))
    return result


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    return np.maximum(x, 0.0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "relu": relu,
}


def soft_cap(x: Array, cap: float | None) -> Array:
    """Return cap · tanh(x / cap); x without a cap."""
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
    """Return [residual +] RMSNorm(x) [+ bias], or LayerNorm (Ba et al. 2016) when `centred`, for x
    (n, k). `rows` (n_rows,): rows of x to normalise, all of them if None."""
    if rows is not None:
        x = x[rows]
    if centred:
        x = x - x.mean(axis=-1, keepdims=True)
    y = rms_norm(x, gain, eps)
    if bias is not None:
        y = y + bias
    return y if residual is None else residual + y


def matmul(
    x: Array, weight: Array, epilogue: Epilogue | None = None, *, norm: Norm | None = None
) -> Array:
    """Return epilogue([rms_norm](x) · weightᵀ) for x (n_rows, k) and weight (n, k)."""
    if norm is not None:
        x = rms_norm(x, norm.gain, norm.eps)
    return (epilogue or Epilogue()).apply(x @ weight.T)


def apply_rope(x: Array, rope_cos_sin: Array) -> Array:
    """Return x (…, head_dim) with RoPE (Su et al. 2021), number i paired with i + rotary_dim / 2.

    rope_cos_sin is (…, rotary_dim / 2, 2) of cosine and sine. Numbers from rotary_dim on stay.
    """
    half = rope_cos_sin.shape[-2]
    low, high, rest = np.split(x, [half, 2 * half], axis=-1)
    cos, sin = rope_cos_sin[..., 0], rope_cos_sin[..., 1]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


def qkv(
    x: Array,
    weight: Array,
    rope_cos_sin: Array,
    rows: StepRows,
    cache: KvArrays,
    n_heads: int,
    *,
    norm: Norm | None = None,
    bias: Array | None = None,
) -> Array:
    """Return queries with RoPE (n_rows, n_heads, head_dim), and write keys with RoPE and values
    into `cache`.

    x is (n_rows, k), weight ((n_heads + 2 · n_kv_heads) · head_dim, k) with the heads of queries,
    keys, values, rope_cos_sin (context, rotary_dim / 2, 2).
    """
    n_kv_heads, head_dim = cache.keys.shape[1], cache.keys.shape[3]
    heads = matmul(x, weight, Epilogue(bias=bias), norm=norm).reshape(len(x), -1, head_dim)
    q, k, v = np.split(heads, [n_heads, n_heads + n_kv_heads], axis=1)
    q, k = (apply_rope(part, rope_cos_sin[rows.positions][:, None]) for part in (q, k))
    _write_kv(k, v, rows, cache)
    return q


def qk_norm_rope(
    projected: Array,
    gains: Array,
    rope_cos_sin: Array,
    rows: StepRows,
    cache: KvArrays,
    n_heads: int,
    *,
    eps: float,
    whole: bool = False,
) -> Array:
    """Do what `qkv` does after its matmul, with RMSNorm of queries and keys before RoPE.

    projected is (n_rows, (n_heads + 2 · n_kv_heads) · head_dim). gains are (2 · head_dim,), each
    head normalised by itself, or when `whole` ((n_heads + n_kv_heads) · head_dim,), all heads of
    the queries (of the keys) normalised together.
    """
    n_kv_heads, head_dim = cache.keys.shape[1], cache.keys.shape[3]
    at = np.array([n_heads, n_heads + n_kv_heads]) * head_dim
    q, k, v = np.split(projected, at, axis=1)
    q_gain, k_gain = np.split(gains, [at[0] if whole else head_dim])
    roped = []
    for part, gain in ((q, q_gain), (k, k_gain)):
        groups = part if whole else part.reshape(len(part), -1, head_dim)
        heads = rms_norm(groups, gain, eps).reshape(len(part), -1, head_dim)
        roped.append(apply_rope(heads, rope_cos_sin[rows.positions][:, None]))
    _write_kv(roped[1], v.reshape(roped[1].shape), rows, cache)
    return roped[0]


def _write_kv(k: Array, v: Array, rows: StepRows, cache: KvArrays) -> None:
    block_tokens = cache.keys.shape[2]
    blocks = rows.tables[rows.slots, rows.positions // block_tokens]
    cache.keys[blocks, :, rows.positions % block_tokens] = k
    cache.values[blocks, :, rows.positions % block_tokens] = v


def position_embedding(x: Array, table: Array, positions: Ids) -> Array:
    """Return x (n_rows, k) plus the row of table (context, k) at each row's position."""
    return x + table[positions]


def scores(
    q: Array, keys: Array, scoring: AttentionScoring, own: int, head: int, slot: int
) -> Array:
    """Return soft_cap(keys · q · scale) + position bias of one query (head_dim,) of a slot at
    position `own` and the keys (n, head_dim) from the first position on; −∞ for masked keys and
    those at `window` or more from it."""
    scale = q.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    found = soft_cap(keys @ q * scale, scoring.cap)
    distances = np.arange(len(keys)) - own
    if scoring.position_biases is not None:
        most = scoring.position_biases.shape[1] // 2
        found = found + scoring.position_biases[head, np.clip(distances, -most, most) + most]
    if scoring.window is not None:
        found[np.abs(distances) >= scoring.window] = -np.inf
    if scoring.masked:
        found[slice(*scoring.masked[slot][head])] = -np.inf
    return found


def attention(
    q: Array, rows: StepRows, cache: KvArrays, scoring: AttentionScoring = AttentionScoring()
) -> tuple[Array, Array]:
    """Return softmax(scores) · v over the positions that each row sees (n_rows, n_heads,
    head_dim), and the entropy of each head's weights in bits (n_rows, n_heads).

    Groups of query heads share keys and values (Ainslie et al. 2023).
    """
    out, entropy = np.empty_like(q), np.empty(q.shape[:2])
    group = q.shape[1] // cache.keys.shape[1]
    for row, p in enumerate(_weights(q, cache.keys, rows, scoring)):
        v = gather(cache.values, rows.tables[rows.slots[row]], rows.n_keys(row))
        out[row] = [of_head @ v[:, head // group] for head, of_head in enumerate(p)]
        entropy[row] = -np.sum(p * np.log2(np.where(p > 0, p, 1.0)), axis=-1)
    return out, entropy


def attention_weights(
    q: Array,
    rows: StepRows,
    keys: Array,
    first: int,
    n: int,
    scoring: AttentionScoring = AttentionScoring(),
) -> Array:
    """Return the weights of `attention` for the keys at positions first … first + n − 1: (n_rows,
    n_heads, n), 0 after the last position that a row sees."""
    weights = np.zeros((*q.shape[:2], first + n))
    for row, p in enumerate(_weights(q, keys, rows, scoring)):
        inside = p[:, : first + n]
        weights[row, :, : inside.shape[1]] = inside
    return weights[:, :, first:]


def _weights(q: Array, keys: Array, rows: StepRows, scoring: AttentionScoring) -> Iterator[Array]:
    """Yield softmax(scores) of each row: (n_heads, positions that it sees)."""
    n_rows, n_heads, _ = q.shape
    group = n_heads // keys.shape[1]
    for row in range(n_rows):
        slot, own = rows.slots[row], rows.positions[row]
        k = gather(keys, rows.tables[slot], rows.n_keys(row))
        of_heads = (
            scores(q[row, i], k[:, i // group], scoring, own, i, slot) for i in range(n_heads)
        )
        yield np.stack([softmax(each) for each in of_heads])


def attention_merge(values: Array, states: Array) -> tuple[Array, Array]:
    """Return attention and its entropy in bits from splits of the keys.

    values is (n_splits, n_rows, n_heads, head_dim); states (n_splits, n_rows, n_heads, 3) of each
    split's greatest score g in bits, Σ 2^(s − g) and Σ 2^(s − g) · (s − g).
    """
    greatest, sums, weighted = np.moveaxis(states, -1, 0)
    drop = greatest - greatest.max(axis=0)
    total = (np.exp2(drop) * sums).sum(axis=0)
    out = (np.exp2(drop)[..., None] * values).sum(axis=0) / total[..., None]
    terms = (np.exp2(drop) * (weighted + sums * drop)).sum(axis=0)
    return out, np.maximum(0.0, np.log2(total) - terms / total)


def gather(pool: Array, table: Ids, n_tokens: int) -> Array:
    """Return the first `n_tokens` tokens of a sequence: (n_tokens, n_kv_heads, head_dim)."""
    block_tokens = pool.shape[2]
    at = np.arange(n_tokens)
    tokens: Array = pool[table[at // block_tokens], :, at % block_tokens]
    return tokens


def layer_stats(resid_pre: Array, resid_mid: Array) -> Array:
    """Return norms and cosines of the residual stream: (n_rows, 1 + 5 · n_layers).

    First ‖embedding‖, then for each layer ‖residual after it‖, ‖attention update‖, ‖MLP update‖ and
    the cosines of the two updates to what they are added to. resid_pre is (n_layers + 1, n_rows,
    k), resid_mid (n_layers, n_rows, k).
    """
    n_layers, n_rows, _ = resid_mid.shape
    attention, mlp = resid_mid - resid_pre[:-1], resid_pre[1:] - resid_mid
    stats = np.empty((n_rows, 1 + 5 * n_layers))
    stats[:, 0] = np.linalg.norm(resid_pre[0], axis=-1)
    stats[:, 1::5] = np.linalg.norm(resid_pre[1:], axis=-1).T
    stats[:, 2::5] = np.linalg.norm(attention, axis=-1).T
    stats[:, 3::5] = np.linalg.norm(mlp, axis=-1).T
    stats[:, 4::5] = cosine(resid_pre[:-1], attention).T
    stats[:, 5::5] = cosine(resid_mid, mlp).T
    return stats


def moe_expert_norms(expert_out: Array) -> Array:
    """Return the lengths (n_assignments,) of expert_out (n_assignments, width)."""
    norms: Array = np.linalg.norm(expert_out, axis=-1)
    return norms


def cosine(a: Array, b: Array) -> Array:
    """Return the cosine of the angle between a and b along the last axis; 0 if one is zero."""
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    quotient: Array = (a * b).sum(axis=-1) / np.where(lengths > 0, lengths, 1.0)
    return quotient


def scale_heads(x: Array, factors: Array, slots: Ids) -> Array:
    """Return x (n_rows, n_heads, head_dim) times the factors (n_slots, n_heads) of each row's
    slot."""
    return x * factors[slots][:, :, None]


def scale_residual(resid_pre: Array, update: Array, factors: Array, slots: Ids) -> Array:
    """Return resid_pre + factor · update, each (n_rows, k), by the factors (n_slots,) of the rows'
    slots."""
    return resid_pre + factors[slots][:, None] * update


def steer(x: Array, vectors: Array, keeps: Array, slots: Ids) -> Array:
    """Return x (n_rows, k) plus the vectors (n_slots, k) of the rows' slots, or the vectors alone
    where the slots' `keeps` (n_slots,) is 0."""
    return np.where((keeps[slots] == 0)[:, None], 0.0, x) + vectors[slots]


def lora_expand(
    lora_a_out: Array,
    b: Array,
    first: Ids,
    ends: Ids,
    strengths: Array,
    slots: Ids,
    bias: Array | None = None,
) -> Array:
    """Return [bias +] Σ strength · lora_a_out · B over the adapters: (n_rows, n).

    lora_a_out  (n_rows, n_modules · R)
    b           (R, n), or of each row (n_rows, R, n)
    first       (n,): column of lora_a_out at which the module of an output begins
    ends        (n_loras,): end of each adapter's ranks
    strengths   (n_slots, n_loras)
    bias        (n,)
    """
    out = np.zeros((len(slots), b.shape[-1])) + (0.0 if bias is None else bias)
    for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        ranks = np.arange(start, end)
        x = lora_a_out[:, first[None, :] + ranks[:, None]]  # (n_rows, ranks, n)
        out += strengths[slots, i][:, None] * (x * b[..., start:end, :]).sum(axis=1)
    return out
