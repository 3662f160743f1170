"""QKV projection, RoPE and writes to the paged cache, against the float64 twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpu import ops
from gpu.checkpoint.packing import FORMATS, pack, row_words, unpack
from gpu.checkpoint.weights import rotary_order
from gpu.config import ModelConfig
from gpu.errors import DeviceError
from gpu.models.rope import rope_cos_sin
from gpu.reference import ops as reference
from gpu.webgpu.tiling import GPU, SOFTWARE_LOADS, Tuning
from tests.gpu.kv.cache import LAYER, Cache, Rows
from tests.gpu.ops.rig import ROUNDING, Array, Rig, compare, llama_config

pytestmark = pytest.mark.parity
CONTEXT = 100
EPS = 1e-5
SOMEWHERE = Rows.of((0, 0), (1, 15), (2, 16), (0, 1), (1, 17), (2, 47), (0, 99), (1, 48))
F16_ROUNDING, F16_DENORMAL = 2.0**-11, 2.0**-25


@dataclass(frozen=True)
class Case:
    """heads: (n_heads, n_kv_heads, head_dim); width: of x; bucket: rows of the plan, 0: as many."""

    heads: tuple[int, int, int]
    rows: Rows
    kv: str = "f32"
    dtype: str = "f32"
    rotary_dim: int | None = None
    width: int = 40
    bias: bool = True
    norm: bool = True
    bucket: int = 0
    shards: int = 1
    seed: int = 0

    @property
    def all_heads(self) -> int:
        return self.heads[0] + 2 * self.heads[1]

    @property
    def config(self) -> ModelConfig:
        n_heads, n_kv_heads, head_dim = self.heads
        return llama_config(
            n_layers=2,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            hidden_size=self.width,
            rotary_dim=self.rotary_dim,
        )

    def __str__(self) -> str:
        n_heads, n_kv_heads, head_dim = self.heads
        heads = f"{n_heads}/{n_kv_heads}x{head_dim}:{self.rotary_dim}"
        return f"{self.dtype}-{self.kv}-{heads}-{len(self.rows.slots)}rows"


class Inputs:
    """Random float32 numbers of a case: x (n_rows, width), weight (outputs, width), biases
    (outputs,), gain (width,); `stored` is the weight as its format keeps it."""

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(case.seed)
        n, width = case.all_heads * case.heads[2], case.width
        self.x = rng.normal(size=(len(case.rows.slots), width)).astype(np.float32)
        self.weight = (rng.normal(size=(n, width)) / np.sqrt(width)).astype(np.float32)
        self.biases = rng.normal(size=n).astype(np.float32)
        self.gain = rng.uniform(0.5, 1.5, width).astype(np.float32)
        self.cos_sin = rope_cos_sin(case.config, CONTEXT)
        packed = pack(case.dtype, self.weight)
        self.stored = unpack(case.dtype, packed, width).astype(np.float64)

    def bound(self, results: Sequence[Array]) -> float:
        """Return the bound of a fused matmul (see test_op_matmul); RoPE adds two results."""
        normed = reference.rms_norm(self.x.astype(np.float64), self.gain.astype(np.float64), EPS)
        size = np.linalg.norm(normed, axis=1).max() * np.linalg.norm(self.stored, axis=1).max()
        largest = max(np.nanmax(np.abs(result)) for result in results)
        sums = 8 * (size + np.abs(self.biases).max())
        return float(1.5 * ROUNDING * (sums + (16 + np.sqrt(self.x.shape[1])) * largest))


def check(rig: Rig, case: Case) -> None:
    """Compare queries, keys and values with the twin, each within its bound."""
    given = Inputs(case)
    cache = Cache.scattered(rig, case.config, case.kv, n_slots=3, n_tokens=CONTEXT, seed=case.seed)
    q = run(rig, case, given, cache)
    filled_in = cache.arrays()
    keys, values = filled_in.keys, filled_in.values
    want = reference.qkv(
        given.x.astype(np.float64),
        given.stored,
        given.cos_sin.astype(np.float64),
        case.rows.on(cache),
        filled_in,
        case.heads[0],
        norm=reference.Norm(given.gain.astype(np.float64), EPS) if case.norm else None,
        bias=given.biases.astype(np.float64) if case.bias else None,
    )
    bound = given.bound((want, keys, values))
    compare("qkv.q", case, q, want.reshape(q.shape), np.array(bound), case.seed)
    rounding, tiny = (F16_ROUNDING, F16_DENORMAL) if case.kv == "f16" else (0.0, 0.0)
    for name, pool, filled in (
        ("keys", cache.pools.keys[LAYER], keys),
        ("values", cache.pools.values[LAYER], values),
    ):
        got, exact = written(rig, pool, filled), filled[~np.isnan(filled)]
        result = f"qkv.{name}.{case.kv}"
        compare(result, case, got, exact, bound + rounding * np.abs(exact) + tiny, case.seed)


def run(rig: Rig, case: Case, given: Inputs, cache: Cache) -> Array:
    """Run the op on a device; return its queries (n_rows, n_heads · head_dim)."""
    n_rows, (n_heads, _, head_dim) = len(case.rows.slots), case.heads
    batch = rig.batch(case.rows.step, bucket=case.bucket or n_rows, blocks=cache.pools.blocks[0])
    shard_rows = -(-case.all_heads // case.shards) * head_dim
    limit = shard_rows * 4 * row_words(case.dtype, case.width) if case.shards > 1 else None
    matrix, bias = rig.heads(given.weight, given.biases, case.config, case.dtype, limit)
    assert len(matrix.shards) >= case.shards
    gain = rig.memory.upload("gain", np.pad(given.gain, (0, -case.width % 32)))
    q = rig.output("q", n_rows, n_heads * head_dim)
    rig.run(
        lambda rec: ops.qkv(
            rec,
            batch,
            "qkv",
            case.config,
            rig.input("x", given.x),
            matrix,
            rig.memory.upload("rope_cos_sin", given.cos_sin) if case.rotary_dim != 0 else None,
            cache.pools,
            LAYER,
            q.tensor,
            norm=ops.Norm(gain, EPS) if case.norm else None,
            bias=bias if case.bias else None,
        )
    )
    return q.read()


def written(rig: Rig, pool: ops.Tensor, want: Array) -> Array:
    """Return what the op wrote; fail if it wrote elsewhere, or not everywhere it should."""
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
    check(rig, Case(heads, SOMEWHERE, kv, seed=heads[0]))


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize(("n_rows", "bucket"), [(1, 1), (1, 2), (3, 4), (65, 128), (100, 128)])
def test_every_number_of_rows_in_a_bucket(rig: Rig, n_rows: int, bucket: int, kv: str) -> None:
    rows = Rows.of(*((0, position) for position in range(n_rows)))
    check(rig, Case((2, 1, 8), rows, kv, bucket=bucket, seed=n_rows))


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_format_of_the_weight(rig: Rig, dtype: str) -> None:
    for width, bias in ((7, False), (32, True), (100, False)):
        check(rig, Case((3, 1, 12), SOMEWHERE, "f16", dtype, width=width, bias=bias))


@pytest.mark.parametrize("shards", [2, 4])
def test_a_weight_cut_into_shards(rig: Rig, shards: int) -> None:
    check(rig, Case((4, 2, 20), SOMEWHERE, dtype="f16", shards=shards))


@pytest.mark.parametrize(
    ("heads", "rotary_dim"), [((5, 1, 12), 8), ((4, 2, 100), 0), ((3, 3, 16), 4), ((2, 1, 80), 20)]
)
def test_heads_with_partial_rotary_or_none(
    rig: Rig, heads: tuple[int, int, int], rotary_dim: int
) -> None:
    for kv, norm in (("f32", True), ("f16", False)):
        check(rig, Case(heads, SOMEWHERE, kv, rotary_dim=rotary_dim, norm=norm))


@pytest.mark.parametrize("head_dim", [4, 8, 12, 100, 128])
def test_each_vec4_of_the_rotary_order_holds_two_rotary_pairs(head_dim: int) -> None:
    order = rotary_order(head_dim)
    assert sorted(order) == list(range(head_dim))
    vec4s = order.reshape(-1, 4)
    assert (vec4s[:, 1] == vec4s[:, 0] + 1).all()
    assert (vec4s[:, 2:] == vec4s[:, :2] + head_dim // 2).all()


def test_rope_keeps_its_accuracy_at_far_positions(rig: Rig) -> None:
    """The angle of position 131071 has 2^17 radians; float32 alone has it to 0.01."""
    config = llama_config(head_dim=8)
    context = 131_072
    cos_sin = rope_cos_sin(config, context)
    angles = np.outer([context - 1], config.rope.inv_freq(8))
    bound = np.full(4, ROUNDING)
    compare("rope_cos_sin.cos", "far", cos_sin[-1, :, 0], np.cos(angles)[0], bound, 0)
    compare("rope_cos_sin.sin", "far", cos_sin[-1, :, 1], np.sin(angles)[0], bound, 0)


def test_a_head_too_wide_for_any_binding_is_refused_by_its_bytes(rig: Rig) -> None:
    config = llama_config(head_dim=64, hidden_size=64)
    weight = np.zeros((3 * 64, 64), np.float32)
    with pytest.raises(DeviceError, match=r"64 rows .* take 16,384 bytes, .* binds at most 8,192"):
        rig.heads(weight, weight[:, 0], config, "f32", 8192)
