"""Questions about a run, asked of the engine, have the run's own values on both backends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gpu.engine.engine import Engine
from gpu.engine.thread import Close
from gpu.errors import EngineClosed, InvalidRequest, QueueFull
from gpu.events import Token
from gpu.inspection.requests import (
    AttentionFrom,
    AttentionTo,
    CacheBlocks,
    ForwardPass,
    Knockout,
    LogitLens,
    Losses,
    Profile,
    Question,
    StepPlan,
    Waterfall,
)
from gpu.load_options import LoadOptions
from gpu.pace import LEAST_PACE
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.webgpu.device_policy import ROWS
from tests.gpu.models import random_models

MODEL = Path(__file__).parents[3] / "app" / "tale" / "model"
PARAMS = SamplingParams(
    seed=3,
    temperature=0.9,
    top_k=40,
    top_p=0.97,
    min_p=0.01,
    repetition_penalty=1.1,
    max_tokens=24,
    ignore_eos=True,
)


DTYPES = {"wgpu": "f16", "torch": "f32"}


def load(backend: str, **options: Any) -> Engine:
    return Engine.load(MODEL, LoadOptions(backend=backend, dtype=DTYPES[backend], **options))


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = load(request.param, context=256, slots=2)
    yield opened
    opened.close()


@pytest.fixture
def rounding(engine: Engine) -> float:
    """Return the allowed error of a recomputed row: 0 on the GPU; PyTorch's sums depend on the
    number of rows."""
    return 1e-5 if engine.info.device.backend == "torch" else 0.0


@pytest.fixture(scope="module")
def prompt(engine: Engine) -> list[int]:
    return engine.tokenizer.encode("Once upon a time there was a fox who found a lantern and")


@pytest.fixture(scope="module")
def written(engine: Engine, prompt: list[int]) -> list[Token]:
    return list(engine.generate(prompt, PARAMS))


@pytest.fixture(scope="module")
def ids(prompt: list[int], written: list[Token]) -> list[int]:
    return prompt + [token.id for token in written]


@pytest.mark.slow
def test_attention_from_and_to_are_one_matrix(
    engine: Engine, ids: list[int], rounding: float
) -> None:
    n = len(ids)
    rows = [engine.inspect(AttentionFrom(ids, i)).result()["weights"] for i in range(n)]
    for i, weights in enumerate(rows):
        assert weights.shape == (engine.config.n_layers, engine.config.n_heads, i + 1)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    for position in (0, 5, n - 1):
        to = engine.inspect(AttentionTo(ids, position)).result()["weights"]
        assert to.shape == (n - position, engine.config.n_layers, engine.config.n_heads)
        column = np.stack([rows[i][..., position] for i in range(position, n)])
        np.testing.assert_allclose(to, column, rtol=0, atol=rounding)


def test_the_lens_ends_at_what_was_written(
    engine: Engine, prompt: list[int], written: list[Token], ids: list[int]
) -> None:
    for i in (0, 7, len(written) - 1):
        question = LogitLens(ids, len(prompt) + i - 1, chosen=written[i].id, top=3)
        answer = engine.inspect(question).result()
        stages = engine.config.n_layers + 1
        assert answer["ids"].shape == answer["probabilities"].shape == (stages, 3)
        assert answer["rank"].shape == answer["entropy"].shape == (stages,)
        last = answer["probability"][-1]
        np.testing.assert_allclose(np.log(last), written[i].logprob, atol=1e-5)


def test_the_forward_pass_is_that_of_the_other_instruments(
    engine: Engine, prompt: list[int], ids: list[int], rounding: float
) -> None:
    layer, head, position = engine.config.n_layers - 1, 1, len(prompt) + 2
    answer = engine.inspect(ForwardPass(ids, position, layer, head, top=4)).result()
    weights = engine.inspect(AttentionFrom(ids, position)).result()["weights"]
    np.testing.assert_allclose(answer["weights"], weights[layer, head], rtol=0, atol=rounding)
    np.testing.assert_array_equal(answer["resid_post"], answer["final"])
    lens = engine.inspect(LogitLens(ids, position, chosen=1, top=4)).result()
    np.testing.assert_array_equal(answer["near_ids"][[0, 4, 5]], lens["ids"][[-2, -1, -1]])
    shares = lens["probabilities"][-1]
    np.testing.assert_allclose(answer["near_probabilities"][5], shares, rtol=rounding, atol=0)
    np.testing.assert_allclose(
        answer["scores"], answer["keys"] @ answer["rot_q"][head] * answer.info["scale"], rtol=1e-3
    )
    hidden = answer["act"] * answer["up"]
    np.testing.assert_allclose(answer["ffn_hidden"], hidden, rtol=1e-5, atol=1e-5)
    parts = answer["head_norms"] * answer["head_cosines"]
    update = answer["resid_mid"] - answer["resid_pre"]
    np.testing.assert_allclose(parts.sum(), np.linalg.norm(update), rtol=1e-4)


def test_the_waterfall_draws_the_token_of_the_run(
    engine: Engine, prompt: list[int], written: list[Token], ids: list[int]
) -> None:
    for i, token in enumerate(written):
        question = Waterfall(ids, len(prompt) + i - 1, PARAMS, index=i)
        answer = engine.inspect(question).result()
        assert answer.info["chosen"] == token.id
        assert answer.info["draw"] == token.draw
        later = msgspec.structs.replace(PARAMS, first_index=i)
        of_later = engine.inspect(Waterfall(ids, len(prompt) + i - 1, later, index=0)).result()
        assert of_later.info["draw"] == token.draw
        stages = {stage["name"]: stage for stage in answer.info["stages"]}
        assert stages["min_p"]["n_kept"] == token.n_kept
        removed = [stages[name]["removed"] for name in ("top_k", "top_p", "min_p")]
        np.testing.assert_allclose(removed, token.mass[1:], atol=1e-4)


def test_losses_are_those_of_the_run(
    engine: Engine, prompt: list[int], written: list[Token], ids: list[int]
) -> None:
    answer = engine.inspect(Losses(ids, top=2)).result()
    assert answer["logprob"].shape == (len(ids) - 1,)
    assert answer["top_ids"].shape == (len(ids) - 1, 2)
    own = answer["logprob"][len(prompt) - 1 :]
    np.testing.assert_allclose(own, [token.logprob for token in written], atol=1e-5)
    assert answer.info["perplexity"] == pytest.approx(np.exp(-answer["logprob"].mean()), rel=1e-5)


@torch.no_grad()
def test_losses_without_rotary_positions_equal_transformers(engine: Engine, ids: list[int]) -> None:
    """Nor do they leave keys, or tables of angles, to texts that have positions."""
    before = engine.inspect(Losses(ids)).result()["logprob"]
    got = engine.inspect(Losses(ids, rope=False)).result()["logprob"]
    reference = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    rotary = reference.model.rotary_emb
    rotated = rotary.forward
    rotary.forward = lambda x, position_ids: rotated(x, 0 * position_ids)
    logs = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    want = logs[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    np.testing.assert_allclose(got, want, atol=2e-2 if engine.info.model.dtype == "f16" else 1e-4)
    assert np.abs(got - before).max() > 1
    np.testing.assert_array_equal(engine.inspect(Losses(ids)).result()["logprob"], before)
    np.testing.assert_array_equal(engine.inspect(Losses(ids, rope=False)).result()["logprob"], got)


def test_a_model_without_rotary_positions_says_so() -> None:
    learned = Engine.load(random_models.folder("gpt2"), LoadOptions(dtype="f32", slots=1))
    try:
        with pytest.raises(InvalidRequest, match="has none; leave it out") as refused:
            learned.inspect(Losses([1, 2, 3], rope=False)).result()
        assert refused.value.param == "rope"
    finally:
        learned.close()


def test_a_long_text_that_nobody_wrote_is_worked_through_in_pieces(engine: Engine) -> None:
    ids = np.random.default_rng(0).integers(0, engine.config.vocab_size, ROWS + 19)
    text = ids.tolist()
    answer = engine.inspect(LogitLens(text, len(text) - 1, chosen=1)).result()
    logits = engine.logits(text)[-1].astype(np.float64)
    shares = np.exp(logits - logits.max())
    want = shares[1] / shares.sum()
    np.testing.assert_allclose(answer["probability"][-1], want, rtol=1e-3)


def test_asking_changes_nothing_of_a_run(
    engine: Engine, prompt: list[int], written: list[Token], ids: list[int]
) -> None:
    asked = []

    def ask_once(_: object = None) -> None:
        if len(asked) < 3:
            asked.append(engine.inspect(AttentionTo(ids, 0)))

    run = engine.generate(prompt, PARAMS)
    ids_now = []
    for token in run:
        ask_once()
        ids_now.append(token.id)
    assert ids_now == [token.id for token in written]
    assert all(future.result()["weights"].shape[0] == len(ids) for future in asked)


def test_answers_without_a_prefix_cache_are_the_same(
    ids: list[int], engine: Engine, rounding: float
) -> None:
    backend = "wgpu" if engine.info.device.backend != "torch" else "torch"
    plain = load(backend, context=256, slots=2, prefix_cache=False)
    try:
        for question in (AttentionFrom(ids, len(ids) - 1), AttentionTo(ids, 2)):
            want = engine.inspect(question).result()["weights"]
            got = plain.inspect(question).result()["weights"]
            np.testing.assert_allclose(got, want, rtol=0, atol=rounding)
    finally:
        plain.close()


def test_the_cache_reports_what_it_holds(engine: Engine, ids: list[int]) -> None:
    engine.inspect(AttentionFrom(ids, len(ids) - 1)).result()
    answer = engine.inspect(CacheBlocks()).result()
    n_blocks = engine.info.limits.n_blocks
    for name in ("owners", "first", "n_found", "used"):
        assert answer[name].shape == (n_blocks,)
    assert answer["owners"].sum() == 0  # nobody writes now
    latest = answer["used"].argmax()
    assert answer["n_found"][latest] > 0
    assert answer["first"].max() >= len(ids) // 16 * 16 - 16
    assert answer.info["reused_tokens"] <= answer.info["prompt_tokens"]


def test_plans_are_described_where_there_are_any(engine: Engine) -> None:
    info = engine.inspect(StepPlan()).result().info
    if engine.info.device.backend == "torch":
        assert "dispatches" not in info
    else:
        assert len(info["dispatches"]) == engine.info.dispatches_per_token
    assert engine.inspect(Profile(repeat=1)).result().info["ms"] > 0


BAD: list[tuple[Question, str]] = [
    (AttentionFrom([], 0), "ids are missing"),
    (AttentionFrom([1, 2], 2), "position should be from 0 to 1"),
    (AttentionFrom([1, 2], -1), "position should be from 0 to 1"),
    (AttentionTo([1, 10**6], 0), "ids should be from 0 to"),
    (AttentionTo([1] * 257, 0), "257 ids are more than the context of 256"),
    (LogitLens([1], 0, chosen=-1), "chosen should be from 0 to"),
    (LogitLens([1], 0, chosen=1, top=0), "top should be from 1 to"),
    (ForwardPass([1], 1, 0), "position should be from 0 to 0"),
    (ForwardPass([1], 0, -1), "layer should be from 0 to"),
    (ForwardPass([1], 0, 0, head=99), "head should be from 0 to"),
    (ForwardPass([1], 0, 0, top=0), "top should be from 1 to"),
    (Losses([1]), "give two ids"),
    (Losses([1, 2], top=101), "top should be from 1 to"),
    (Losses([1] * 9, knockout=Knockout(1, 9, 0, 1)), "expected positions from 0 to 7"),
    (Losses([1] * 9, knockout=Knockout(2, 2, 0, 1)), "at least one, but got 2 to 1"),
    (Losses([1] * 9, knockout=Knockout(-1, 2, 0, 1)), "expected positions from 0 to 7"),
    (Losses([1] * 9, knockout=Knockout(1, 2, 0, 99)), "expected layers from 0 to"),
    (Losses([1] * 9, knockout=Knockout(1, 2, 1, 1)), "expected layers from 0 to"),
    (Losses([1] * 9, knockout=Knockout(1, 2, 0, 1, head=-1)), "expected a head from 0 to"),
    (Losses([1] * 9, knockout=Knockout(1, 2, 0, 1, head=99)), "none for all of them, but got 99"),
    (Losses([1] * 9, knockout=Knockout(0, 2, 0, 1)), "nothing left to attend to in layer 0"),
    (Waterfall([1], 0, SamplingParams(), 0), "seed should be that of the run"),
    (Waterfall([1], 0, SamplingParams(seed=1), -1), "index should be from 0 to 4294967295"),
    (Waterfall([1], 0, SamplingParams(seed=1, top_p=2.0), 0), "top_p"),
    (Waterfall([1], 0, SamplingParams(seed=1), 0, also=[-1]), "also should be from 0 to"),
    (Waterfall([1], 0, SamplingParams(seed=1), 0, also=[1] * 101), "also has 101 ids"),
]


@pytest.mark.parametrize(("question", "message"), BAD)
def test_bad_questions_are_refused_with_the_reason(
    engine: Engine, question: Question, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        engine.inspect(question).result()


def test_a_question_without_cache_room_or_engine_is_refused() -> None:
    small = load("torch", context=64, slots=1)
    params = SamplingParams(max_tokens=10, ignore_eos=True, seed=1)
    run = small.submit(Request([1] * 50, params, pace=LEAST_PACE))  # it keeps its blocks for long
    next(iter(run))
    with pytest.raises(QueueFull, match="no KV cache is free"):
        small.inspect(AttentionFrom([5] * 60, 59)).result()
    small.close()
    with pytest.raises(EngineClosed):
        small.inspect(StepPlan())


def test_questions_under_way_end_with_the_engine() -> None:
    opened = load("torch", context=256, slots=1)
    asked = threading.Event()
    opened.submit(Request([1], SamplingParams(max_tokens=1)), lambda event: asked.wait(60))
    waiting = [opened.inspect(Losses(list(range(1, 250)))) for _ in range(4)]
    waiting[0].add_done_callback(lambda answered: opened._thread.post(Close()))
    asked.set()
    ended = [future.exception(10) for future in waiting]
    assert isinstance(ended[-1], EngineClosed)
