"""The transcript of an agent, read with neither, prefix cache and cache reuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.bench import cache_reuse
from gpu.bench.cache_reuse import N_STEPS, lines, measure, transcript
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.models import random_models

TALE = Path(__file__).parents[3] / "app" / "tale" / "model"


@pytest.mark.slow
def test_prefixes_save_what_did_not_change_and_chunks_more_at_a_small_cost(device: Device) -> None:
    options = LoadOptions(slots=2)
    runner = WgpuRunner(device, ModelConfig.from_folder(TALE), Checkpoint.open(TALE), options)
    tokenizer = Tokenizer.load(TALE)
    neither, prefix, chunks = measure(runner, tokenizer, least=16, repeat=0)
    n_prompt = sum(len(prompt.ids) for prompt in transcript(tokenizer))
    assert neither.computed == neither.prompt_tokens == n_prompt
    assert neither.divergence is None
    assert prefix.computed < 0.5 * n_prompt
    assert prefix.moved == 0
    assert prefix.divergence is not None
    assert prefix.divergence.kl == 0, "a prefix is reused exactly"
    assert chunks.computed < 0.6 * prefix.computed
    assert chunks.moved > chunks.computed
    assert chunks.divergence is not None
    assert 0 < chunks.divergence.kl < 0.05
    assert len([*lines([neither, prefix, chunks])]) == 5


def test_the_transcript_changes_in_its_middle() -> None:
    prompts = transcript(Tokenizer.load(TALE))
    assert len(prompts) == N_STEPS
    early, late = prompts[6].ids, prompts[7].ids
    n_common = next(i for i, (a, b) in enumerate(zip(early, late, strict=False)) if a != b)
    assert 50 < n_common < len(early) - 50


def test_a_model_that_cannot_shift_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cache_reuse.main(["--model", str(random_models.folder("gpt2"))]) == 2
    assert "gpt2 models add a learned vector" in capsys.readouterr().err
