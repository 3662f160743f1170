"""Watermarks of whole runs: the texts of transformers' `generate`, on both backends, whatever else
the engine does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, WatermarkingConfig

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.events import Token
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.request import Request
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.text.tokenizer import Tokenizer
from gpu.watermark.detector import detect
from gpu.watermark.greenlist import Greenlists, WatermarkConfig
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama

NAME = "odd100_tied"
N = 30
PROMPT = [int(id) for id in random_llama.ids(NAME, 12)]
MARKED: dict[str, Any] = {
    "temperature": 0.0,
    "watermark_bias": 1.0,
    "greenlist_ratio": 0.4,
    "hashing_key": 77,
}


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def engine(request: pytest.FixtureRequest, device: Device) -> Iterator[Engine]:
    """Three slots, and drafts of every run."""
    folder = random_llama.folder(NAME)
    options = LoadOptions(dtype="f32", slots=3, context=64, spec_type="ngram")
    made: list[WgpuRunner | TorchRunner] = []

    def make() -> WgpuRunner | TorchRunner:
        if request.param == "torch":
            return TorchRunner.load(folder, options)
        config = ModelConfig.from_folder(folder)
        made.append(WgpuRunner(device, config, Checkpoint.open(folder), options))
        made[0].close = lambda: None  # type: ignore[method-assign]  # the device is shared
        return made[0]

    one = Engine(make, Tokenizer.load(folder), options)
    yield one
    one.close()


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=N, ignore_eos=True, seed=1, **{**MARKED, **changes})


def write(engine: Engine, *updates: ScheduledUpdate, **changes: Any) -> list[Token]:
    run = engine.submit(Request(PROMPT, params(**changes), updates=updates))
    tokens = list(run)
    assert run.done is not None
    assert run.done.reason == "length"
    return tokens


def ids_of(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]


def generate(**changes: Any) -> list[int]:
    """Return the text of transformers."""
    model = AutoModelForCausalLM.from_pretrained(random_llama.folder(NAME), dtype=torch.float32)
    settings = params(**changes)
    out = model.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=N,
        min_new_tokens=N,
        do_sample=False,
        watermarking_config=WatermarkingConfig(
            greenlist_ratio=settings.greenlist_ratio,
            bias=settings.watermark_bias,
            hashing_key=settings.hashing_key,
            seeding_scheme="selfhash" if settings.selfhash_width else "lefthash",
            context_width=settings.selfhash_width or 1,
        ),
    )
    ids: list[int] = out[0, len(PROMPT) :].tolist()
    return ids


def test_the_text_is_the_one_of_transformers(engine: Engine) -> None:
    plain = write(engine, watermark_bias=0.0)
    tokens = write(engine)
    assert ids_of(tokens) == generate()
    assert ids_of(tokens) != ids_of(plain)


@pytest.mark.parametrize("width", [1, 3, len(PROMPT), len(PROMPT) + 2])
def test_the_text_of_selfhash_is_the_one_of_transformers(engine: Engine, width: int) -> None:
    """Also after fewer tokens than are hashed, where there is no watermark yet."""
    tokens = write(engine, selfhash_width=width, watermark_bias=3.0)
    assert ids_of(tokens) == generate(selfhash_width=width, watermark_bias=3.0)
    assert ids_of(tokens) != ids_of(write(engine, watermark_bias=3.0))
    config = WatermarkConfig(0.4, 77, "selfhash", width)
    found = detect([*PROMPT, *ids_of(tokens)][-N:], config, Greenlists(engine.config.vocab_size))
    assert found.prediction


@pytest.mark.parametrize("width", [0, 4])
def test_events_tell_which_tokens_are_green(engine: Engine, width: int) -> None:
    tokens = write(engine, temperature=1.0, selfhash_width=width)
    own = Greenlists(engine.config.vocab_size)
    config, ids = WatermarkConfig(0.4, 77), [*PROMPT, *ids_of(tokens)]
    if width:
        config = WatermarkConfig(0.4, 77, "selfhash", width)
    for i, token in enumerate(tokens, len(PROMPT)):
        assert token.watermark.green == own.is_green(config, ids[: i + 1])
        assert 0 < token.watermark.probability < 1
    assert all(token.draft is None for token in tokens), "a slot has one greenlist"


def test_rows_with_and_without_a_watermark_share_steps(engine: Engine) -> None:
    settings = [
        {},
        {"watermark_bias": 0.0},
        {"hashing_key": 5, "selfhash_width": 2, "temperature": 1.0},
    ]
    alone = [ids_of(write(engine, **changes)) for changes in settings]
    runs = [engine.submit(Request(PROMPT, params(**changes))) for changes in settings]
    assert [ids_of(list(run)) for run in runs] == alone


def test_it_can_begin_and_end_within_a_text(engine: Engine) -> None:
    on = ScheduledUpdate(index=8, params={"watermark_bias": 4.0})
    off = ScheduledUpdate(index=20, params={"watermark_bias": 0.0})
    tokens = write(engine, on, off, watermark_bias=0.0)
    marked = [token.index for token in tokens if token.watermark]
    assert marked == list(range(8, 20))
    assert ids_of(tokens)[:8] == ids_of(write(engine, watermark_bias=0.0))[:8]
