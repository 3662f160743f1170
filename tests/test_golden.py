"""Trained models generate the same texts as `transformers`, through the engine and over HTTP: the
same ids and, for the bundled model, the same log-probabilities and norms after every layer."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from gpu import Engine, SamplingParams
from gpu.events import Token
from gpu.load_options import LoadOptions
from gpu.text.tokenizer import Tokenizer
from tests.golden import Golden, Trained, trained_models
from tests.gpu.ops.rig import compare
from tests.serving import serving

LOGPROB = 5e-5
"""Largest error of a log-probability, in nats."""
NORM = 1e-5
"""Largest relative error of a norm."""

OPEN = [
    pytest.param((backend, model), id=f"{backend}-{model}")
    for model in trained_models()
    for backend in ("wgpu", "torch")
]


def greedily(text: Golden, **changes: Any) -> SamplingParams:
    """Return the parameters that generate a whole golden text."""
    n = len(text.greedy_ids)
    return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, **changes)


@pytest.fixture(scope="module", params=OPEN)
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[Trained, Engine]]:
    backend, model = request.param
    engine = Engine.load(model.folder, LoadOptions(dtype="f32", backend=backend))
    yield model, engine
    engine.close()


def check(tokens: Sequence[Token], text: Golden, which: str) -> None:
    """Check ids, text, log-probabilities and, if layers were captured, norms of one text."""
    assert [token.id for token in tokens] == text.greedy_ids, text.prompt
    assert "".join(token.text for token in tokens).strip() == text.text.strip()
    if text.logprobs is not None:
        got = np.array([token.logprob for token in tokens])
        compare(f"golden.logprob.{which}", text.prompt, got, text.logprobs, np.array(LOGPROB), 0)
    stats = [token.stats for token in tokens if token.stats is not None]
    if text.norms is not None and stats:
        norms = [[s.embedding, *(layer.residual for layer in s.layers)] for s in stats]
        want = text.norms[:, [s.position for s in stats]].T
        compare(f"golden.norm.{which}", text.prompt, np.array(norms), want, NORM * want, 0)


@pytest.mark.ci
@pytest.mark.smoke
@pytest.mark.parity
@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(*each.values, id=each.id, marks=pytest.mark.slow)
        if each.id != "wgpu-tale"
        else each
        for each in OPEN  # the others write all of them in the next test, and capture one
    ],
    indirect=True,
)
def test_each_prompt_alone_with_every_layer_captured(opened: tuple[Trained, Engine]) -> None:
    model, engine = opened
    for text in model.texts:
        assert engine.tokenizer.encode(text.prompt) == text.prompt_ids
        run = list(engine.generate(text.prompt_ids, greedily(text), capture=True))
        assert all(token.stats is not None for token in run)
        check(run, text, engine.info.device.backend)


def test_all_prompts_at_once_with_some_captured(opened: tuple[Trained, Engine]) -> None:
    model, engine = opened
    runs = [
        engine.generate(text.prompt_ids, greedily(text), capture=i == 1)
        for i, text in enumerate(model.texts)
    ]
    for text, run in zip(model.texts, runs, strict=True):
        check(list(run), text, engine.info.device.backend)


def test_a_seed_gives_the_same_text_beside_other_runs(opened: tuple[Trained, Engine]) -> None:
    model, engine = opened
    params = SamplingParams(temperature=0.9, top_k=50, top_p=0.9, seed=11, max_tokens=60)
    prompt = model.texts[0].prompt_ids
    alone = [token.id for token in engine.generate(prompt, params)]
    runs = [engine.generate(prompt, params)]
    runs += [engine.generate(prompt[:n], SamplingParams(max_tokens=40)) for n in (3, 5, 9)]
    assert [token.id for token in runs[0]] == alone
    for run in runs[1:]:
        list(run)


# ---- over HTTP ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=trained_models(), ids=str)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Trained, str]]:
    with serving("--dtype", "f32", "--model", request.param.folder) as address:
        yield request.param, address


def answered(url: str, **body: Any) -> dict[str, Any]:
    """Return the only choice of a response."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        choice: dict[str, Any] = json.load(answer)["choices"][0]
    return choice


def test_completions(served: tuple[Trained, str]) -> None:
    model, address = served
    tokenizer = Tokenizer.load(model.folder)
    for text in model.texts:
        choice = answered(
            f"{address}v1/completions",
            prompt=text.prompt_ids,
            max_tokens=len(text.greedy_ids),
            temperature=0,
            ignore_eos=True,
            logprobs=0,
        )
        assert choice["text"].strip() == text.text.strip()
        assert tokenizer.decode(text.prompt_ids) + choice["text"] == tokenizer.decode(text.ids)
        told = choice["logprobs"]
        assert told["tokens"] == [tokenizer.piece(id) for id in text.greedy_ids]
        if text.logprobs is not None:
            got = np.array(told["token_logprobs"])
            compare("golden.logprob.http", text.prompt, got, text.logprobs, np.array(LOGPROB), 0)


def test_a_chat(served: tuple[Trained, str]) -> None:
    """The template gives the same prompt; stories260k has no template."""
    model, address = served
    for text in model.texts:
        if text.asked is None:
            continue
        choice = answered(
            f"{address}v1/chat/completions",
            messages=[{"role": "user", "content": text.asked}],
            max_tokens=len(text.greedy_ids),
            temperature=0,
            ignore_eos=True,
            logprobs=True,
        )
        got = np.array([token["logprob"] for token in choice["logprobs"]["content"]])
        compare("golden.logprob.http", text.prompt, got, text.logprobs, np.array(LOGPROB), 0)
