"""Checks of every op against its NumPy twin: small cases of odd sizes, in every weight and KV
format. The first word of a check's name is the op."""

from __future__ import annotations

from collections.abc import Callable

from gpu.checks import (
    attention,
    attention_weights,
    kv_writes,
    matmul,
    moe,
    quantize_activations,
    quantize_kv,
    rows,
    sampler,
    shift_kv,
    sort_keys,
)
from gpu.checks.rig import Rig

CHECKS: dict[str, Callable[[Rig], None]] = {
    **matmul.CHECKS,
    **quantize_activations.CHECKS,
    **kv_writes.CHECKS,
    **attention.CHECKS,
    **attention_weights.CHECKS,
    **quantize_kv.CHECKS,
    **shift_kv.CHECKS,
    **rows.CHECKS,
    **moe.CHECKS,
    **sort_keys.CHECKS,
    **sampler.CHECKS,
}
