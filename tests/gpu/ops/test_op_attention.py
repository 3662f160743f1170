"""Paged attention and its entropy against their float64 twin."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from gpu.checks.attention import (
    SOME_ROWS,
    AttentionCase,
    attend,
    check_attention,
    split_batch,
)
from gpu.checks.kv_cache import heads_config
from gpu.checks.rig import normal, with_info
from gpu.info import AdapterInfo
from gpu.ops.attention_tiling import AttentionTiling
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DISCRETE, DISCRETE_SPLIT_ROWS, SPLIT_ROWS, DevicePolicy
from gpu.webgpu.kernel_source import workgroup_memory
from gpu.webgpu.kernels import Kernel, Kernels, compose
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.parity
KINDS = ("shuffle", "loading", "gpu", "gpu-shared")
"""A software device with subgroup shuffles, one without, a GPU, and one whose steps of more than
`split_rows` rows copy keys and values into workgroup memory."""
MANY_ROWS = 2 * DISCRETE_SPLIT_ROWS
"""Rows of a plan whose attention no device splits."""


@pytest.fixture(scope="module", params=KINDS)
def tiled_rig(request: pytest.FixtureRequest, device: Device) -> Rig:
    """The device posing as each kind in turn, for different attention tilings."""
    kind = as_kind(device, software=not request.param.startswith("gpu"))
    if request.param == "loading":
        features = tuple(f for f in kind.info.features if f != "subgroup")
        kind = with_info(kind, features=features)
    elif request.param == "shuffle" and "subgroup" not in kind.info.features:
        pytest.skip(f"{kind.info.name} has no subgroups")
    elif not kind.info.software:
        least = 1 if request.param == "gpu-shared" else None
        kind = replace(kind, policy=replace(kind.policy, shared_attention_workgroups=least))
    return Rig(kind, Kernels(kind))


# Blocks hold 16 keys, tiles 32 or more, splits 128 or 512.
POSITIONS = [
    (1,), (14, 15, 16), (33, 47, 48), (200, 0, 7), (254, 255, 256), (510, 511, 512),
]  # fmt: skip
MORE_POSITIONS = [
    (0,), (30, 31, 32), (63, 64, 65), (127, 128, 0), (1022, 1023, 1024), (767, 768, 3),
]  # fmt: skip


@pytest.mark.parametrize(
    "positions",
    [*POSITIONS, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE_POSITIONS)],
    ids=str,
)
def test_positions_around_rounds_blocks_and_splits(
    tiled_rig: Rig, positions: tuple[int, ...]
) -> None:
    rows = tuple((slot, position) for slot, position in enumerate(positions))
    for dtype, splits in (("f32", 1), ("f16", 16)):
        check_attention(
            tiled_rig, AttentionCase((8, 4, 8), rows, dtype, splits=splits, seed=sum(positions))
        )


HEADS = [
    (1, 1, 4), (8, 8, 8), (5, 1, 12), (9, 3, 64), (4, 2, 100), (6, 2, 128), (8, 1, 16), (13, 1, 8),
    (32, 2, 20), (3, 3, 80),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_heads_in_groups_of_every_width(rig: Rig, heads: tuple[int, int, int], dtype: str) -> None:
    rows = ((0, 70), (1, 3), (0, 71), (2, 32))
    check_attention(
        rig, AttentionCase(heads, rows, dtype, bucket=8, capture=heads[2] != 12, seed=heads[2])
    )


def test_a_quantised_cache_in_every_tiling(tiled_rig: Rig) -> None:
    check_attention(tiled_rig, AttentionCase((9, 3, 64), SOME_ROWS, "q8q4", bucket=MANY_ROWS))


@pytest.mark.parametrize(
    ("heads", "dtype"),
    [((6, 2, 128), "q8"), ((3, 3, 80), "q8q4"), ((13, 1, 8), "rotated4"), ((5, 1, 24), "rotated4")],
    ids=str,
)
def test_quantised_caches(rig: Rig, heads: tuple[int, int, int], dtype: str) -> None:
    check_attention(rig, AttentionCase(heads, SOME_ROWS, dtype, bucket=MANY_ROWS, seed=heads[2]))


@pytest.mark.parametrize("dtype", ["q8", "rotated4"])
def test_splits_and_windows_of_quantised_caches(rig: Rig, dtype: str) -> None:
    rows = ((0, 600), (1, 255), (2, 256))
    check_attention(rig, AttentionCase((2, 1, 64), rows, dtype, splits=4, window=300, cap=30.0))


@pytest.mark.parametrize("heads", [(9, 3, 64), (13, 1, 8), (3, 3, 80)], ids=str)
def test_groups_in_every_tiling(tiled_rig: Rig, heads: tuple[int, int, int]) -> None:
    rows = ((0, 70), (0, 71), (0, 72), (1, 3), (2, 32))
    check_attention(tiled_rig, AttentionCase(heads, rows, "f16", bucket=MANY_ROWS, seed=heads[2]))


def test_tilings_fit_every_device() -> None:
    """16 KiB of workgroup memory and 256 lanes; whole tiles in a split, whole loads in a key."""
    for n_heads, n_kv_heads, head_dim in (*HEADS, (32, 8, 64), (64, 1, 256), (8, 1, 512)):
        config = heads_config((n_heads, n_kv_heads, head_dim))
        for dtype in ("f32", "f16", *(("q8", "q8q4") if head_dim % 8 == 0 else ())):
            for software, features in ((True, ("subgroup",)), (True, ()), (False, ())):
                policy = DevicePolicy.of(AdapterInfo("", "", "", "", software, features))
                own = replace(policy, shared_attention_workgroups=None)
                few, many = (
                    AttentionTiling.of(config, dtype, n, own)
                    for n in (own.split_rows, own.split_rows + 1)
                )
                assert replace(many, rows=few.rows) == few
                for tiling in (few, many):
                    assert workgroup_bytes(tiling) <= 16 << 10
                    assert tiling.lanes <= 256
                    keys = tiling.value_groups if tiling.loads == "coalesced" else 4 * tiling.lanes
                    assert tiling.split % keys == 0
                    assert tiling.value_groups * head_dim // tiling.chunk <= tiling.lanes
                    assert head_dim % tiling.chunk == 0
                shared = AttentionTiling.of(config, dtype, 512, policy)
                copies = not software and head_dim <= 256
                assert shared.loads == ("shared" if copies else many.loads)
                assert shared.value_groups == few.value_groups, "the order of sums"


def test_a_split_is_shared_at_once_where_there_is_room() -> None:
    """Each round of partial scores or values costs two barriers."""

    def rounds(heads: tuple[int, int, int], dtype: str, kib: int) -> tuple[int, int]:
        limits = {"max-compute-workgroup-storage-size": kib << 10}
        info = AdapterInfo("", "", "", DISCRETE, software=False, features=(), limits=limits)
        tiling = AttentionTiling.of(heads_config(heads), dtype, 1, DevicePolicy.of(info))
        sizes = {name.removeprefix("const "): size for name, size in tiling.prelude.items()}
        loaded, scored, added = (
            int(sizes[name].rstrip("u"))
            for name in ("LOADED_KEYS", "SCORED_QUERIES", "ADDED_QUERIES")
        )
        assert workgroup_bytes(tiling) <= kib << 10
        batches = tiling.split // tiling.value_groups // loaded
        return batches * tiling.heads // scored, tiling.heads // added

    assert rounds((32, 8, 64), "f16", 48) == (1, 1)
    assert rounds((32, 8, 64), "f16", 16) == (2, 2)
    assert rounds((32, 8, 128), "f16", 48) == (1, 1)
    assert rounds((32, 8, 128), "f16", 16) == (4, 4)
    assert rounds((32, 8, 128), "f32", 48) == (2, 1)
    assert rounds((9, 3, 64), "f16", 24) == (1, 1)


def test_only_many_rows_of_a_gpu_copy_keys_and_values() -> None:
    def loads(heads: tuple[int, int, int], n_rows: int, kind: str = DISCRETE, **info: bool) -> str:
        policy = DevicePolicy.of(AdapterInfo("", "", "", kind, info.get("software", False), ()))
        return AttentionTiling.of(heads_config(heads), "f16", n_rows, policy).loads

    assert loads((32, 8, 64), 40) == "shared", "5 tiles of 8 rows of each of 8 groups"
    assert loads((32, 8, 64), 32) == "coalesced", "splits have workgroups"
    assert loads((8, 2, 64), 128) == "coalesced", "32 workgroups"
    assert loads((32, 8, 64), SPLIT_ROWS + 1, "integrated GPU") == "shared"
    assert loads((32, 32, 64), SPLIT_ROWS, "integrated GPU") == "coalesced"
    assert loads((1, 1, 64), 128, "integrated GPU") == "coalesced", "4 workgroups"
    assert loads((64, 1, 64), 128) == "shared", "2 workgroups of 32 heads for each row"
    assert loads((8, 4, 256), 512) == "shared"
    assert loads((8, 4, 260), 512) == "coalesced", "heads that are too large"
    assert loads((32, 8, 64), 512, software=True) != "shared"


def workgroup_bytes(tiling: AttentionTiling) -> int:
    """Return the bytes of workgroup memory of shaders/attention.wgsl."""
    source = compose("attention", tiling.prelude, tiling.lib)
    constants = {"SPLIT": tiling.split}
    return workgroup_memory(Kernel("attention", None, (), source, constants, Future()))


@pytest.mark.parametrize("dtype", ["f16", "q8q4"])
@pytest.mark.parametrize("heads", [(6, 2, 16), (9, 3, 64)])
@pytest.mark.slow
def test_rows_of_different_sequences_alone_or_together_have_the_same_bits(
    tiled_rig: Rig, heads: tuple[int, int, int], dtype: str
) -> None:
    rows = tuple((slot, 3 + 7 * slot % 60 + slot) for slot in range(11))
    case = AttentionCase(heads, rows, dtype, bucket=MANY_ROWS, apart=True)
    check_attention(tiled_rig, case)
    rng = np.random.default_rng(0)
    cache, q = case.filled(tiled_rig, 0, rng), normal(rng, len(rows), case.width)
    apart, _ = attend(tiled_rig, case, cache, q)
    together, _ = attend(tiled_rig, replace(case, apart=False), cache, q)
    assert apart.tobytes() == together.tobytes()


@pytest.mark.parametrize(
    ("heads", "dtype"), [((9, 3, 64), "f16"), ((24, 2, 12), "f32"), ((6, 2, 128), "q8")], ids=str
)
@pytest.mark.slow
def test_the_last_workgroup_merges_with_the_bits_of_a_second_dispatch(
    device: Device, heads: tuple[int, int, int], dtype: str
) -> None:
    """Rows of unlike numbers of splits, step after step: counts begin at 0 each time."""
    posing = with_info(device, software=False, kind=DISCRETE)
    rows = tuple((slot, position) for slot, position in enumerate((900, 127, 128, 640, 3)))
    case = AttentionCase(heads, rows, dtype, splits=8, window=700)
    found = []
    for merged_splits in (0, 16):
        kind = replace(posing, policy=replace(posing.policy, merged_splits=merged_splits))
        rig = Rig(kind, Kernels(kind))
        cache = case.filled(rig, 0, np.random.default_rng(0))
        q = normal(np.random.default_rng(1), len(rows), case.width)
        batch = split_batch(rig, case)
        for _ in range(3):
            out, entropy = attend(rig, case, cache, q, batch)
            assert entropy is not None
            found.append(out.tobytes() + entropy.tobytes())
    assert len(set(found)) == 1


@pytest.mark.slow
def test_as_many_rows_as_a_discrete_gpu_splits_have_the_bits_of_one_pass(device: Device) -> None:
    posing = with_info(device, software=False, kind=DISCRETE)
    rig = Rig(posing, Kernels(posing))
    rows = tuple((slot, 300 - 9 * slot) for slot in range(DISCRETE_SPLIT_ROWS))
    case = AttentionCase((6, 2, 16), rows, "f16", splits=4)
    check_attention(rig, case)
    cache = case.filled(rig, 0, np.random.default_rng(0))
    q = normal(np.random.default_rng(1), len(rows), case.width)
    split, in_one_pass = (
        attend(rig, replace(case, splits=splits, apart=splits == 1), cache, q) for splits in (4, 1)
    )
    assert [x.tobytes() for x in split if x is not None] == [
        x.tobytes() for x in in_one_pass if x is not None
    ]


@pytest.mark.parametrize("sharpness", [0.0, 1e-3, 30.0, 1e4])
def test_from_uniform_attention_to_one_key(rig: Rig, sharpness: float) -> None:
    check_attention(rig, AttentionCase((4, 2, 16), ((0, 99), (1, 5), (0, 40)), sharpness=sharpness))


# Tiles hold 32 or more keys, splits 128 or 512: windows begin at every offset in them.
@pytest.mark.parametrize("splits", [1, 16])
@pytest.mark.parametrize("window", [1, 7, 33, 256, 600])
def test_a_sliding_window_of_keys(tiled_rig: Rig, window: int, splits: int) -> None:
    rows = ((0, 0), (1, 31), (2, 300), (3, 599), (4, 600), (5, 1023), (6, window - 1), (7, window))
    check_attention(
        tiled_rig,
        AttentionCase((6, 2, 12), rows, "f16", splits=splits, window=window, capture=window != 7),
    )


@pytest.mark.parametrize("window", [20, 300])
def test_sliding_windows_of_consecutive_rows(tiled_rig: Rig, window: int) -> None:
    """Workgroups of several rows, whose windows begin at different keys."""
    rows = (*((0, position) for position in range(480, 540)), (1, 3), (2, 700), (0, 10))
    check_attention(tiled_rig, AttentionCase((6, 3, 8), rows, bucket=64, window=window))


@pytest.mark.parametrize("splits", [1, 16])
@pytest.mark.parametrize(
    ("window", "masked"),
    [
        (None, ((0, 600), (0, 31), (300, 301), (40, 520), (0, 0))),  # whole tiles and splits
        (200, ((399, 402), (31, 32), (120, 300), (0, 599), (700, 900))),  # all but itself
    ],
)
def test_masked_keys(
    tiled_rig: Rig, window: int | None, masked: tuple[tuple[int, int], ...], splits: int
) -> None:
    """Keys at the edges of tiles and splits, before windows, at the row itself and after it."""
    rows = ((0, 600), (1, 31), (2, 300), (3, 599), (4, 600))
    check_attention(
        tiled_rig,
        AttentionCase((6, 2, 12), rows, "f16", splits=splits, window=window, masked=masked),
    )


def test_masked_keys_of_consecutive_rows(tiled_rig: Rig) -> None:
    rows = (*((0, position) for position in range(480, 540)), (1, 3), (2, 700), (0, 10))
    masked = ((0, 10), (1, 3), (128, 512))
    check_attention(tiled_rig, AttentionCase((6, 3, 8), rows, bucket=64, masked=masked))


def test_no_masked_keys_change_no_bit(tiled_rig: Rig) -> None:
    rows = (*((0, position) for position in range(120, 150)), (1, 3), (2, 700))
    case = AttentionCase((9, 3, 64), rows, "f16", bucket=64, window=300)
    cache = case.filled(tiled_rig, 0, np.random.default_rng(1))
    q = normal(np.random.default_rng(2), len(rows), case.width)
    plain, masked = (
        attend(tiled_rig, replace(case, masked=masked), cache, q)
        for masked in ((), ((0, 0), (9, 9), (701, 900)))
    )
    assert [x.tobytes() for x in plain if x is not None] == [
        x.tobytes() for x in masked if x is not None
    ]


@pytest.mark.slow
def test_a_rows_bits_do_not_depend_on_the_windows_of_other_rows(tiled_rig: Rig) -> None:
    """A row at an early position makes its workgroup walk tiles that other rows do not see."""
    heads, rows = (4, 1, 16), ((0, 700), (0, 701), (0, 90), (0, 702), (0, 5))
    case = AttentionCase(heads, rows, "f16", 16, window=50)
    cache = case.filled(tiled_rig, 0, np.random.default_rng(1))
    q = normal(np.random.default_rng(2), 5, case.width)
    together, entropy = attend(tiled_rig, case, cache, q)
    assert entropy is not None
    for i, row in enumerate(rows):
        for splits in (1, 8):
            alone = replace(case, at=(row,), bucket=0, splits=splits)
            out, own = attend(tiled_rig, alone, cache, q[i : i + 1])
            assert own is not None
            assert np.array_equal(out.view("u4")[0], together.view("u4")[i])
            assert np.array_equal(own.view("u4")[0], entropy.view("u4")[i])


@pytest.mark.parametrize(("cap", "sharpness"), [(50.0, 1.0), (5.0, 30.0), (1.0, 1e4)])
def test_scores_that_are_capped_and_scaled(rig: Rig, cap: float, sharpness: float) -> None:
    rows = ((0, 99), (1, 5), (0, 40))
    check_attention(
        rig, AttentionCase((4, 2, 12), rows, sharpness=sharpness, cap=cap, scale=0.1, window=64)
    )


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_long_context(rig: Rig, dtype: str) -> None:
    check_attention(rig, AttentionCase((8, 4, 8), ((0, 2047), (1, 1500)), dtype, splits=8))
    for splits in (1, 32):
        check_attention(rig, AttentionCase((9, 3, 64), ((0, 8190),), dtype, splits=splits))


def test_a_very_long_context(rig: Rig) -> None:
    """A device that ends loops early, as Mesa's software device does, would show."""
    check_attention(rig, AttentionCase((1, 1, 64), ((0, 32_767),)))


@pytest.mark.parametrize("heads", [(2, 1, 8), (8, 1, 16)], ids=str)
def test_a_prompt_attends_only_to_what_came_before(
    tiled_rig: Rig, heads: tuple[int, int, int]
) -> None:
    check_attention(
        tiled_rig, AttentionCase(heads, tuple((0, position) for position in range(100)), bucket=128)
    )


def test_a_prompt_that_crosses_the_edge_of_a_split(tiled_rig: Rig) -> None:
    edge = tiled_rig.device.policy.kv_split_size
    rows = tuple((0, position) for position in range(edge - 20, edge + 20))
    check_attention(tiled_rig, AttentionCase((6, 2, 16), rows, "f16", bucket=64))


def test_prompts_and_decoding_sequences_in_one_step(tiled_rig: Rig) -> None:
    """Workgroups of several rows serve several sequences."""
    rows = ((2, 40), *((0, i) for i in range(33, 42)), (1, 0), (3, 700), *((1, i) for i in (5, 3)))
    check_attention(tiled_rig, AttentionCase((6, 3, 32), rows, "f16", bucket=32))


@pytest.mark.smoke
def test_entropy_of_equal_scores_is_the_log_of_their_number(rig: Rig) -> None:
    case = AttentionCase((1, 1, 8), ((0, 63),))
    cache = case.filled(rig, 0, np.random.default_rng(0))
    _, entropy = attend(rig, case, cache, np.zeros((1, 8), np.float32))
    assert entropy == pytest.approx(6.0, abs=1e-6)


@pytest.mark.parametrize(
    ("heads", "dtype"),
    [
        ((8, 4, 8), "f16"),
        ((13, 1, 16), "f32"),
        pytest.param((8, 4, 8), "f32", marks=pytest.mark.slow),
        pytest.param((13, 1, 16), "f16", marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_rows_bits_do_not_depend_on_its_block_numbers_its_plan_or_the_rows_beside_it(
    tiled_rig: Rig, heads: tuple[int, int, int], dtype: str
) -> None:
    n_heads, _, head_dim = heads
    rows = ((0, 1099), (1, 32), (0, 517), (0, 518), (0, 17), (1, 31), (0, 255), (0, 511), (0, 1097))
    q = normal(np.random.default_rng(5), len(rows), n_heads * head_dim)
    seen = []
    for seed in range(2):  # the same contents in other blocks
        together = AttentionCase(heads, rows, dtype, 16)
        cache = together.filled(tiled_rig, seed, np.random.default_rng(9))
        for capture in (False, True):
            out, entropy = attend(tiled_rig, replace(together, capture=capture), cache, q)
            seen.append((out, entropy))
            for splits in (1, 16):
                alone = [
                    attend(
                        tiled_rig,
                        replace(together, at=(row,), bucket=0, splits=splits, capture=capture),
                        cache,
                        q[i : i + 1],
                    )
                    for i, row in enumerate(rows)
                ]
                entropies = np.concatenate([e for _, e in alone]) if capture else None
                seen.append((np.concatenate([out for out, _ in alone]), entropies))
    outs = [out.view(np.uint32) for out, _ in seen]
    entropies = [entropy.view(np.uint32) for _, entropy in seen if entropy is not None]
    assert len(entropies) == len(outs) // 2
    for found in (outs, entropies):
        for other in found[1:]:
            assert np.array_equal(found[0], other)


# ---- encoders ------------------------------------------------------------------------------------


def texts(*lengths: int) -> tuple[tuple[int, int], ...]:
    """Return the rows of texts of these lengths, one after the other."""
    return tuple((slot, position) for slot, n in enumerate(lengths) for position in range(n))


@pytest.mark.parametrize("heads", [(1, 1, 4), (3, 3, 20), (6, 2, 16), (12, 12, 64)], ids=str)
def test_an_encoders_rows_see_their_whole_text(tiled_rig: Rig, heads: tuple[int, int, int]) -> None:
    rows = texts(1, 2, 15, 17, 33)
    check_attention(tiled_rig, AttentionCase(heads, rows, bucket=128, encoder=True))


# Tiles hold 32 or more keys, splits 128 or 512: windows begin and end at every offset in them.
@pytest.mark.parametrize("window", [1, 2, 7, 33, 65, 300])
def test_an_encoders_window_is_on_both_sides(tiled_rig: Rig, window: int) -> None:
    some = ((0, 0), (0, 599), (0, 300), (0, 600 - window), (1, 127), (1, 128), (2, 0), (3, 40))
    check_attention(
        tiled_rig,
        AttentionCase((6, 6, 12), some, encoder=True, window=window, capture=window != 7),
    )
    whole = AttentionCase((2, 2, 8), texts(3, 140, 1), bucket=256, encoder=True, window=window)
    check_attention(tiled_rig, whole)


@pytest.mark.parametrize("distances", [1, 5, 128])
@pytest.mark.parametrize("window", [None, 9])
def test_position_biases(tiled_rig: Rig, distances: int, window: int | None) -> None:
    """Of keys before and after a row, nearer than the farthest bias and beyond it."""
    rows = (*texts(1, 150, 5), (3, 0), (3, 299), (3, 130))
    case = AttentionCase((3, 3, 12), rows, bucket=256, encoder=True, distances=distances)
    check_attention(tiled_rig, replace(case, window=window))
    causal = AttentionCase((6, 2, 8), ((0, 200), (1, 3), (2, 40)), distances=distances, cap=20.0)
    check_attention(tiled_rig, replace(causal, window=window))


def test_a_text_of_an_encoder_has_the_same_bits_alone_and_among_others(tiled_rig: Rig) -> None:
    rows = texts(9, 140, 31)
    case = AttentionCase((3, 3, 16), rows, bucket=256, encoder=True, window=50, distances=7)
    cache = case.filled(tiled_rig, 0, np.random.default_rng(1))
    q = normal(np.random.default_rng(2), len(rows), case.width)
    together, _ = attend(tiled_rig, case, cache, q)
    for slot in range(3):
        own = [i for i, row in enumerate(rows) if row[0] == slot]
        alone = replace(case, at=tuple(rows[i] for i in own), bucket=0)
        out, _ = attend(tiled_rig, alone, cache, q[own])
        assert out.tobytes() == together[own].tobytes()
