"""Norms with dispatches of their own, QK norm with RoPE, and learned positions, against their
float64 twins."""

from __future__ import annotations

import pytest

from gpu.checks.kv_writes import QkNormCase, check_qk_norm_rope
from gpu.checks.rows import NormCase, check_norm, check_position_embedding
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.parity


@pytest.fixture(params=[True, False], ids=["software", "gpu"])
def kinds(rig: Rig, request: pytest.FixtureRequest) -> Rig:
    """Few lanes over a row, or many."""
    return rig.on(as_kind(rig.device, software=request.param))


@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 31, 33, 64, 65, 100, 577])
def test_rows_of_every_width(kinds: Rig, width: int, centred: bool) -> None:
    check_norm(kinds, NormCase(width, centred=centred and width > 1, bias=centred))
    check_norm(kinds, NormCase(width, rows=5, bucket=8, residual=True, centred=False))


def test_a_norm_of_sampled_rows_alone(rig: Rig) -> None:
    check_norm(rig, NormCase(50, rows=7, bucket=8, centred=True, bias=True, gather=True))


@pytest.mark.smoke
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e4, 1e12])
def test_small_and_large_states(rig: Rig, scale: float) -> None:
    check_norm(rig, NormCase(70, scale=scale))


@pytest.mark.parametrize("offset", [1.0, 30.0, -1000.0])
def test_a_mean_far_from_zero(rig: Rig, offset: float) -> None:
    check_norm(rig, NormCase(96, centred=True, offset=offset))


@pytest.mark.parametrize("whole", [False, True], ids=["each", "whole"])
@pytest.mark.parametrize("heads", [(1, 1, 4), (5, 1, 12), (4, 2, 100), (3, 3, 64)], ids=str)
def test_heads_of_every_width(kinds: Rig, heads: tuple[int, int, int], whole: bool) -> None:
    check_qk_norm_rope(kinds, QkNormCase(heads, whole=whole))
    check_qk_norm_rope(kinds, QkNormCase(heads, "f16", whole=whole))


@pytest.mark.parametrize("rotary_dim", [0, 4, 8])
def test_heads_with_partial_rotary(rig: Rig, rotary_dim: int) -> None:
    check_qk_norm_rope(rig, QkNormCase((4, 2, 12), rotary_dim=rotary_dim))


@pytest.mark.parametrize("width", [1, 33, 256, 300])
def test_position_embeddings_are_added_by_position(rig: Rig, width: int) -> None:
    check_position_embedding(rig, width)
