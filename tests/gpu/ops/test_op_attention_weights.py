"""Attention weights of a range of keys, against the float64 twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import ops
from gpu.checks.attention_weights import (
    WeightsCase,
    attention_weights,
    check_attention_weights,
)
from gpu.checks.rig import normal, op_config
from gpu.errors import DeviceError
from gpu.kv.blocks import KvShape
from gpu.kv.pools import KvPools
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.parity

HEADS = [
    (1, 1, 4), (5, 1, 12), (9, 3, 64), (4, 2, 100), (6, 2, 128), (8, 1, 16), (13, 1, 8), (3, 3, 80),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_weights_of_heads_in_groups_of_every_width(
    rig: Rig, heads: tuple[int, int, int], dtype: str
) -> None:
    rows = ((0, 70), (2, 3), (0, 71), (1, 32))
    check_attention_weights(rig, WeightsCase(heads, rows, (0, 72), dtype, bucket=8, seed=heads[2]))


# Blocks hold 16 keys; all lanes together take 256.
@pytest.mark.parametrize(
    ("heads", "dtype"), [((9, 3, 64), "q8"), ((3, 3, 80), "rotated4")], ids=str
)
def test_weights_of_quantised_keys(rig: Rig, heads: tuple[int, int, int], dtype: str) -> None:
    check_attention_weights(
        rig, WeightsCase(heads, ((0, 70), (1, 3), (0, 71), (2, 32)), (0, 80), dtype, bucket=8)
    )


@pytest.mark.parametrize("position", [0, 1, 15, 16, 254, 255, 256, 257, 511, 513, 1023])
def test_weights_of_a_row_add_up_to_one(rig: Rig, position: int) -> None:
    rows = ((1, position), (0, position // 2))
    case = WeightsCase((4, 2, 8), rows, (0, position + 1), seed=position)
    sums = check_attention_weights(rig, case).sum(axis=-1)
    assert sums == pytest.approx(np.ones_like(sums), abs=1e-5)


@pytest.mark.parametrize(
    "keys", [(0, 1), (299, 1), (300, 1), (300, 5), (17, 260), (255, 257), (1000, 3)], ids=str
)
def test_a_range_of_keys_is_part_of_the_whole(rig: Rig, keys: tuple[int, int]) -> None:
    """Equal bit for bit, and 0 after the row, where the cache may hold NaN."""
    case = WeightsCase((6, 3, 16), ((0, 299), (1, 300), (0, 20)), (0, 1003))
    cache, q = (
        case.filled(rig, 7, np.random.default_rng(7)),
        normal(np.random.default_rng(8), 3, 96),
    )
    whole = attention_weights(rig, case, cache, q)
    first, n = keys
    part = attention_weights(rig, replace(case, keys=keys), cache, q)
    assert np.array_equal(part.view("u4"), whole[:, :, first : first + n].copy().view("u4"))
    for row, (_, position) in enumerate(case.at):
        assert not part[row, :, max(0, position + 1 - first) :].any()


@pytest.mark.parametrize("sharpness", [0.0, 1e-3, 30.0, 1e4])
def test_from_uniform_attention_to_one_key(rig: Rig, sharpness: float) -> None:
    check_attention_weights(
        rig, WeightsCase((4, 2, 16), ((0, 99), (1, 5), (0, 40)), (0, 100), sharpness=sharpness)
    )


@pytest.mark.parametrize(("window", "cap"), [(1, None), (16, None), (37, 5.0), (500, 50.0)])
def test_windows_and_soft_caps(rig: Rig, window: int, cap: float | None) -> None:
    case = WeightsCase(
        (6, 3, 12), ((0, 299), (1, 20), (0, 36), (0, 37)), (0, 300), "f16",
        sharpness=3.0, window=window, cap=cap,
    )  # fmt: skip
    got = check_attention_weights(rig, case)
    for row, (_, position) in enumerate(case.at):
        assert not got[row, :, : max(0, position + 1 - window)].any()


@pytest.mark.parametrize(("window", "distances"), [(None, None), (None, 5), (9, None)])
def test_an_encoder_sees_keys_on_both_sides(
    rig: Rig, window: int | None, distances: int | None
) -> None:
    rows = (*((0, position) for position in range(70)), *((1, position) for position in range(13)))
    case = WeightsCase(
        (5, 5, 12), rows, (0, 70), bucket=128, window=window, encoder=True, distances=distances
    )
    weights = check_attention_weights(rig, case)
    assert weights.sum(-1) == pytest.approx(np.ones((len(rows), 5)), abs=1e-5)
    assert weights[0, :, 1].min() > 0


@pytest.mark.parametrize(("position", "dtype"), [(8_190, "f32"), (32_767, "f16")])
def test_a_long_context(rig: Rig, position: int, dtype: str) -> None:
    """A device that ends loops early, as Mesa's software device does, would show."""
    sums = check_attention_weights(
        rig, WeightsCase((1, 1, 64), ((0, position),), (0, position + 1), dtype)
    ).sum(axis=-1)
    assert sums == pytest.approx(np.ones_like(sums), abs=1e-5)


@pytest.mark.slow
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it_or_on_its_blocks(rig: Rig) -> None:
    rows = ((0, 300), (1, 32), (0, 5), (0, 299))
    case = WeightsCase((8, 4, 8), rows, (3, 290), "f16", bucket=16)
    q, seen = normal(np.random.default_rng(5), len(rows), 64), []
    for seed in range(2):  # the same contents in other blocks
        cache = case.filled(rig, seed, np.random.default_rng(9))
        seen.append(attention_weights(rig, case, cache, q))
        alone = [
            attention_weights(rig, replace(case, at=(row,), bucket=0), cache, q[i : i + 1])
            for i, row in enumerate(rows)
        ]
        seen.append(np.concatenate(alone))
    for other in seen[1:]:
        assert np.array_equal(seen[0].view("u4"), other.view("u4"))


def test_a_context_that_a_software_device_would_not_finish_is_refused(rig: Rig) -> None:
    config = op_config(head_dim=128, context=1 << 18)
    pools = KvPools(config, KvShape(1, 1 << 18), "f16", 1, rig.memory)
    batch, keys = rig.batch([], bucket=1), rig.memory.zeros("keys", (2,), "u32", uniform=True)
    q, out = rig.memory.zeros("q", (1, 128)), rig.memory.zeros("out", (1, 8))

    def record(software: bool) -> None:
        other, label = rig.on(as_kind(rig.device, software)), "layer00.attn.weights"
        other.run_op(ops.attention_weights, batch, label, config, q, pools, 0, keys, out)

    record(software=False)
    with pytest.raises(DeviceError, match="262,144 tokens need 67,593 rounds"):
        record(software=True)
