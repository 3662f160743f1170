"""The stages of a draw add up, and equal transformers' filters."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from gpu.inspection.requests import Answer
from gpu.inspection.waterfall import waterfall
from gpu.reference.sampler import sample_token
from gpu.reference.softmax import log_softmax
from gpu.sampling_params import TokenBias
from gpu.step import Sample

VOCAB = 311
SEEN = [3, 5, 5, 200]

SETTINGS = [
    {},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.4, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3},
    {"temperature": 2.5, "top_k": 1},
    {"repetition_penalty": 0.8},
]


def sample_of(**settings: float) -> Sample:
    values = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    } | settings
    return Sample(row=0, slot=0, seed=77, index=4, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return np.random.default_rng(2).normal(0, 2.5, VOCAB).astype(np.float32)


def stages(answer: Answer) -> dict[str, dict[str, float]]:
    return {stage["name"]: stage for stage in answer.info["stages"]}


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_stage_keeps_what_it_does_not_remove(
    logits: np.ndarray, settings: dict[str, float]
) -> None:
    answer = waterfall(logits, SEEN, sample_of(**settings), top=VOCAB)
    rows = answer.info["stages"]
    for before, after in itertools.pairwise(rows):
        assert after["kept"] + after["removed"] == pytest.approx(before["kept"], abs=1e-12)
        assert after["n_kept"] <= before["n_kept"]
    assert answer["after"].sum() == pytest.approx(1.0, abs=1e-5)
    kept = answer["cut"] == 0
    assert kept.sum() == rows[-1]["n_kept"]
    assert answer["tempered"][kept].sum() == pytest.approx(rows[-1]["kept"], abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.4])
def test_a_watermark_moves_shares_among_the_survivors(
    logits: np.ndarray, temperature: float
) -> None:
    green = np.random.default_rng(3).random(VOCAB) < 0.25
    settings = sample_of(temperature=temperature, top_p=0.9, repetition_penalty=1.0)
    sample = replace(settings, watermark_bias=2.0)
    answer = waterfall(logits, SEEN, sample, top=VOCAB, green=green)
    drawn = sample_token(logits, SEEN, sample, None, green)
    assert answer.info["chosen"] == drawn.id
    before, after = answer.info["stages"][-2:]
    assert (after["name"], after["n_kept"]) == ("watermark", before["n_kept"])
    assert answer["marked"].sum() == pytest.approx(after["kept"], abs=1e-5)
    ids = answer["ids"]
    odds = answer["marked"] / np.where(answer["cut"] == 0, answer["tempered"], np.inf)
    kept = answer["cut"] == 0
    grown = odds[kept & green[ids]].mean() / odds[kept & ~green[ids]].mean()
    assert grown == pytest.approx(np.exp(2), rel=1e-4)
    at = ids.tolist().index(drawn.id)
    assert answer["low"][at] - 1e-6 <= answer.info["draw_at"] <= answer["high"][at] + 1e-6


def test_tokens_asked_for_are_listed_once_beside_the_most_likely(logits: np.ndarray) -> None:
    order = np.argsort(-logits, kind="stable")
    also = [int(order[40]), int(order[1]), int(order[VOCAB - 1])]
    answer = waterfall(logits, SEEN, sample_of(top_k=3), top=3, also=also)
    ids = answer["ids"].tolist()
    assert ids[:3] == order[:3].tolist()
    assert ids[3:] == [also[0], also[2]]
    assert answer["logit"].tolist() == logits[ids].tolist()


def test_of_the_tokens_asked_for_a_grammar_leaves_the_allowed(logits: np.ndarray) -> None:
    allowed = np.arange(VOCAB) % 2 == 0
    answer = waterfall(logits, SEEN, sample_of(), 1, allowed, also=[10, 11, 200])
    assert {10, 200} <= set(answer["ids"].tolist())
    assert 11 not in answer["ids"]
    assert answer["logit"].tolist() == logits[answer["ids"]].tolist()


@pytest.mark.parametrize("settings", SETTINGS)
def test_survivors_of_every_filter_are_those_of_transformers(
    logits: np.ndarray, settings: dict[str, float]
) -> None:
    answer = waterfall(logits, SEEN, sample_of(**settings), top=VOCAB)
    ids = torch.tensor([SEEN])
    scores = torch.tensor(logits, dtype=torch.float64)[None]
    expected = {"logits": scores}
    s = sample_of(**settings)
    scores = hf.RepetitionPenaltyLogitsProcessor(s.repetition_penalty)(ids, scores)
    expected["penalty"] = scores
    scores = hf.TemperatureLogitsWarper(s.temperature)(ids, scores)
    expected["temperature"] = scores
    if s.top_k:
        scores = hf.TopKLogitsWarper(s.top_k)(ids, scores)
    expected["top_k"] = scores
    if s.top_p < 1:
        scores = hf.TopPLogitsWarper(s.top_p)(ids, scores)
    expected["top_p"] = scores
    if s.min_p:
        scores = hf.MinPLogitsWarper(s.min_p)(ids, scores)
    expected["min_p"] = scores
    for name, want in expected.items():
        got = stages(answer)[name]
        shares = torch.softmax(want, -1)[0]
        assert got["n_kept"] == int((want > -torch.inf).sum()), name
        bits = float(-(shares * torch.log2(shares.clamp_min(1e-300))).sum())
        assert got["entropy"] == pytest.approx(bits, abs=1e-9), name
    np.testing.assert_allclose(
        answer["after"], torch.softmax(scores, -1)[0].numpy()[answer["ids"]], atol=1e-6
    )
    for name, key in (("raw", "logits"), ("penalised", "penalty"), ("tempered", "temperature")):
        want_shares = torch.softmax(expected[key], -1)[0].numpy()[answer["ids"]]
        np.testing.assert_allclose(answer[name], want_shares, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_draw_falls_inside_the_share_of_the_chosen(
    logits: np.ndarray, settings: dict[str, float]
) -> None:
    sample = sample_of(**settings)
    answer = waterfall(logits, SEEN, sample, top=5)
    assert answer.info["chosen"] == sample_token(logits, SEEN, sample).id
    at = int(np.flatnonzero(answer["ids"] == answer.info["chosen"])[0])
    assert answer["low"][at] - 1e-6 <= answer.info["draw"] <= answer["high"][at] + 1e-6
    assert answer["high"][at] - answer["low"][at] == pytest.approx(answer["after"][at], abs=1e-6)


def test_a_chosen_token_outside_the_most_likely_is_shown_last() -> None:
    flat = np.zeros(VOCAB, np.float32)
    answer = waterfall(flat, [], sample_of(), top=3)
    assert answer.info["chosen"] > 2
    assert answer["ids"].tolist() == [0, 1, 2, answer.info["chosen"]]


def test_greedy_takes_the_most_likely_without_a_draw(logits: np.ndarray) -> None:
    answer = waterfall(logits, SEEN, sample_of(temperature=0.0), top=4)
    assert answer.info["greedy"]
    assert answer.info["draw"] == 0
    assert answer.info["chosen"] == int(logits.argmax())
    assert answer["after"].tolist() == [1, 0, 0, 0]


def test_tokens_of_the_context_are_marked(logits: np.ndarray) -> None:
    answer = waterfall(logits, SEEN, sample_of(repetition_penalty=1.5), top=VOCAB)
    assert set(answer["ids"][answer["seen"] == 1].tolist()) == set(SEEN)


@pytest.mark.parametrize("settings", SETTINGS)
def test_with_a_grammar_it_is_about_the_allowed_tokens(
    logits: np.ndarray, settings: dict[str, float]
) -> None:
    allowed = np.zeros(VOCAB, bool)
    allowed[np.random.default_rng(3).permutation(VOCAB)[:9]] = True
    ids, sample = np.flatnonzero(allowed), sample_of(**settings)
    answer = waterfall(logits, SEEN, sample, VOCAB, allowed)
    sampled = sample_token(logits, SEEN, sample, allowed)
    last = answer.info["stages"][-1]
    assert (answer.info["chosen"], last["n_kept"]) == (sampled.id, sampled.n_kept)
    assert set(answer["ids"].tolist()) == set(ids.tolist())
    assert answer.info["allowed"] == {"n": 9, "probability": pytest.approx(sampled.allowed)}
    own = np.exp(log_softmax(logits))
    forbidden = sorted(set(range(VOCAB)) - set(ids.tolist()), key=lambda id: -own[id])[:5]
    assert answer["forbidden_ids"].tolist() == forbidden
    assert answer["forbidden_raw"] == pytest.approx(own[forbidden], rel=1e-5)


def test_without_a_grammar_nothing_is_forbidden(logits: np.ndarray) -> None:
    answer = waterfall(logits, SEEN, sample_of(), 5)
    assert "allowed" not in answer.info
    assert "forbidden_ids" not in {array.name for array in answer.arrays}


def test_penalties_and_biases_are_one_stage_and_what_was_written_is_counted(
    logits: np.ndarray,
) -> None:
    settings = {"frequency_penalty": 0.5, "presence_penalty": 1.0}
    sample = replace(sample_of(**settings), index=2, logit_bias=(TokenBias(7, 2.0),))
    answer = waterfall(logits, SEEN, sample, top=VOCAB)
    rows = {int(id): i for i, id in enumerate(answer["ids"])}
    wanted = logits.astype(np.float64)
    wanted[[5, 200]] -= 1.5
    wanted[7] += 2.0
    shares = np.exp(wanted - wanted.max())
    got = answer["penalised"][[rows[id] for id in range(VOCAB)]]
    assert got == pytest.approx(shares / shares.sum(), rel=1e-5)
    assert answer["written"][[rows[id] for id in (3, 5, 200, 7)]].tolist() == [0, 1, 1, 0]
    assert answer["seen"][[rows[id] for id in (3, 5, 200, 7)]].tolist() == [1, 1, 1, 0]
