"""Norms of the experts' outputs, against the float64 twin."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import ops
from gpu.config import MoeConfig
from gpu.reference import ops as reference
from tests.gpu.ops.rig import ROUNDING, Rig, compare, plain_rows

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("n_rows", "bucket", "experts_per_token"), [(1, 1, 1), (3, 4, 2), (7, 8, 3)]
)
@pytest.mark.parametrize("k", [1, 37, 256, 1000])
def test_norms_equal_the_reference(
    rig: Rig, n_rows: int, bucket: int, experts_per_token: int, k: int
) -> None:
    seed = 1000 * n_rows + k
    parts = (
        np.random.default_rng(seed).normal(size=(n_rows * experts_per_token, k)).astype(np.float32)
    )
    experts = MoeConfig(
        n_experts=9, experts_per_token=experts_per_token, intermediate_size=8, norm_topk_prob=True
    )
    norms = rig.output("norms", n_rows, experts_per_token, stride=experts_per_token)
    batch, given = rig.batch(plain_rows(n_rows), bucket=bucket), rig.input("parts", parts)
    rig.run(lambda rec: ops.moe_expert_norms(rec, batch, "norms", experts, given, norms.tensor))
    want = reference.moe_expert_norms(parts.astype(np.float64)).reshape(n_rows, experts_per_token)
    bound = (4 + np.sqrt(k)) * ROUNDING * want
    compare("moe_expert_norms", f"{n_rows} rows of {k}", norms.read(), want, bound, seed)
