"""Quality of weight formats, measured on text that the model generates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from gpu.bench import quality
from gpu.bench.quality import Texts
from gpu.bench.subject import BenchModel
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama

TALE = Path(__file__).parents[3] / "app" / "tale" / "model"
N_TOKENS = 192


@pytest.fixture(scope="module")
def tale(device: Device) -> WgpuRunner:
    return BenchModel.from_folder(TALE).runner(device, "f32", N_TOKENS)


def mean_logprob(runner: Runner, texts: Texts) -> float:
    """Return the model's mean log-probability in nats of every token but the first ones."""
    found: list[float] = []
    for text in texts:
        logprobs = log_softmax(quality.all_logits(runner, text).astype(np.float64), axis=1)
        found += logprobs[np.arange(len(text) - 1), text[1:]].tolist()
    return float(np.mean(found))


@pytest.mark.slow
def test_texts_are_the_models_own(tale: WgpuRunner) -> None:
    """Its own text is far likelier than uniformly drawn tokens, or than the same text shuffled."""
    texts = quality.own_texts(tale, N_TOKENS)
    assert sum(map(len, texts)) == N_TOKENS
    assert {text[0] for text in texts} == {0}  # <|endoftext|>: the model has no BOS
    uniform = -np.log(tale.config.vocab_size)
    shuffled = [[text[0], *np.random.default_rng(0).permutation(text[1:])] for text in texts]
    own = mean_logprob(tale, texts)
    assert own > uniform / 3
    assert mean_logprob(tale, shuffled) < 2 * own


def test_a_text_is_the_same_at_every_run(tale: WgpuRunner) -> None:
    texts = quality.own_texts(tale, 64)
    assert quality.own_texts(tale, 64) == texts
    assert [id for text in quality.own_texts(tale, 24) for id in text] == [
        id for text in texts for id in text
    ][:24]


def test_another_text_begins_where_the_context_is_full(device: Device) -> None:
    runner = BenchModel.from_folder(TALE).runner(device, "f32", 48)
    assert [len(text) for text in quality.own_texts(runner, 100)] == [48, 48, 4]


@pytest.mark.slow
def test_another_text_begins_where_one_ends(device: Device) -> None:
    """A model made to end soon: one in eight of its tokens ends a text."""
    subject = BenchModel.from_folder(random_llama.folder("head128_llama3"))
    runner = subject.runner(device, "f32", 64)
    whole = quality.own_texts(runner, 64)
    assert len(whole) == 1
    ends = tuple(range(0, runner.config.vocab_size, 8))
    runner.config = replace(runner.config, eos_ids=ends)
    texts = quality.own_texts(runner, 64)
    assert sum(map(len, texts)) == 64
    assert len(texts) > 3
    assert not any(id in ends for text in texts for id in text[1:])
    first = next(i for i, id in enumerate(whole[0]) if i and id in ends)
    assert texts[0] == whole[0][:first]
    assert len({tuple(text) for text in texts if len(text) > 1}) > 2


@pytest.mark.slow
def test_a_models_own_text_is_where_roundings_are_close(device: Device, tale: WgpuRunner) -> None:
    """Shows why random ids are not used."""
    q4 = BenchModel.from_folder(TALE).runner(device, "q4", N_TOKENS)
    ids = np.random.default_rng(0).integers(0, tale.config.vocab_size, N_TOKENS).tolist()
    on_text = quality.compare(tale, q4, quality.own_texts(tale, N_TOKENS))
    on_noise = quality.compare(tale, q4, [ids])
    assert 0 < on_text.kl < 5e-2
    assert on_noise.kl > 3 * on_text.kl
    assert on_text.same_top > on_noise.same_top


def test_a_model_is_as_close_as_it_can_be_to_itself(tale: WgpuRunner) -> None:
    found = quality.compare(tale, tale, quality.own_texts(tale, 32))
    assert (found.kl, found.same_top) == (0, 1)
