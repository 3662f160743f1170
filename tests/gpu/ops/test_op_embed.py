"""Token embeddings are copied, so they are exact: every bit of the table, from the right shard."""

from __future__ import annotations

import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.checks.matmul import EmbedCase, check_embed
from gpu.step import FROM_GPU
from tests.gpu.ops.rig import Rig

pytestmark = pytest.mark.parity
DTYPES = sorted({f.vocabulary for f in FORMATS.values()})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 8, 13, 64, 504, 512, 520, 521])
def test_widths_around_the_workgroup(rig: Rig, k: int, dtype: str) -> None:
    check_embed(rig, EmbedCase(7, k, (0, 6, 3, 3), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shards", [2, 3, 6])
def test_every_token_of_a_table_in_shards(rig: Rig, shards: int, dtype: str) -> None:
    check_embed(rig, EmbedCase(29, 20, tuple(range(29)), dtype, shards, bucket=29))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_token_may_be_the_one_its_slot_sampled_last(rig: Rig, shards: int) -> None:
    check_embed(rig, EmbedCase(29, 20, (FROM_GPU, 5, FROM_GPU, 28, FROM_GPU), "f16", shards))


def test_embeddings_may_be_scaled(rig: Rig) -> None:
    for dtype in DTYPES:
        tokens = (0, 28, FROM_GPU)
        check_embed(rig, EmbedCase(29, 50, tokens, dtype, shards=2, bucket=4, scale=48**0.5))


@pytest.mark.parametrize("n_rows", [1, 127, 128])
def test_up_to_all_the_rows_of_a_step(rig: Rig, n_rows: int) -> None:
    check_embed(rig, EmbedCase(11, 16, tuple(i % 11 for i in range(n_rows)), bucket=128))


@pytest.mark.parametrize(("vocab", "k"), [(512, 64), (49152, 576)], ids=str)
def test_tables_of_real_models(rig: Rig, vocab: int, k: int) -> None:
    tokens = (0, 1, vocab // 2, vocab - 1, FROM_GPU)
    check_embed(rig, EmbedCase(vocab, k, tokens, "f16", bucket=5))
