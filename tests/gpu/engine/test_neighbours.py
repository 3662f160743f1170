"""Neighbours of tokens in the embedding matrix, beside transformers' matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpu.checkpoint.readback import matrix_rows
from gpu.engine.engine import Engine
from gpu.engine.questions import neighbours
from gpu.errors import InvalidRequest
from gpu.inspection.requests import Neighbours
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from tests.gpu.models import random_models
from tests.gpu.models.random_models import Reference

pytestmark = pytest.mark.parity
TOP = 5


def opened(folder: Path, backend: str = "wgpu", dtype: str = "f32") -> Engine:
    return Engine.load(folder, LoadOptions(dtype=dtype, backend=backend, context=64, slots=1))


@pytest.mark.parametrize(
    ("case", "backend"), [("qwen2", "wgpu"), ("qwen2", "torch"), ("gpt2", "wgpu")]
)
def test_neighbours_are_those_of_transformers(
    case: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "ROWS", 37)  # several pieces, none of them whole groups
    folder, ids = random_models.folder(case), random_models.ids(9)
    engine = opened(folder, backend)
    try:
        answer = engine.inspect(Neighbours(ids, TOP)).result(60)
        for bad, words in (
            (Neighbours([]), "expected 1 to 32 ids, but got 0"),
            (Neighbours([1] * 33), "expected 1 to 32 ids, but got 33"),
            (Neighbours([-1]), "ids should be from 0 to"),
            (Neighbours([1], 0), "top should be from 1 to"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                engine.inspect(bad).result(60)
    finally:
        engine.close()
    oracle = Reference(folder)
    rows = oracle.model.get_input_embeddings().weight.detach().numpy().astype(np.float64)
    units = rows[: engine.config.vocab_size] / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = units[ids] @ units.T
    assert answer["ids"].shape == answer["cosines"].shape == (len(ids), TOP)
    np.testing.assert_array_equal(answer["ids"][:, 0], ids)
    np.testing.assert_allclose(answer["cosines"], -np.sort(-cosines, axis=1)[:, :TOP], atol=1e-5)
    found = np.take_along_axis(cosines, answer["ids"].astype(np.intp), axis=1)
    np.testing.assert_allclose(found, answer["cosines"], atol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8", "q4"])
def test_some_rows_of_a_matrix_are_those_of_all(dtype: str) -> None:
    engine = opened(random_models.folder("qwen2"), dtype=dtype)
    try:
        runner = engine._thread.runner
        assert isinstance(runner, WgpuRunner)
        matrix, memory = runner.model.embedding, runner._memory
        whole = matrix_rows(matrix, memory)
        assert whole.shape == (matrix.n, matrix.k)
        for first, n in ((0, 1), (3, 8), (8, 8), (13, 40), (matrix.n - 3, 99)):
            some = matrix_rows(matrix, memory, first, n)
            np.testing.assert_array_equal(some, whole[first : first + n])
    finally:
        engine.close()
