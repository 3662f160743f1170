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
from gpu.step import InspectionRequest, Row, Sample, Step
from gpu.webgpu.device import Device, choose_adapter
from tests.golden import Trained, trained_models
from tests.gpu.engine import driving
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


@pytest.fixture(scope="module")
def player(exported: dict[str, Path]) -> Player:
    return Player(choose_adapter(None), exported[trained_models()[-1].name], "portable")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("model", "profile"),
    list(zip(trained_models(), ("software", "portable"), strict=False)),
    ids=str,
)
def test_golden_ids_from_the_files_alone(
    exported: dict[str, Path], model: Trained, profile: str
) -> None:
    text = model.texts[0]
    n = min(32, len(text.greedy_ids))
    of_profile = Player(choose_adapter(None), exported[model.name], profile)
    samples = of_profile.generate(text.prompt_ids, n)
    assert [sample["id"] for sample, _ in samples] == text.greedy_ids[:n]


@pytest.mark.slow
def test_the_same_draws_and_statistics_as_the_engine(player: Player) -> None:
    """Seeded, with all settings on and captured: ids and draws are equal, statistics nearly."""
    model = trained_models()[-1]
    prompt = model.texts[0].prompt_ids
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


@pytest.mark.slow
def test_attention_and_lens_from_the_files_alone(player: Player, device: Device) -> None:
    """Of the last two tokens of a prompt, as the runner answers."""
    model = trained_models()[-1]
    ids = model.texts[0].prompt_ids[:9]
    player.generate(ids, 1)
    rows = [(len(ids) - 2, ids[-2]), (len(ids) - 1, ids[-1])]
    runner = driving.load(device, model.folder, n_slots=2)
    driving.begin(runner, 0, ids, len(ids))
    driving.prefill(runner, ids)
    step = Step(tuple(Row(0, *row) for row in rows), (Sample(1, 0, 0, 0),))
    want = runner.inspect(step, InspectionRequest(keys=(0, len(ids)), lens=True))

    n_layers, n_heads = runner.config.n_layers, runner.config.n_heads
    plan = player.ask("weights", rows, [], 2, len(ids))
    weights = np.frombuffer(player.read(plan["tensors"]["weights"]), np.float32)
    weights = weights.reshape(n_layers, -1)[:, : 2 * n_heads * len(ids)]
    weights = weights.reshape(n_layers, 2, n_heads, len(ids)).swapaxes(0, 1)
    np.testing.assert_allclose(weights, want.attention, atol=1e-4)

    states = player.ask("states", rows, [], 2, len(ids))
    after_the_last = n_layers * states["rows"] + 1
    player.ask("lens", [], [1, after_the_last], states["rows"], 1)
    logits = np.frombuffer(player.read(player.plan["tensors"]["logits"]), np.float32)
    logits = logits.reshape(player.plan["tensors"]["logits"]["shape"])[:2]
    assert want.lens is not None
    got = logits[:, : runner.config.vocab_size]
    np.testing.assert_allclose(got, want.lens[[0, -1]], atol=2e-4)
