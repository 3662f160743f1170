"""Vectors of texts equal transformers' last hidden states, pooled, and disturb no run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.engine.engine import Engine
from gpu.engine.question_budget import QuestionBudget
from gpu.engine.recompute import PIECE_ROWS, Recomputer
from gpu.engine.scheduler import Scheduler
from gpu.errors import InvalidRequest
from gpu.inspection.requests import Embedding, Pooling
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.step import Floats, Step
from gpu.webgpu.buffers import Memory, Tensor, padded
from tests.gpu.models import random_models
from tests.gpu.models.random_models import Reference

pytestmark = pytest.mark.parity

BUNDLED = Path(__file__).parents[3] / "app" / "tale" / "model"
POOLINGS: tuple[Pooling, ...] = ("last", "mean")
CONTEXT = 128


@contextmanager
def opened(folder: Path, **options: Any) -> Iterator[Engine]:
    chosen = {"dtype": "f32", "context": CONTEXT, "slots": 2, "warm_up": False, **options}
    engine = Engine.load(folder, LoadOptions(**chosen))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def qwen2() -> Iterator[Engine]:
    with opened(random_models.folder("qwen2")) as engine:
        yield engine


@pytest.fixture(scope="module")
def bundled() -> Iterator[Engine]:
    with opened(BUNDLED) as engine:
        yield engine


def vector(engine: Engine, ids: list[int], pooling: Pooling) -> Floats:
    found: Floats = engine.inspect(Embedding(ids, pooling)).result(60)["vector"]
    return found


def expect_equal(engine: Engine, oracle: Reference, ids: list[int]) -> None:
    states = oracle.last_hidden(ids)
    bound = 1e-5 * np.linalg.norm(states, axis=-1).max()
    last, mean = vector(engine, ids, "last"), vector(engine, ids, "mean")
    np.testing.assert_allclose(last, states[-1], rtol=0, atol=bound)
    np.testing.assert_allclose(mean, states.mean(axis=0, dtype="f8"), rtol=0, atol=bound)


def test_vectors_equal_transformers(qwen2: Engine) -> None:
    """The texts take several pieces, and one token."""
    for n in (87, 1):
        expect_equal(qwen2, random_models.reference("qwen2"), random_models.ids(n))


@pytest.mark.ci
@pytest.mark.parametrize("name", [pytest.param("gemma3", marks=pytest.mark.slow), "gpt2"])
def test_vectors_of_other_norms_equal_transformers(name: str) -> None:
    with opened(random_models.folder(name)) as engine:
        expect_equal(engine, random_models.reference(name), random_models.ids(20))


def test_vectors_of_the_bundled_model_equal_transformers(bundled: Engine) -> None:
    ids = bundled.tokenizer.encode("Once upon a time there was a fox who found a lantern.")
    with opened(BUNDLED, backend="torch") as torch:
        for engine in (bundled, torch):
            expect_equal(engine, Reference(BUNDLED), ids)


def test_a_cached_beginning_is_not_computed_again_and_changes_no_bit(
    qwen2: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_computed = []
    submit = WgpuRunner.submit

    def counting(runner: WgpuRunner, step: Step) -> None:
        n_computed.append(len(step.rows))
        submit(runner, step)

    monkeypatch.setattr(WgpuRunner, "submit", counting)
    ids = random_models.ids(60, seed=1)
    found = {pooling: vector(qwen2, ids, pooling) for pooling in POOLINGS}
    assert n_computed == [len(ids) - 1], "one step, because no run writes"
    n_computed.clear()
    assert np.array_equal(vector(qwen2, ids, "last"), found["last"])
    assert sum(n_computed) < 16, "the beginning is in the cache"
    with opened(random_models.folder("qwen2"), prefix_cache=False) as alone:
        for pooling in POOLINGS:
            assert np.array_equal(vector(alone, ids, pooling), found[pooling])


def test_only_the_states_asked_for_are_read(qwen2: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    n_read = []
    read = Memory.read

    def counting(memory: Memory, tensor: Tensor) -> Any:
        n_read.append(tensor.n_bytes)
        return read(memory, tensor)

    monkeypatch.setattr(Memory, "read", counting)
    row_bytes = 4 * padded(qwen2.config.hidden_size)
    vector(qwen2, random_models.ids(48), "last")
    assert n_read == [row_bytes]
    n_read.clear()
    vector(qwen2, random_models.ids(48), "mean")
    assert sum(n_read) == 48 * row_bytes


def test_a_text_written_beside_embeddings_is_the_same(bundled: Engine) -> None:
    prompt = bundled.tokenizer.encode("Once upon a time")
    params = SamplingParams(seed=3, max_tokens=30, ignore_eos=True)
    alone = [token.id for token in bundled.generate(prompt, params)]
    beside: list[int] = []
    asked = []
    for token in bundled.generate(prompt, params):
        beside.append(token.id)
        if len(asked) < 4:
            asked.append(bundled.inspect(Embedding(prompt + beside, "mean")))
    assert beside == alone
    assert all(len(future.result(60)["vector"]) for future in asked)


def test_pieces_are_small_where_runs_may_wait_for_them(bundled: Engine) -> None:
    runner, budget = bundled._thread.runner, QuestionBudget()
    scheduler = Scheduler(runner.limits)
    paced, unpaced = Recomputer(runner, scheduler, budget), Recomputer(runner, scheduler)
    assert (paced.most_rows, unpaced.most_rows) == (runner.limits.max_rows, PIECE_ROWS)
    budget.tick(True, stepped=False)
    assert paced.most_rows == PIECE_ROWS < runner.limits.max_rows


def test_a_text_that_does_not_fit_is_refused(qwen2: Engine) -> None:
    assert len(vector(qwen2, random_models.ids(CONTEXT), "mean")) == qwen2.config.hidden_size
    for ids, message in (
        (random_models.ids(CONTEXT + 1), "129 ids are more than the context of 128"),
        ([], "ids are missing"),
        ([-1], "ids should be from 0 to"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            qwen2.inspect(Embedding(ids)).result(60)
