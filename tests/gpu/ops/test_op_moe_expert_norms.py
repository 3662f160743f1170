"""Lengths of what experts give, against their float64 twin."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import ops
from gpu.config import Experts
from gpu.reference import ops as reference
from tests.gpu.rig import ROUNDING, Rig, compare, plain_rows

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(("n_rows", "bucket", "per_token"), [(1, 1, 1), (3, 4, 2), (7, 8, 3)])
@pytest.mark.parametrize("k", [1, 37, 256, 1000])
def test_lengths_equal_the_reference(
    rig: Rig, n_rows: int, bucket: int, per_token: int, k: int
) -> None:
    seed = 1000 * n_rows + k
    parts = np.random.default_rng(seed).normal(size=(n_rows * per_token, k)).astype(np.float32)
    experts = Experts(n=9, per_token=per_token, width=8, normalised=True)
    norms = rig.output("norms", n_rows, per_token, stride=per_token)
    batch, given = rig.batch(plain_rows(n_rows), bucket=bucket), rig.input("parts", parts)
    rig.run(lambda rec: ops.expert_norms(rec, batch, "norms", experts, given, norms.tensor))
    want = reference.expert_norms(parts.astype(np.float64)).reshape(n_rows, per_token)
    bound = (4 + np.sqrt(k)) * ROUNDING * want
    compare("expert_norms", f"{n_rows} rows of {k}", norms.read(), want, bound, seed)
