"""Projections to heads, rotary positions and the writes into the paged cache against their float64
twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import ops, reference
from gpu.errors import DeviceError
from gpu.models.llama import rotations
from gpu.packing import FORMATS, pack, row_words, unpack
from gpu.plan import Recorder
from gpu.tiling import GPU, SOFTWARE_LOADS, Tuning
from gpu.weights import rotary_order
from tests.gpu.cache import LAYER, Cache, Rows
from tests.gpu.rig import ROUNDING, Array, Rig, compare, llama_config

pytestmark = pytest.mark.parity
CONTEXT = 100
EPS = 1e-5
SOMEWHERE = Rows.of((0, 0), (1, 15), (2, 16), (0, 1), (1, 17), (2, 47), (0, 99), (1, 48))
F16_ROUNDING, F16_DENORMAL = 2.0**-11, 2.0**-25


def check(
    rig: Rig,
    heads: tuple[int, int, int],
    rows: Rows,
    *,
    kv: str = "f32",
    dtype: str = "f32",
    width: int = 40,
    bias: bool = True,
    bucket: int = 0,
    shards: int = 1,
    seed: int = 0,
) -> None:
    n_heads, n_kv_heads, head_dim = heads
    config = llama_config(
        n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, hidden_size=width
    )
    rng = np.random.default_rng(seed)
    n_rows, all_heads = len(rows.slots), n_heads + 2 * n_kv_heads
    x = rng.normal(size=(n_rows, width)).astype(np.float32)
    weight = (rng.normal(size=(all_heads * head_dim, width)) / np.sqrt(width)).astype(np.float32)
    biases = rng.normal(size=all_heads * head_dim).astype(np.float32)
    gain = rng.uniform(0.5, 1.5, width).astype(np.float32)
    turns = rotations(config, CONTEXT)
    cache = Cache.scattered(rig, config, kv, n_slots=3, n_tokens=CONTEXT, seed=seed)
    batch = rig.batch(rows.step, bucket=bucket or n_rows, blocks=cache.pools.blocks)
    limit = -(-all_heads // shards) * head_dim * 4 * row_words(dtype, width) if shards > 1 else None
    matrix, on_device = rig.heads(weight, biases, config, dtype, limit)
    assert len(matrix.shards) >= shards
    q = rig.output("q", n_rows, n_heads * head_dim)

    def record(rec: Recorder) -> None:
        ops.qkv(
            rec,
            batch,
            "qkv",
            config,
            rig.input("x", x),
            matrix,
            rig.memory.upload("rotations", turns),
            cache.pools,
            LAYER,
            q.tensor,
            norm=ops.Norm(rig.memory.upload("gain", np.pad(gain, (0, -width % 32))), EPS),
            bias=on_device if bias else None,
        )

    rig.run(record)
    stored = unpack(dtype, pack(dtype, weight), width).astype(np.float64)
    keys, values = cache.keys.astype(np.float64), cache.values.astype(np.float64)
    given = {"gain": gain.astype(np.float64), "eps": EPS}
    want = reference.qkv(
        x.astype(np.float64), stored, turns.astype(np.float64), rows.slots, rows.positions,
        cache.tables, keys, values, n_heads, bias=biases.astype(np.float64) if bias else None,
        **given,
    )  # fmt: skip
    case = f"{dtype}-{kv}-{n_heads}/{n_kv_heads}x{head_dim}-{n_rows}rows"
    # The bound of a fused product (see test_op_matmul); a rotation adds up two of them.
    normed = reference.rms_norm(x.astype(np.float64), given["gain"], EPS)
    size = np.linalg.norm(normed, axis=1).max() * np.linalg.norm(stored, axis=1).max()
    largest = max(np.abs(want).max(), np.nanmax(np.abs(keys)), np.nanmax(np.abs(values)))
    bound = 1.5 * ROUNDING * (8 * (size + np.abs(biases).max()) + (16 + np.sqrt(width)) * largest)
    compare("qkv.q", case, q.read(), want.reshape(n_rows, -1), bound, seed)
    rounding = F16_ROUNDING if kv == "f16" else 0.0
    tiny = F16_DENORMAL if kv == "f16" else 0.0
    for name, pool, exact in (
        ("keys", cache.pools.keys[LAYER], keys),
        ("values", cache.pools.values[LAYER], values),
    ):
        got, exact = written(rig, pool, exact), exact[~np.isnan(exact)]
        compare(f"qkv.{name}.{kv}", case, got, exact, bound + rounding * np.abs(exact) + tiny, seed)


def written(rig: Rig, pool: ops.Tensor, want: Array) -> Array:
    """What the op wrote; fails when it wrote elsewhere, or not everywhere it should."""
    after = rig.memory.read(pool)
    assert np.array_equal(np.isnan(after), np.isnan(want)), f"{pool!r}: wrote in the wrong places"
    return after[~np.isnan(after)]


HEADS = [(1, 1, 4), (8, 4, 8), (5, 1, 12), (9, 3, 64), (4, 2, 100), (3, 3, 128)]
TUNINGS: dict[str, Tuning | None] = {"own": None, "loads": SOFTWARE_LOADS, "gpu": GPU}


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_positions_around_block_borders(
    rig: Rig, heads: tuple[int, int, int], kv: str, tuning: str
) -> None:
    chosen = TUNINGS[tuning]
    if chosen:
        rig = Rig(replace(rig.device, tuning=chosen), rig.kernels)
    check(rig, heads, SOMEWHERE, kv=kv, seed=heads[0])


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize(("n_rows", "bucket"), [(1, 1), (1, 2), (3, 4), (65, 128), (100, 128)])
def test_every_share_of_a_bucket(rig: Rig, n_rows: int, bucket: int, kv: str) -> None:
    rows = Rows.of(*((0, position) for position in range(n_rows)))
    check(rig, (2, 1, 8), rows, kv=kv, bucket=bucket, seed=n_rows)


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_format_of_the_weight(rig: Rig, dtype: str) -> None:
    for width, bias in ((7, False), (32, True), (100, False)):
        check(rig, (3, 1, 12), SOMEWHERE, dtype=dtype, width=width, bias=bias, kv="f16")


@pytest.mark.parametrize("shards", [2, 4])
def test_a_weight_cut_into_shards(rig: Rig, shards: int) -> None:
    check(rig, (4, 2, 20), SOMEWHERE, dtype="f16", shards=shards)


@pytest.mark.parametrize("head_dim", [4, 8, 12, 100, 128])
def test_four_rows_in_order_hold_two_rotary_pairs(head_dim: int) -> None:
    order = rotary_order(head_dim)
    assert sorted(order) == list(range(head_dim))
    fours = order.reshape(-1, 4)
    assert (fours[:, 1] == fours[:, 0] + 1).all()
    assert (fours[:, 2:] == fours[:, :2] + head_dim // 2).all()


def test_a_far_position_keeps_its_accuracy(rig: Rig) -> None:
    """The angle of position 131071 has 2^17 radians; float32 alone would know it to 0.01."""
    config = llama_config(head_dim=8)
    context = 131_072
    turns = rotations(config, context)
    angles = np.outer([context - 1], config.rope.inv_freq(8))
    bound = np.full(4, ROUNDING)
    compare("rotations.cos", "far", turns[-1, :, 0], np.cos(angles)[0], bound, 0)
    compare("rotations.sin", "far", turns[-1, :, 1], np.sin(angles)[0], bound, 0)


def test_a_head_too_wide_for_any_binding_is_refused_by_its_bytes(rig: Rig) -> None:
    config = llama_config(head_dim=64, hidden_size=64)
    weight = np.zeros((3 * 64, 64), np.float32)
    with pytest.raises(DeviceError, match=r"64 rows .* take 16,384 bytes, .* binds 8,192 at most"):
        rig.heads(weight, weight[:, 0], config, "f32", 8192)
