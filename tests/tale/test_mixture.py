"""The bundled mixture of experts: its files, how it is made, and what its routers learned."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

from app.tale import MIXTURE, mixture_dir, model_dir, name_of
from gpu import ModelConfig
from tests.tale import mixture, mixture_card, upcycle
from tests.tale.export import load
from tests.tale.packing import Batch

MAX_BYTES = 12_000_000


@pytest.fixture(scope="module")
def experts() -> list[dict[str, Any]]:
    content: dict[str, Any] = json.loads((mixture_dir() / "routing.json").read_text("utf-8"))
    layers: list[dict[str, Any]] = content["layers"]
    return layers


def test_the_files_are_of_a_small_mixture_with_the_tokens_of_tale() -> None:
    config, dense = ModelConfig.from_folder(mixture_dir()), ModelConfig.from_folder(model_dir())
    assert config.experts is not None
    assert (config.experts.n_experts, config.experts.experts_per_token) == (8, 2)
    assert config.expert_layers == tuple(range(dense.n_layers))
    assert sum(path.stat().st_size for path in mixture_dir().iterdir()) <= MAX_BYTES
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (mixture_dir() / name).read_bytes() == (model_dir() / name).read_bytes()
    assert name_of(mixture_dir()) == MIXTURE
    assert name_of(mixture_dir().parent) is None


def test_the_card_states_what_was_measured() -> None:
    text = (mixture_dir() / "README.md").read_text(encoding="utf-8")
    assert text == mixture_card.render(mixture_dir())


def test_its_experts_are_balanced_and_specialised(experts: list[dict[str, Any]]) -> None:
    """Of routers that choose at random, the token would tell nothing."""
    assert all(of["evenness"] > 0.9 for of in experts)
    assert all(of["by_token"] > 0.2 for of in experts)


def test_what_a_variable_tells_about_the_expert() -> None:
    assert mixture_card.told_by(np.array([[5, 0], [0, 5]])) == pytest.approx(1)
    assert mixture_card.told_by(np.array([[5, 5], [5, 5]])) == pytest.approx(0)
    half = mixture_card.told_by(np.array([[4, 4, 0], [0, 0, 8]]))
    assert half == pytest.approx(1)


def test_centres_are_the_means_of_the_rows_that_are_nearest_to_them() -> None:
    torch.manual_seed(0)
    x = 3 + torch.randn(4, 16)[torch.arange(400) % 4] + 0.3 * torch.randn(400, 16)
    centres = upcycle.centres_of(x, 6)
    rows = F.normalize(x - x.mean(0), dim=-1)
    nearest = (rows @ centres.T).argmax(-1)
    assert torch.bincount(nearest, minlength=6).min() > 0
    for i, centre in enumerate(centres):
        torch.testing.assert_close(centre, F.normalize(rows[nearest == i].sum(0), dim=-1))


def test_an_upcycled_block_is_near_the_mlp_that_it_stands_for() -> None:
    """On a sample that it was not fitted on, nearer than the mean of what the MLP gave."""
    torch.manual_seed(0)
    dense = load(model_dir())
    mlp = upcycle.mlps_of(dense)[4]
    x = F.rms_norm(torch.randn(4096, dense.config.hidden), (dense.config.hidden,))
    x = (
        x @ torch.randn(dense.config.hidden, dense.config.hidden) * 0.07
    )  # not alike in all directions
    with torch.no_grad():
        hidden = F.silu(mlp.gate_proj(x)) * mlp.up_proj(x)
        y = mlp.down_proj(hidden)
        model: Any = transformers.MixtralForCausalLM(upcycle.mixture_config(dense.config))
        block = model.model.layers[4].mlp.float()
        upcycle.set_experts(block, mlp, upcycle.MlpSample(x[:3072], hidden[:3072], y[:3072]))
        error = (block(x[None, 3072:])[0] - y[3072:]).square().mean()
    assert error < 0.6 * y[3072:].var(0).mean()


def test_even_routers_have_no_imbalance_and_one_expert_for_all_the_most() -> None:
    ids = torch.zeros(1, 64, dtype=torch.long)
    batch = Batch(ids, ids, ids, ids)
    even = torch.eye(8).repeat(8, 1) * 20 + torch.eye(8).roll(1, 1).repeat(8, 1) * 19
    same = torch.tensor([[9.0, 8.0, *[-9.0] * 6]]).repeat(64, 1)
    assert float(mixture.imbalance((even,), batch)) == pytest.approx(0, abs=1e-5)
    assert float(mixture.imbalance((same,), batch)) == pytest.approx(6, rel=0.01)
