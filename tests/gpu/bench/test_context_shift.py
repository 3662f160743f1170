"""A text longer than the context, read with truncation and with attention sinks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpu.bench import context_shift
from gpu.bench.context_shift import lines, measure
from gpu.bench.prompt_reader import PromptReader
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.models import random_models

TALE = Path(__file__).parents[3] / "app" / "tale" / "model"
CONTEXT = 128
STORY = (
    "Once upon a time there was a little fox named Fern. She lived in a hollow tree by the river. "
    "One day she found a lantern on the path. The lantern was old and it did not shine. Fern took "
    "it home and cleaned it with a soft cloth. In the evening she put some oil in it. "
) * 3


def test_a_shift_computes_each_token_once_and_predicts_as_well(device: Device) -> None:
    options = LoadOptions(slots=2, context=CONTEXT)
    runner = WgpuRunner(device, ModelConfig.from_folder(TALE), Checkpoint.open(TALE), options)
    tokenizer = Tokenizer.load(TALE)
    ids = tokenizer.encode(STORY)
    assert len(ids) > 1.5 * CONTEXT
    truncation, slide, no_sinks = measure(runner, tokenizer, ids)
    assert slide.computed == no_sinks.computed == len(ids)
    assert truncation.computed > 1.5 * len(ids)
    assert slide.perplexity < 1.2 * truncation.perplexity
    assert len([*lines([truncation, slide, no_sinks])]) == 5
    short = ids[:CONTEXT]
    reader = PromptReader(runner, tokenizer, prefix_cache=False)
    np.testing.assert_array_equal(
        reader.all_logits(short), reader.all_logits(short, n_keep=4), "nothing has left yet"
    )


def test_a_model_that_cannot_slide_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert context_shift.main(["--model", str(random_models.folder("gpt2"))]) == 2
    assert "gpt2 models add a learned vector" in capsys.readouterr().err
