"""An exported model, run from its files alone, generates what the engine generates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.config import Settings
from app.models.find_model import find_model
from app.site.export import export
from gpu import Engine, SamplingParams
from gpu.load_options import LoadOptions
from gpu.webgpu.device import choose_adapter
from tests.golden import Trained, trained_models
from tests.gpu.export.player import Player

SEEDED = {
    "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1,
}  # fmt: skip
SEED = 2**40 + 7


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the trained models, as f32."""
    found = {}
    for model in trained_models():
        settings = Settings(model=str(model.folder), dtype="f32")
        out = tmp_path_factory.mktemp("exports") / model.name
        found[model.name] = export(settings, find_model(settings), out).folder
    return found


@pytest.mark.parametrize(
    ("model", "profile"), zip(trained_models(), ("software", "portable"), strict=False), ids=str
)
def test_golden_ids_from_the_files_alone(
    exported: dict[str, Path], model: Trained, profile: str
) -> None:
    player, text = Player(choose_adapter(None), exported[model.name], profile), model.texts[0]
    n = min(32, len(text.greedy_ids))
    samples = player.generate(text.prompt_ids, n)
    assert [sample["id"] for sample, _ in samples] == text.greedy_ids[:n]


def test_the_same_draws_and_statistics_as_the_engine(exported: dict[str, Path]) -> None:
    """Seeded, with all settings on and captured: ids and draws are equal, statistics nearly."""
    model = trained_models()[-1]
    prompt = model.texts[0].prompt_ids
    player = Player(choose_adapter(None), exported[model.name], "portable")
    seed = {"seed_low": SEED & 0xFFFFFFFF, "seed_high": SEED >> 32}
    got = player.generate(prompt, 24, "captured", **seed, **SEEDED)
    engine = Engine.load(model.folder, LoadOptions(dtype="f32", slots=2))
    try:
        params = SamplingParams(**SEEDED, seed=SEED, max_tokens=24, ignore_eos=True)
        want = list(engine.generate(prompt, params, capture=True))
    finally:
        engine.close()
    assert [sample["id"] for sample, _ in got] == [token.id for token in want]
    assert [sample["draw"] for sample, _ in got] == [token.draw for token in want]
    of_last = want[-1].stats
    assert of_last is not None
    stats = np.frombuffer(got[-1][1]["stats"], np.float32)
    assert stats[0] == pytest.approx(of_last.embedding, rel=1e-4)
    assert stats[1::5] == pytest.approx([layer.residual for layer in of_last.layers], rel=1e-4)
