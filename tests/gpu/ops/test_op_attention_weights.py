"""Attention weights of a range of keys, against the float64 twin."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpu import ops
from gpu.config import ModelConfig
from gpu.errors import DeviceError
from gpu.kv.blocks import KvShape
from gpu.kv.pools import KvPools
from gpu.reference import ops as reference
from tests.gpu.kv.cache import LAYER, Cache, Rows
from tests.gpu.ops.rig import ROUNDING, Array, Rig, as_kind, compare, llama_config

pytestmark = pytest.mark.parity


@dataclass(frozen=True)
class Case:
    """`heads`: n_heads, n_kv_heads, head_dim; `rows`: (slot, position) of each; `keys`: first, n;
    `sharpness`: how large scores get."""

    heads: tuple[int, int, int]
    rows: tuple[tuple[int, int], ...]
    keys: tuple[int, int]
    dtype: str = "f32"
    bucket: int = 0
    sharpness: float = 1.0
    window: int | None = None
    cap: float | None = None

    def __str__(self) -> str:
        n_heads, n_kv_heads, head_dim = self.heads
        cut = f"{self.dtype}-{n_heads}/{n_kv_heads}x{head_dim}"
        cut += f"-window {self.window}-cap {self.cap}"
        return f"{cut}-{self.rows}-keys{self.keys}-×{self.sharpness:g}"

    @property
    def config(self) -> ModelConfig:
        return replace(
            config_of(self.heads), sliding_windows=(None, self.window), attn_logit_softcap=self.cap
        )


def config_of(heads: tuple[int, int, int]) -> ModelConfig:
    n_heads, n_kv_heads, head_dim = heads
    return llama_config(n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)


def filled(rig: Rig, case: Case, seed: int) -> Cache:
    """Keys up to the furthest row of each slot; NaN after them and in slots without rows."""
    lengths: dict[int, int] = {}
    for slot, position in case.rows:
        lengths[slot] = max(lengths.get(slot, 0), position + 1)
    config = config_of(case.heads)
    most = max(lengths.values())
    cache = Cache.scattered(rig, config, case.dtype, max(lengths) + 1, most, seed)
    cache.fill(rig, lengths, np.random.default_rng(seed))
    return cache


def weigh(rig: Rig, case: Case, cache: Cache, q: Array) -> Array:
    """Return the device's weights (n_rows, n_heads, n); fail if it wrote past them."""
    n_heads = case.heads[0]
    n_rows, (first, n) = len(case.rows), case.keys
    batch = rig.batch(Rows.of(*case.rows).step, bucket=case.bucket or n_rows)
    keys = rig.memory.zeros("keys", (2,), "u32", uniform=True)
    rig.memory.write(keys, np.array([first, n], np.uint32))
    queries, out = rig.input("q", q), rig.output("weights", n_rows, n_heads * n, n_heads * n)
    rig.run(
        lambda rec: ops.attention_weights(
            rec, batch, "weights", case.config, queries, cache.pools, LAYER, keys,
            out.tensor,
        )
    )  # fmt: skip
    return out.read().reshape(n_rows, n_heads, n)


def expected(case: Case, cache: Cache, q: Array) -> Array:
    rows = Rows.of(*case.rows)
    n_heads, _, head_dim = case.heads
    return reference.attention_weights(
        q.astype(np.float64).reshape(-1, n_heads, head_dim),
        rows.on(cache),
        cache.keys.astype(np.float64),
        *case.keys,
        reference.AttentionScoring(cap=case.cap, window=case.window),
    )


def bounds(case: Case, cache: Cache, q: Array, want: Array) -> Array:
    """A score is off by 8 roundings of ‖q‖‖k‖/√d, which moves its weight and the sum by that; exp
    is off by 3 + 2t roundings at distance t below the top, and the sum by what 12 merges leave."""
    n_heads, n_kv_heads, head_dim = case.heads
    whole = replace(case, keys=(0, max(position for _, position in case.rows) + 1))
    shares = expected(whole, cache, q)
    bound = np.empty_like(want)
    for row, (slot, position) in enumerate(case.rows):
        pool = cache.keys.astype(np.float64)
        keys = reference.gather(pool, cache.tables[slot], position + 1)
        for head in range(n_heads):
            query = q[row].reshape(n_heads, head_dim)[head] / np.sqrt(head_dim)
            longest = np.linalg.norm(keys[:, head * n_kv_heads // n_heads], axis=1).max()
            off = 8 * np.linalg.norm(query.astype(np.float64)) * longest
            greatest = shares[row, head].max()
            off += 4 * (case.cap or 0)  # 1 − e of the cap cancels where scores are small
            below = np.log(greatest / np.maximum(want[row, head], 1e-300))
            bound[row, head] = want[row, head] * (2 * off + 32 + 4 * below)
    return ROUNDING * bound


def check(rig: Rig, case: Case, seed: int = 0) -> Array:
    cache = filled(rig, case, seed)
    n_heads, _, head_dim = case.heads
    q = np.random.default_rng(seed + 1).normal(size=(len(case.rows), n_heads * head_dim))
    q = (q * case.sharpness).astype(np.float32)
    got, want = weigh(rig, case, cache, q), expected(case, cache, q)
    compare(f"attention_weights.{case.dtype}", case, got, want, bounds(case, cache, q, want), seed)
    return got


HEADS = [
    (1, 1, 4), (5, 1, 12), (9, 3, 64), (4, 2, 100), (6, 2, 128), (8, 1, 16), (13, 1, 8), (3, 3, 80),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_weights_of_heads_in_groups_of_every_width(
    rig: Rig, heads: tuple[int, int, int], dtype: str
) -> None:
    rows = ((0, 70), (2, 3), (0, 71), (1, 32))
    check(rig, Case(heads, rows, (0, 72), dtype, bucket=8), seed=heads[2])


# Blocks hold 16 keys; all lanes together take 256.
@pytest.mark.parametrize(
    ("heads", "dtype"), [((9, 3, 64), "q8"), ((3, 3, 80), "rotated4")], ids=str
)
def test_weights_of_quantised_keys(rig: Rig, heads: tuple[int, int, int], dtype: str) -> None:
    check(rig, Case(heads, ((0, 70), (1, 3), (0, 71), (2, 32)), (0, 80), dtype, bucket=8))


@pytest.mark.parametrize("position", [0, 1, 15, 16, 254, 255, 256, 257, 511, 513, 1023])
def test_weights_of_a_row_add_up_to_one(rig: Rig, position: int) -> None:
    case = Case((4, 2, 8), ((1, position), (0, position // 2)), (0, position + 1))
    sums = check(rig, case, seed=position).sum(axis=-1)
    assert sums == pytest.approx(np.ones_like(sums), abs=1e-5)


@pytest.mark.parametrize(
    "keys", [(0, 1), (299, 1), (300, 1), (300, 5), (17, 260), (255, 257), (1000, 3)], ids=str
)
def test_a_range_of_keys_is_part_of_the_whole(rig: Rig, keys: tuple[int, int]) -> None:
    """Equal bit for bit, and 0 after the row, where the cache may hold NaN."""
    case = Case((6, 3, 16), ((0, 299), (1, 300), (0, 20)), (0, 1003))
    cache = filled(rig, case, seed=7)
    q = np.random.default_rng(8).normal(size=(3, 96)).astype(np.float32)
    whole = weigh(rig, case, cache, q)
    first, n = keys
    part = weigh(rig, replace(case, keys=keys), cache, q)
    assert np.array_equal(part.view("u4"), whole[:, :, first : first + n].copy().view("u4"))
    for row, (_, position) in enumerate(case.rows):
        assert not part[row, :, max(0, position + 1 - first) :].any()


@pytest.mark.parametrize("sharpness", [0.0, 1e-3, 30.0, 1e4])
def test_from_uniform_attention_to_one_key(rig: Rig, sharpness: float) -> None:
    check(rig, Case((4, 2, 16), ((0, 99), (1, 5), (0, 40)), (0, 100), sharpness=sharpness))


@pytest.mark.parametrize(("window", "cap"), [(1, None), (16, None), (37, 5.0), (500, 50.0)])
def test_windows_and_soft_caps(rig: Rig, window: int, cap: float | None) -> None:
    case = Case(
        (6, 3, 12), ((0, 299), (1, 20), (0, 36), (0, 37)), (0, 300), "f16",
        sharpness=3.0, window=window, cap=cap,
    )  # fmt: skip
    got = check(rig, case)
    for row, (_, position) in enumerate(case.rows):
        assert not got[row, :, : max(0, position + 1 - window)].any()


@pytest.mark.parametrize(("position", "dtype"), [(8_190, "f32"), (32_767, "f16")])
def test_a_long_context(rig: Rig, position: int, dtype: str) -> None:
    """A device that ends loops early, as Mesa's software device does, would show."""
    sums = check(rig, Case((1, 1, 64), ((0, position),), (0, position + 1), dtype)).sum(axis=-1)
    assert sums == pytest.approx(np.ones_like(sums), abs=1e-5)


@pytest.mark.bits
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it_or_on_its_blocks(rig: Rig) -> None:
    rows = ((0, 300), (1, 32), (0, 5), (0, 299))
    case = Case((8, 4, 8), rows, (3, 290), bucket=16)
    q = np.random.default_rng(5).normal(size=(len(rows), 64)).astype(np.float32)
    seen = []
    for seed in range(2):  # the same contents in other blocks
        cache = Cache.scattered(rig, config_of(case.heads), "f16", 2, 301, seed=seed)
        cache.fill(rig, {0: 301, 1: 33}, np.random.default_rng(9))
        seen.append(weigh(rig, case, cache, q))
        alone = [
            weigh(rig, replace(case, rows=(row,), bucket=0), cache, q[i : i + 1])
            for i, row in enumerate(rows)
        ]
        seen.append(np.concatenate(alone))
    for other in seen[1:]:
        assert np.array_equal(seen[0].view("u4"), other.view("u4"))


def test_a_context_that_a_software_device_would_not_finish_is_refused(rig: Rig) -> None:
    config = llama_config(head_dim=128, context=1 << 18)
    pools = KvPools(config, KvShape(1, 1 << 18), "f16", 1, rig.memory)
    batch, keys = rig.batch([], bucket=1), rig.memory.zeros("keys", (2,), "u32", uniform=True)
    q, out = rig.memory.zeros("q", (1, 128)), rig.memory.zeros("out", (1, 8))

    def record(software: bool) -> None:
        other = Rig(as_kind(rig.device, software), rig.kernels)
        other.run(
            lambda rec: ops.attention_weights(
                rec, batch, "layer00.attn.weights", config, q, pools, 0, keys, out
            )
        )

    record(software=False)
    with pytest.raises(DeviceError, match="262,144 tokens need 67,593 rounds"):
        record(software=True)
