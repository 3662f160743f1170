"""Token embeddings are copied, so they are exact: every bit of the table, from the right shard."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import ops
from gpu.checkpoint.packing import FORMATS, pack, row_words, unpack
from gpu.reference import ops as reference
from gpu.step import FROM_GPU, Row
from tests.gpu.ops.rig import ROUNDING, Rig, compare

pytestmark = pytest.mark.parity
N_SLOTS = 4
DTYPES = sorted({f.vocabulary for f in FORMATS.values()})


def check(
    rig: Rig,
    vocab: int,
    k: int,
    dtype: str,
    tokens: list[int],
    *,
    shards: int = 1,
    bucket: int = 0,
    scale: float = 1.0,
) -> None:
    rng = np.random.default_rng(vocab + k)
    table = rng.normal(size=(vocab, k)).astype(np.float32)
    limit = -(-vocab // shards) * 4 * row_words(dtype, k) if shards > 1 else None
    matrix = rig.matrix(table, dtype, max_binding_bytes=limit)
    assert len(matrix.shards) >= shards
    chosen = rng.integers(0, vocab, N_SLOTS)
    slots = rng.integers(0, N_SLOTS, len(tokens))
    rows = [Row(int(s), 0, t) for s, t in zip(slots, tokens, strict=True)]
    batch = rig.batch(rows, bucket=bucket or len(rows))
    x = rig.output("x", len(rows), k)
    on_gpu = rig.memory.upload("chosen", chosen.astype(np.uint32))
    rig.run(lambda rec: ops.embed(rec, batch, "embed", matrix, on_gpu, x.tensor, scale=scale))
    want = reference.embed(unpack(dtype, pack(dtype, table), k), np.array(tokens), slots, chosen)
    case = f"{dtype}-{vocab}x{k}-{shards}shards-×{scale:g}"
    bound = np.zeros(1) if scale == 1.0 else 2 * ROUNDING * np.abs(want * scale)
    compare(f"embed.{dtype}", case, x.read(), want * scale, bound, seed=vocab + k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 8, 13, 64, 504, 512, 520, 521])
def test_widths_around_the_workgroup(rig: Rig, k: int, dtype: str) -> None:
    check(rig, 7, k, dtype, [0, 6, 3, 3], bucket=8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shards", [2, 3, 6])
def test_every_token_of_a_table_in_shards(rig: Rig, shards: int, dtype: str) -> None:
    check(rig, 29, 20, dtype, list(range(29)), shards=shards)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_token_may_be_the_one_its_slot_sampled_last(rig: Rig, shards: int) -> None:
    check(rig, 29, 20, "f16", [FROM_GPU, 5, FROM_GPU, 28, FROM_GPU], shards=shards, bucket=8)


def test_embeddings_may_be_scaled(rig: Rig) -> None:
    for dtype in DTYPES:
        check(rig, 29, 50, dtype, [0, 28, FROM_GPU], shards=2, bucket=4, scale=48**0.5)


@pytest.mark.parametrize("n_rows", [1, 127, 128])
def test_up_to_all_the_rows_of_a_step(rig: Rig, n_rows: int) -> None:
    check(rig, 11, 16, "f32", [i % 11 for i in range(n_rows)], bucket=128)


@pytest.mark.parametrize(("vocab", "k"), [(512, 64), (49152, 576)], ids=str)
def test_tables_of_real_models(rig: Rig, vocab: int, k: int) -> None:
    check(rig, vocab, k, "f16", [0, 1, vocab // 2, vocab - 1, FROM_GPU])
