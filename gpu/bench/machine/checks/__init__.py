"""Checks of every op against its NumPy twin: small cases of odd sizes, in every weight and KV
format. The first word of a check's name is the op."""

from __future__ import annotations

from collections.abc import Callable

from gpu.bench.machine.checks import attention, matmul, moe, rows, sampler, shift_kv
from gpu.bench.machine.rig import Rig

CHECKS: dict[str, Callable[[Rig], None]] = {
    **matmul.CHECKS,
    **attention.CHECKS,
    **shift_kv.CHECKS,
    **rows.CHECKS,
    **moe.CHECKS,
    **sampler.CHECKS,
}
