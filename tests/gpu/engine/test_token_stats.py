"""Token statistics equal the captured values, to six digits."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gpu.engine.token_stats import LayerTimes, significant, token_stats
from gpu.step import Captured

RNG = np.random.default_rng(5)


def captured(times: bool) -> Captured:
    """Three rows, two layers, four heads."""

    def numbers(*shape: int) -> np.ndarray:
        return RNG.uniform(1e-4, 300.0, shape).astype(np.float32)

    return Captured(
        embedding=numbers(3),
        residual=numbers(3, 2),
        attention=numbers(3, 2),
        mlp=numbers(3, 2),
        attention_cosine=numbers(3, 2) / 300 * 2 - 1,
        mlp_cosine=numbers(3, 2) / 300 * 2 - 1,
        entropy=numbers(3, 2, 4),
        layer_ms=numbers(2, 2) if times else None,
        embed_ms=0.5 if times else None,
        head_ms=1.5 if times else None,
    )


@pytest.mark.parametrize("row", [0, 2])
def test_expert_choices_are_those_of_the_tokens_row(row: int) -> None:
    chosen = np.array([[[3, 1]], [[0, 2]], [[5, 4]]], np.uint32)
    gates = np.array([[[0.75, 0.25]], [[0.5, 0.125]], [[0.6, 0.3]]], np.float32)
    step = replace(captured(times=False), chosen=chosen, gates=gates, expert_layers=(1,))
    routes = token_stats(step, row, 17, None).routes
    assert isinstance(routes, tuple)
    (route,) = routes
    assert (route.layer, route.experts) == (1, tuple(chosen[row, 0].tolist()))
    assert route.gates == pytest.approx(tuple(gates[row, 0].tolist()), rel=5e-6)
    assert b"routes" not in msgspec.json.encode(token_stats(captured(times=False), row, 17, None))


@pytest.mark.parametrize("times", [True, False])
@pytest.mark.parametrize("row", [0, 2])
def test_statistics_are_those_of_the_tokens_row(times: bool, row: int) -> None:
    step = captured(times)
    stats = token_stats(step, row, 17, LayerTimes.of(step, 17))
    assert stats.position == 17
    assert stats.n_rows == 3
    assert stats.timed_at == (17 if times else None)
    assert stats.embedding == pytest.approx(step.embedding[row], rel=5e-6)
    for layer, told in enumerate(stats.layers):
        assert told.residual == pytest.approx(step.residual[row, layer], rel=5e-6)
        assert told.attention == pytest.approx(step.attention[row, layer], rel=5e-6)
        assert told.mlp == pytest.approx(step.mlp[row, layer], rel=5e-6)
        cosine = step.attention_cosine[row, layer], step.mlp_cosine[row, layer]
        assert (told.attention_cosine, told.mlp_cosine) == pytest.approx(cosine, rel=5e-6)
        assert told.entropy == pytest.approx(tuple(step.entropy[row, layer]), rel=5e-6)
        if step.layer_ms is None:
            assert (told.attention_ms, told.mlp_ms) == (None, None)
        else:
            assert (told.attention_ms, told.mlp_ms) == pytest.approx(
                tuple(step.layer_ms[layer]), rel=5e-6
            )


def test_a_step_without_times_shows_the_last_ones_and_whose_they_are() -> None:
    before, now = captured(True), captured(False)
    stats = token_stats(now, 0, 21, LayerTimes.of(before, 17))
    assert before.layer_ms is not None
    assert (stats.position, stats.timed_at, stats.n_rows) == (21, 17, 3)
    assert (stats.embed_ms, stats.head_ms) == (0.5, 1.5)
    for layer, told in enumerate(stats.layers):
        assert told.residual == pytest.approx(now.residual[0, layer], rel=5e-6)
        assert told.mlp_ms == pytest.approx(before.layer_ms[layer, 1], rel=5e-6)


def test_numbers_are_short_and_zero_stays_zero() -> None:
    values = np.array([0.0, 1 / 3, 12345.678, 1e-20], np.float32)
    assert [repr(v) for v in significant(values)] == ["0.0", "0.333333", "12345.7", "1e-20"]
