"""Divergence of logits: known values and invariances."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gpu.reference.divergence import mean_kl, same_top
from gpu.step import Floats


def logits(*rows: list[float]) -> Floats:
    """Return logits whose softmax is each row."""
    return np.log(np.array(rows, np.float32))


def test_divergence_of_distributions_known_by_hand() -> None:
    p, q = logits([0.5, 0.5]), logits([0.75, 0.25])
    assert mean_kl(p, q) == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2))
    assert mean_kl(q, p) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_divergence_is_the_mean_over_positions() -> None:
    reference, other = logits([0.5, 0.5], [0.9, 0.1]), logits([0.75, 0.25], [0.9, 0.1])
    assert mean_kl(reference, other) == pytest.approx(mean_kl(reference[:1], other[:1]) / 2)


def test_a_shift_of_all_logits_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 31)).astype(np.float32)
    shift = 2.0 ** rng.integers(0, 3, size=(7, 1)).astype(np.float32)
    assert mean_kl(x, x) == 0
    assert mean_kl(x, x + shift) < 1e-12


def test_large_logits_do_not_overflow() -> None:
    x = np.array([[3e4, 0.0, -3e4]], np.float32)
    assert mean_kl(x, np.roll(x, 1)) == pytest.approx(6e4)


def test_differences_far_below_float32_are_seen() -> None:
    reference = np.zeros((1, 1000), np.float32)
    moved = reference.copy()
    moved[0, 0] = 1e-4
    assert mean_kl(reference, moved) == pytest.approx(0.5 * 1e-8 * 0.999 / 1000, rel=1e-3)


def test_share_of_positions_with_the_same_most_likely_token() -> None:
    reference = logits([0.6, 0.4], [0.6, 0.4], [0.1, 0.9], [0.3, 0.7])
    other = logits([0.9, 0.1], [0.4, 0.6], [0.4, 0.6], [0.3, 0.7])
    assert same_top(reference, other) == 0.75
    assert same_top(reference, reference) == 1


@pytest.mark.parametrize("measure", [mean_kl, same_top])
@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((3,), (3,)), ((0, 3), (0, 3))])
def test_shapes_that_cannot_be_compared_are_refused(
    measure: Callable[[Floats, Floats], float], shapes: tuple[tuple[int, ...], ...]
) -> None:
    reference, other = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(ValueError, match="of the same positions"):
        measure(reference, other)
