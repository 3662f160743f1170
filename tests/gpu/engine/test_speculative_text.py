"""Speculative decoding on a real model: every id and every number of a text is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.events import Done, Token, TokenStats
from gpu.interventions.messages import Interventions, LayerFactor
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams, TokenBias
from gpu.speculative.draft_length import DraftLength
from gpu.speculative.ngram import NgramDrafter

MODEL = Path(__file__).parents[3] / "app" / "tale" / "model"
PROMPT = "Once upon a time, there was a fox who lived in"

RUNS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "top_p": 0.95},
    "penalised": {"temperature": 0.5, "repetition_penalty": 1.15},
    "counted": {
        "temperature": 0.5,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.4,
        "logit_bias": (TokenBias(300, 3.0),),
    },
}

WITHOUT_DRAFTS = LoadOptions(dtype="q8", slots=2)
ACTING = Interventions(mlp=(LayerFactor(1, 0.8),))


def pair(options: LoadOptions) -> tuple[Engine, Engine]:
    return (
        Engine.load(MODEL, options),
        Engine.load(MODEL, replace(options, spec_type="ngram")),
    )


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    """Without drafts and with them."""
    both = pair(WITHOUT_DRAFTS)
    yield both
    for engine in both:
        engine.close()


def written(engine: Engine, request: Request) -> tuple[list[Token], Done]:
    run = engine.submit(request)
    tokens = list(run)
    assert run.done is not None
    return tokens, run.done


def facts(token: Token) -> tuple[Any, ...]:
    """What the model and the draw decided about a token."""
    return (token.id, token.text, token.logprob, token.draw, token.rank, token.n_kept, token.mass)


def norms(stats: TokenStats) -> list[tuple[float, float, float]]:
    return [(layer.residual, layer.attention, layer.mlp) for layer in stats.layers]


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], None]:
    """Make the drafts those of a known text, but for every fifth token."""

    def make(text: list[int]) -> None:
        def propose(self: NgramDrafter, ids: list[int], most: int) -> list[int]:
            places = range(len(ids), min(len(ids) + most, len(text)))
            return [text[at] if at % 5 else (text[at] + 1) % 100 for at in places]

        monkeypatch.setattr(NgramDrafter, "propose", propose)
        monkeypatch.setattr(DraftLength, "choose", lambda self, most, n_beside: most)

    return make


def check_equal(
    engines: tuple[Engine, Engine], request: Request, guess: Callable[[list[int]], None]
) -> tuple[list[Token], list[Token]]:
    """Run a request without drafts and with them; return the tokens of both."""
    plain, _ = written(engines[0], request)
    guess([*request.ids, *(token.id for token in plain)])
    drafted, done = written(engines[1], request)
    assert [facts(token) for token in plain] == [facts(token) for token in drafted]
    assert done.timings.draft_n_accepted > 30
    assert done.timings.draft_n > done.timings.draft_n_accepted
    return plain, drafted


@pytest.mark.parametrize("name", RUNS)
def test_a_text_is_the_same_with_drafts(
    engines: tuple[Engine, Engine], name: str, guess: Callable[[list[int]], None]
) -> None:
    params = SamplingParams(seed=11, max_tokens=90, ignore_eos=True, **RUNS[name])
    check_equal(engines, Request(engines[0].tokenizer.encode(PROMPT), params), guess)


def test_what_the_layers_did_is_the_same_with_drafts(
    engines: tuple[Engine, Engine], guess: Callable[[list[int]], None]
) -> None:
    params = SamplingParams(seed=5, max_tokens=60, ignore_eos=True)
    request = Request(engines[0].tokenizer.encode(PROMPT), params, capture=True)
    for a, b in zip(*check_equal(engines, request, guess), strict=True):
        assert a.stats is not None
        assert b.stats is not None
        assert (a.stats.position, norms(a.stats)) == (b.stats.position, norms(b.stats))


@pytest.mark.ci
def test_a_text_under_an_intervention_is_the_same_with_drafts(
    engines: tuple[Engine, Engine], guess: Callable[[list[int]], None]
) -> None:
    params = SamplingParams(seed=3, max_tokens=60, temperature=0.0, ignore_eos=True)
    ids = engines[0].tokenizer.encode(PROMPT)
    check_equal(engines, Request(ids, params, interventions=ACTING), guess)


@pytest.mark.ci
def test_streams_beside_each_other_write_the_same_with_drafts(
    engines: tuple[Engine, Engine], guess: Callable[[list[int]], None]
) -> None:
    """Both have right and wrong drafts in the same steps."""
    plain_engine, engine = engines
    ids = engine.tokenizer.encode(PROMPT)
    requests = [
        Request(ids[: 8 + i], SamplingParams(seed=7, max_tokens=70, ignore_eos=True))
        for i in range(2)
    ]
    plain = [written(plain_engine, request)[0] for request in requests]
    guess([*ids[:8], *(token.id for token in plain[0])])
    drafted = [list(run) for run in [engine.submit(request) for request in requests]]
    for before, after in zip(plain, drafted, strict=True):
        assert [facts(token) for token in before] == [facts(token) for token in after]
