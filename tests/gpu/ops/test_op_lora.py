"""LoRA contributions to the output of a matrix, against the float64 twin."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import ops
from gpu.checks.rig import ROUNDING, rows_at
from gpu.checks.rows import N_SLOTS, SLOTS, LoraCase, check_lora_expand
from gpu.config import MoeConfig
from gpu.reference import ops as reference
from tests.gpu.ops.rig import Rig

pytestmark = [pytest.mark.parity, pytest.mark.smoke]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("n", "n_modules", "ranks"),
    [(4, 1, (1,)), (20, 2, (3, 0, 5)), (257 * 4, 3, (16, 1)), (576, 1, (2, 2, 64, 7))],
    ids=str,
)
def test_lora_deltas_are_scaled_by_the_strengths_of_the_rows_slot(
    rig: Rig, n: int, n_modules: int, ranks: tuple[int, ...], bias: bool
) -> None:
    check_lora_expand(rig, LoraCase(n, n_modules, ranks, bias))


def test_assignments_use_the_adapters_of_their_experts(rig: Rig) -> None:
    """Two modules; three assignments per row; poisoned where nothing is read."""
    rng, of, n, ends = np.random.default_rng(3), MoeConfig(5, 3, 8, True), 28, np.array([2, 2, 7])
    n_assignments = len(SLOTS) * of.experts_per_token
    chosen = rng.permuted(np.tile(np.arange(of.n_experts), (len(SLOTS), 1)), axis=1)[
        :, : of.experts_per_token
    ]
    strengths = rng.normal(size=(N_SLOTS, 3)).astype(np.float32)
    strengths[1] = 0
    b = rng.normal(size=(of.n_experts, 7, n)).astype(np.float32)
    first = np.tile([0, 7], n // 2).astype(np.uint32)
    lora_a_out = rng.normal(size=(n_assignments, 14)).astype(np.float32)
    off = np.repeat(np.array(SLOTS) == 1, of.experts_per_token)
    poisoned = np.where(off[:, None], np.float32(np.nan), lora_a_out)
    out = rig.output(n_assignments, n, n)
    batch, upload = rig.batch(rows_at([0] * len(SLOTS), SLOTS), bucket=8), rig.memory.upload
    tensors = (
        rig.input("lora_a_out", poisoned), upload("b", b), upload("first", first),
        upload("ends", ends.astype(np.uint32)), upload("strengths", strengths), None, out.tensor,
    )  # fmt: skip
    given = upload("chosen", chosen.astype(np.uint32))
    rig.run_op(ops.lora_expand, batch, "expand", *tensors, experts=of, expert_ids=given)
    slots = np.repeat(SLOTS, of.experts_per_token)

    def twin(*per_assignment: np.ndarray) -> np.ndarray:
        x, b, s = (a.astype(np.float64) for a in per_assignment)
        return reference.lora_expand(x, b[chosen.reshape(-1)], first.astype(int), ends, s, slots)

    size = twin(np.abs(lora_a_out), np.abs(b), np.abs(strengths))
    want = twin(lora_a_out, b, strengths)
    rig.compare("lora_expand", "pairs", out.read(), want, 13 * ROUNDING * size)
