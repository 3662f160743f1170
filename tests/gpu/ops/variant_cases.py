"""A small check of an op for each kernel of a real plan: the same variant of the shader, on fewer
numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from gpu.checkpoint.packing import FORMATS
from gpu.checks.attention import (
    AttentionCase,
    MergeCase,
    check_attention,
    check_attention_merge,
)
from gpu.checks.kv_cache import RowPlaces
from gpu.checks.kv_writes import (
    SOMEWHERE,
    QkNormCase,
    QkvCase,
    check_qk_norm_rope,
    check_qkv,
)
from gpu.checks.matmul import MatmulCase, check_matmul
from gpu.checks.quantize_activations import check_rms_norm_split
from gpu.checks.quantize_kv import check_quantize_kv
from gpu.checks.rig import Rig
from gpu.checks.sampler import check_sample, check_selfhash_greenlist
from gpu.ops.attention_tiling import AttentionTiling
from gpu.ops.matmul import ACTIVATION_CODES
from gpu.webgpu.device_policy import SPLIT_ROWS, DevicePolicy
from gpu.webgpu.tiling import Tile
from tests.gpu.ops.real_models import CONTEXT, Use

Check = Callable[[Rig], object]

MOST_ROWS = 90
"""Rows of a check in a plan for more: they fill tiles, and leave the last one partly empty."""
NAMES = {code: name for name, code in ACTIVATION_CODES.items()}
OTHERS = {
    "embed": "embed {dtype}",
    "norm": "norm",
    "layer_stats": "layer_stats",
}
"""Ops whose variants are those of the checks of every device."""


def check_of(use: Use, policy: DevicePolicy) -> Check:
    """Return a check of the variant that a dispatch of a real plan uses."""
    return {
        "matmul": _matmul,
        "qkv": _qkv,
        "attention": _attention,
        "attention_merge": _merge,
        "qk_norm_rope": _qk_norm_rope,
        "quantize_kv": _quantize_kv,
        "rms_norm_split": _rms_norm_split,
        "sample": _sample,
        "logit_sort_keys": _sample,
        "logit_histogram": _sample,
        "logit_scatter": _sample,
        "watermark_keys": _sample,
        "selfhash_greenlist": _selfhash,
    }[use.dispatch.kernel.name](use, policy)


def check_name(use: Use) -> str:
    """Return the name of the check of an op of `OTHERS`."""
    vocabulary = FORMATS[use.dtype].vocabulary
    name = OTHERS[use.dispatch.kernel.name]
    return name.format(dtype=vocabulary)


def _matmul(use: Use, policy: DevicePolicy) -> Check:
    c = use.dispatch.kernel.constants
    gathered = bool(c["GATHER"])
    case = MatmulCase(
        k=0,
        n=0,
        rows=_rows(use),
        bucket=use.n_rows,
        norm=bool(c.get("NORM") or c.get("PRE_NORMED")),
        bias=bool(c["BIAS"]),
        residual=bool(c["RESIDUAL"]),
        gated=bool(c["GATED"]),
        gather=gathered,
        n_gathered=1,
        activation=NAMES.get(int(c["ACTIVATION"])),
    )
    n_rows = 1 if gathered else use.n_rows
    dtype = FORMATS[use.dtype].vocabulary if gathered else use.dtype
    sizes = (34, 66, 130, 258, 1026, 2050, 4098, 8194)
    n, k = _small(use, policy, n_rows, sizes, dtype)
    return partial(check_matmul, case=replace(case, n=n, k=k, dtype=dtype))


def _qkv(use: Use, policy: DevicePolicy) -> Check:
    config, d = use.config, use.config.head_dim
    sizes = [(heads + 2) * d for heads in range(1, config.n_heads + 2 * config.n_kv_heads)]
    n, k = _small(use, policy, use.n_rows, sizes, use.dtype, in_quads=True)
    n_rows = max(1, min(use.n_rows - 1, 250))
    case = QkvCase(
        (n // d - 2, 1, d),
        SOMEWHERE if use.n_rows == 8 else RowPlaces.of(*((i % 3, i // 3) for i in range(n_rows))),
        kv_dtype="f16" if use.kv_dtype == "f16" else "f32",
        dtype=use.dtype,
        width=k,
        bias=bool(use.dispatch.kernel.constants["BIAS"]),
        bucket=use.n_rows,
    )
    return partial(check_qkv, case=case)


def _attention(use: Use, policy: DevicePolicy) -> Check:
    config, c = use.config, use.dispatch.kernel.constants
    group = config.n_heads // config.n_kv_heads
    wanted = AttentionTiling.of(config, use.kv_dtype, use.n_rows, policy)

    def tiling(n_kv_heads: int) -> AttentionTiling:
        fewer = replace(config, n_heads=group * n_kv_heads, n_kv_heads=n_kv_heads)
        return AttentionTiling.of(fewer, use.kv_dtype, use.n_rows, policy)

    n_kv = next(n for n in range(1, config.n_kv_heads + 1) if tiling(n) == wanted)
    partial_results = bool(c["PARTIAL"])
    n_splits = use.dispatch.grid[2]
    last = n_splits * policy.kv_split_size - 1 if partial_results else 2 * policy.kv_split_size + 3
    at = [(0, last - i) for i in range(_rows(use))]
    case = AttentionCase(
        (group * n_kv, n_kv, config.head_dim),
        tuple(at[::-1]),
        use.kv_dtype,
        bucket=use.n_rows,
        splits=n_splits,
        window=2 * policy.kv_split_size - 9 if c["WINDOW"] else None,
        cap=30.0 if c["CAP"] else None,
        capture=bool(c["CAPTURE"]),
    )
    return partial(check_attention, case=case)


def _merge(use: Use, policy: DevicePolicy) -> Check:
    c, split = use.dispatch.kernel.constants, policy.kv_split_size
    case = MergeCase(CONTEXT // split, 3, use.config.head_dim, split, bool(c["CAPTURE"]))
    return partial(check_attention_merge, case=case)


def _qk_norm_rope(use: Use, policy: DevicePolicy) -> Check:
    whole = bool(use.dispatch.kernel.constants["WHOLE"])
    kv_dtype = "f16" if use.kv_dtype == "f16" else "f32"
    case = QkNormCase((3, 1, use.config.head_dim), kv_dtype, whole)
    return partial(check_qk_norm_rope, case=case)


def _quantize_kv(use: Use, policy: DevicePolicy) -> Check:
    return partial(check_quantize_kv, dtype=use.kv_dtype, heads=(3, 1, use.config.head_dim))


def _rms_norm_split(use: Use, policy: DevicePolicy) -> Check:
    blocks = int(use.dispatch.kernel.constants["BLOCKS"])
    chains = policy.tuning.norm_chains(blocks)
    few = next(n for n in _blocks(blocks) if policy.tuning.norm_chains(n) == chains)
    return partial(check_rms_norm_split, k=32 * few - 3)


def _sample(use: Use, policy: DevicePolicy) -> Check:
    return partial(check_sample, vocab=use.config.vocab_size)


def _selfhash(use: Use, policy: DevicePolicy) -> Check:
    return partial(check_selfhash_greenlist, vocab=use.config.vocab_size)


def _rows(use: Use) -> int:
    return max(1, min(use.n_rows - 1, MOST_ROWS)) if use.n_rows > SPLIT_ROWS else use.n_rows


def _blocks(most: int) -> Iterator[int]:
    """Yield numbers of blocks of a row: first those with which a lane has more than one round."""
    yield from (n for n in range(17, most) if n < 60)
    yield from range(1, most + 1)


def _small(
    use: Use,
    policy: DevicePolicy,
    n_rows: int,
    sizes: list[int] | tuple[int, ...],
    dtype: str,
    *,
    in_quads: bool = False,
) -> tuple[int, int]:
    """Return outputs and inputs of a small product with the tile of a large one."""
    c, tuning = use.dispatch.kernel.constants, policy.tuning
    may_share = not c.get("NORM")
    n, blocks = int(c["N"]), int(c["BLOCKS"])

    def tile(n: int, blocks: int) -> Tile:
        return tuning.tile(n_rows, n, blocks, in_quads=in_quads, may_share=may_share, dtype=dtype)

    wanted = tile(n, blocks)
    few = next(b for b in _blocks(blocks) if tile(n, b) == wanted)
    return next(size for size in (*sizes, n) if tile(size, few) == wanted), 32 * few
