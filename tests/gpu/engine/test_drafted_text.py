"""A draft model beside a real one: every id and every number of a text is the same, at any
temperature, and the ids follow the model's own distribution."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from gpu.engine.engine import Engine
from gpu.errors import ModelError
from gpu.interventions.messages import Interventions, LayerFactor, LoraStrength
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.speculative.draft_length import DraftLength
from tests.gpu.engine.test_speculative_text import MODEL, PROMPT, RUNS, facts, norms, written
from tests.gpu.lora import random_loras
from tests.gpu.models import random_llama, random_models
from tests.gpu.models.model_cases import Case, sized
from tests.gpu.ops.test_sampler_draws import LEAST_P, p_value

NOISE = 0.2
"""Of each weight's size: the draft model agrees with the model most of the time."""

INTERVENTIONS = {
    "none": Interventions(),
    "factor": Interventions(mlp=(LayerFactor(1, 0.8),)),
    "lora": Interventions(loras=(LoraStrength("a", 1.0),)),
}


def noisy(model: Path, folder: Path, noise: float = NOISE) -> Path:
    """Copy a model with noise on its weights."""
    shutil.copytree(model, folder)
    draw = np.random.default_rng(3)
    for path in folder.glob("*.safetensors"):
        tensors = safetensors.numpy.load_file(path)
        for name, tensor in tensors.items():
            change = draw.normal(0, noise * tensor.astype(np.float32).std(), tensor.shape)
            tensors[name] = (tensor + change).astype(tensor.dtype)
        safetensors.numpy.save_file(tensors, path)
    return folder


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """Without a draft model and with one; both with an adapter."""
    folder = tmp_path_factory.mktemp("draft")
    loras = {"a": random_loras.of_model(MODEL, "attention")}
    options = LoadOptions(dtype="q8", slots=2, loras=loras)
    both = [
        Engine.load(MODEL, options),
        Engine.load(MODEL, replace(options, draft=noisy(MODEL, folder / "noisy"))),
    ]
    yield both[0], both[1]
    for engine in both:
        engine.close()


@pytest.fixture(autouse=True)
def always_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft whether or not it pays on this device."""
    monkeypatch.setattr(DraftLength, "choose", lambda self, most, n_beside: min(most, 7))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "interventions"),
    [
        *((name, "none") for name in RUNS),
        pytest.param("drawn", "factor", marks=pytest.mark.slow),
        pytest.param("drawn", "lora", marks=pytest.mark.slow),
    ],
)
def test_a_text_is_the_same_with_a_draft_model(
    engines: tuple[Engine, Engine], name: str, interventions: str
) -> None:
    params = SamplingParams(seed=11, max_tokens=60, ignore_eos=True, **RUNS[name])
    ids = engines[0].tokenizer.encode(PROMPT)
    request = Request(ids, params, capture=True, interventions=INTERVENTIONS[interventions])
    (plain, _), (drafted, done) = (written(engine, request) for engine in engines)
    assert [facts(token) for token in plain] == [facts(token) for token in drafted]
    for a, b in zip(plain, drafted, strict=True):
        assert a.stats is not None
        assert b.stats is not None
        assert norms(a.stats) == norms(b.stats)
    timings = done.timings
    assert timings.draft_n > timings.draft_n_accepted > 5
    assert timings.draft_ms > 0
    assert timings.draft_speedup > 0


@pytest.mark.ci
def test_streams_beside_each_other_write_the_same(engines: tuple[Engine, Engine]) -> None:
    ids = engines[0].tokenizer.encode(PROMPT)
    requests = [
        Request(ids[: 7 + i], SamplingParams(seed=i, max_tokens=40, ignore_eos=True))
        for i in range(4)
    ]
    plain, drafted = (
        [list(run) for run in [engine.submit(request) for request in requests]]
        for engine in engines
    )
    for before, after in zip(plain, drafted, strict=True):
        assert [facts(token) for token in before] == [facts(token) for token in after]


@pytest.mark.slow
def test_drafted_tokens_follow_the_models_distribution(tmp_path: Path) -> None:
    """The second token after one and the same first, in the texts of many seeds; the draft model
    has other probabilities."""
    model = random_llama.folder("tiny")
    options = LoadOptions(
        dtype="f32", slots=16, queue=500, draft=noisy(model, tmp_path / "noisy", 0.05)
    )
    prompt, n = [5, 6, 7], 240
    engine = Engine.load(model, options)
    try:
        runs = [
            engine.submit(Request(prompt, SamplingParams(seed=seed, max_tokens=6, ignore_eos=True)))
            for seed in range(n)
        ]
        texts = [[token.id for token in run] for run in runs]
        n_accepted = sum(run.done.timings.draft_n_accepted for run in runs if run.done)
        n_drafts = sum(run.done.timings.draft_n for run in runs if run.done)
        (first, _), *_ = Counter(text[0] for text in texts).most_common()
        logits = engine.logits([*prompt, first])[-1].astype(np.float64)
    finally:
        engine.close()
    wanted = np.exp(logits - logits.max())
    wanted /= wanted.sum()
    after = Counter(text[1] for text in texts if text[0] == first)
    counts = np.array([after[id] for id in range(len(wanted))])
    assert counts.sum() > 50
    assert n_drafts > n_accepted > 40
    assert p_value(counts, wanted) > LEAST_P


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"share the model's tokenizer"):
        Engine.load(MODEL, LoadOptions(draft=random_llama.folder("tiny")))
    other = tmp_path / "other"
    shutil.copytree(MODEL, other)
    path = other / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab["Ġpeople"], vocab["Ġbread"] = vocab["Ġbread"], vocab["Ġpeople"]
    path.write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(ModelError, match=r"is ' bread', and that of the model ' people'"):
        Engine.load(MODEL, LoadOptions(draft=other))


def test_a_model_with_sliding_windows_has_a_draft_model_without_them(tmp_path: Path) -> None:
    """The windows need fewer KV blocks than the context; the draft model has as many, which hold
    the beginning of a text. It is written on without drafts."""
    longer = {"max_position_embeddings": 2048}
    large, small = tmp_path / "large", tmp_path / "small"
    for path, config, own in (
        (large, "MistralConfig", {"sliding_window": 7}),
        (small, "Qwen2Config", {}),
    ):
        path.mkdir()
        random_models.write(path, Case(config, sized(1, 48, 4, 1, 60) | longer | own))
    engine = Engine.load(large, LoadOptions(dtype="f32", slots=1, draft=small))
    try:
        params = SamplingParams(seed=1, max_tokens=20, ignore_eos=True)
        for n_prompt, drafts in ((30, True), (1000, False)):
            run = engine.submit(Request(random_models.ids(n_prompt), params))
            assert len(list(run)) == 20
            assert run.done is not None
            assert bool(run.done.timings.draft_n) is drafts
    finally:
        engine.close()


def test_a_run_can_be_cancelled_amid_its_drafts(engines: tuple[Engine, Engine]) -> None:
    engine = engines[1]
    ids = engine.tokenizer.encode(PROMPT)
    params = SamplingParams(seed=1, max_tokens=200, ignore_eos=True)
    run = engine.submit(Request(ids, params))
    first = [token.id for token in itertools.islice(run, 12)]
    run.cancel()
    again = engine.submit(Request(ids, params.updated({"max_tokens": 20})))
    assert [token.id for token in again][:12] == first
