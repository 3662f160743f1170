"""A real trained model gives the texts that `transformers` gives, through the engine and over HTTP.

stories260k is data for tests and not part of the project; its golden.json holds three prompts and
the 256 tokens that transformers (float32, greedy) continues each with.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from gpu import Engine, SamplingParams
from tests.serving import ROOT, serving

FOLDER = ROOT.parent / "shared/models/stories260k"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="../shared/models/stories260k is not there"
)


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "golden.json").read_text())
    return found


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = Engine.load(FOLDER, dtype="f32", backend=request.param)
    yield engine
    engine.close()


@pytest.mark.parity
def test_each_prompt_alone(engine: Engine) -> None:
    for case in cases():
        assert engine.tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        run = engine.generate(case["prompt_ids"], SamplingParams(temperature=0, max_tokens=256))
        assert [token.id for token in run] == case["greedy_ids"], case["prompt"]


def test_all_prompts_at_once_some_captured(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=256)
    runs = [
        engine.generate(case["prompt_ids"], params, capture=i == 1)
        for i, case in enumerate(cases())
    ]
    for case, run in zip(cases(), runs, strict=True):
        assert [token.id for token in run] == case["greedy_ids"], case["prompt"]


def test_streamed_pieces_join_to_the_whole_text(engine: Engine) -> None:
    case = cases()[0]
    run = engine.generate(case["prompt_ids"], SamplingParams(temperature=0, max_tokens=256))
    whole = engine.tokenizer.decode(case["prompt_ids"] + case["greedy_ids"])
    assert case["prompt"] + "".join(token.text for token in run) == whole


def test_a_seed_means_the_same_text_beside_other_runs(engine: Engine) -> None:
    params = SamplingParams(temperature=0.9, top_k=50, top_p=0.9, seed=11, max_tokens=60)
    prompt = cases()[0]["prompt_ids"]
    alone = [token.id for token in engine.generate(prompt, params)]
    runs = [engine.generate(prompt, params)]
    runs += [engine.generate(prompt[:n], SamplingParams(max_tokens=40)) for n in (3, 5, 9)]
    assert [token.id for token in runs[0]] == alone
    for run in runs[1:]:
        list(run)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving("--dtype", "f32", "--model", FOLDER) as address:
        yield address


def test_over_http(address: str, engine: Engine) -> None:
    for case in cases():
        body = {"prompt": case["prompt_ids"], "max_tokens": 256, "temperature": 0}
        request = urllib.request.Request(
            f"{address}v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = json.load(answer)["choices"][0]["text"]
        whole = engine.tokenizer.decode(case["prompt_ids"] + case["greedy_ids"])
        assert case["prompt"] + text == whole
