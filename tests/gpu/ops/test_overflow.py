"""A model whose numbers overflow raises an error instead of writing nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from gpu import Engine, EngineError, SamplingParams
from gpu.load_options import LoadOptions
from tests.gpu.models import random_llama


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    """A model with a final norm so large that every logit is infinite or not a number."""
    folder = random_llama.write(tmp_path, random_llama.SHAPES[0])
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 1e38
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.ci
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("backend", ["wgpu", "torch"])
def test_a_run_ends_with_an_error_a_person_can_act_on(
    overflowing: Path, backend: str, temperature: float
) -> None:
    engine = Engine.load(overflowing, LoadOptions(dtype="f32", backend=backend))
    try:
        for _ in range(2):  # the run fails, the engine continues
            run = engine.generate([1, 2, 3], SamplingParams(temperature=temperature, max_tokens=5))
            with pytest.raises(EngineError, match=r"not a number: .* load it with dtype f32"):
                list(run)
            assert run.done is not None
            assert run.done.completion_tokens == 0
    finally:
        engine.close()
