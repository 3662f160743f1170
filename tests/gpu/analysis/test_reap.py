"""REAP: routing and scores equal those of transformers, the lowest scores are dropped, and removing
a dead expert changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu import Engine, ExpertScores, expert_scores, n_dropped, text_perplexity, write_pruned
from gpu.analysis.perplexity import TextSpan
from gpu.config import ModelConfig
from gpu.errors import InvalidRequest
from gpu.inspection.requests import Routing
from gpu.load_options import LoadOptions
from tests.gpu.analysis.dead_experts import planted
from tests.gpu.models import random_models

N_TOKENS = 40
WINDOWS = [TextSpan(tuple(random_models.ids(N_TOKENS, seed)), 1) for seed in (1, 2)]


@pytest.fixture
def load() -> Iterator[Any]:
    opened: list[Engine] = []

    def open_engine(folder: Path, backend: str = "torch") -> Engine:
        opened.append(
            Engine.load(folder, LoadOptions(dtype="f32", backend=backend, context=64, slots=1))
        )
        return opened[-1]

    yield open_engine
    for engine in opened:
        engine.close()


@torch.no_grad()
def observed(name: str, ids: list[int]) -> tuple[Any, Any, Any]:
    """Return what hooks on transformers' model record: chosen, gates and norms (n_layers, n,
    experts_per_token)."""
    model, seen = random_models.reference(name).model, []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        states, (_, gates, chosen), experts = inputs[0][0], module.gate(inputs[0]), module.experts
        norms = torch.zeros_like(gates)
        for (row, place), expert in np.ndenumerate(chosen.numpy()):
            gate, up = (experts.gate_up_proj[expert] @ states[row]).chunk(2)
            given = experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)
            norms[row, place] = given.norm()
        seen.append((chosen.numpy(), gates.numpy(), norms.numpy()))

    layers = [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    handles = [mlp.register_forward_hook(keep) for mlp in layers]
    try:
        model(torch.tensor([ids]))
    finally:
        for handle in handles:
            handle.remove()
    chosen, gates, norms = (np.stack(parts) for parts in zip(*seen, strict=True))
    return chosen, gates, norms


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("mixtral_window_odd", "torch"),
        ("qwen2_moe", "torch"),
        pytest.param("qwen2_moe", "wgpu", marks=pytest.mark.slow),
        pytest.param("qwen3_moe", "torch", marks=pytest.mark.slow),
        ("qwen3_moe", "wgpu"),
    ],
)
def test_routing_and_scores_equal_those_of_transformers(name: str, backend: str, load: Any) -> None:
    """qwen2_moe: a layer without experts between two with some, and gates that are not normalised;
    qwen3_moe: experts in every second layer."""
    engine, ids = load(random_models.folder(name), backend), list(WINDOWS[0].ids)
    chosen, gates, norms = observed(name, ids)
    answer = engine.inspect(Routing(ids)).result()
    got = {part: answer[part].swapaxes(0, 1) for part in ("chosen", "gates", "norms")}
    assert np.array_equal(got["chosen"], chosen)
    assert np.abs(got["gates"] - gates).max() <= 1e-5
    assert np.abs(got["norms"] - norms).max() <= 1e-5 * norms.max()
    assert answer.info["layers"] == list(engine.config.expert_layers)
    some = engine.inspect(Routing(ids, first=33)).result()
    assert np.array_equal(some["chosen"], answer["chosen"][33:])

    scores = expert_scores(engine, engine.config, WINDOWS[:1])
    for place, layer in enumerate(engine.config.expert_layers):
        assert scores.layers[place] == layer
        for expert in range(answer.info["n_experts"]):
            of_expert = chosen[place] == expert
            want = (gates[place] * norms[place])[of_expert]
            assert scores.counts[place, expert] == of_expert.sum()
            assert scores.means[place, expert] == pytest.approx(
                want.mean() if len(want) else 0.0, rel=1e-4
            )


def test_scores_of_spans_add_up(load: Any) -> None:
    engine, told = load(random_models.folder("olmoe")), []
    whole = expert_scores(engine, engine.config, WINDOWS, told.append)
    parts = [expert_scores(engine, engine.config, [window]) for window in WINDOWS]
    assert np.allclose(whole.sums, parts[0].sums + parts[1].sums, rtol=1e-12, atol=0)
    assert np.array_equal(whole.counts, parts[0].counts + parts[1].counts)
    assert (whole.counts.sum(axis=1) == 2 * N_TOKENS * 3).all()
    assert told == [N_TOKENS, 2 * N_TOKENS]


def test_the_lowest_scores_are_dropped_and_of_equal_ones_the_later() -> None:
    sums = np.array([[3.0, 8.0, 0.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    scores = ExpertScores((2, 7), sums, np.array([[1, 4, 0, 1, 0], [1] * 5]))
    assert scores.means[0].tolist() == [3.0, 2.0, 0.0, 2.0, 0.0]
    assert scores.kept(1) == {2: (0, 1, 2, 3), 7: (0, 1, 2, 3)}
    assert scores.kept(3) == {2: (0, 1), 7: (0, 1)}
    assert scores.kept(4) == {2: (0,), 7: (0,)}


def test_impossible_shares_are_refused() -> None:
    config = ModelConfig.from_folder(random_models.folder("olmoe"))  # 12 experts, 3 for a token
    assert [n_dropped(config, share) for share in (1 / 12, 0.25, 0.26, 0.75)] == [1, 3, 3, 9]
    for share, message in (
        (0.08, r"a share of 0\.08 of 12 experts is less than one; use 0\.0833 or more"),
        (0.84, r"leave 2 of 12 experts, but each token uses 3; use 0\.75 or less"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            n_dropped(config, share)
    all_used = ModelConfig.from_folder(random_models.folder("olmoe_normalised_bias"))
    with pytest.raises(InvalidRequest, match="each token uses 4; nothing can be pruned"):
        n_dropped(all_used, 0.25)
    with pytest.raises(InvalidRequest, match="qwen3 models have no experts to prune"):
        n_dropped(ModelConfig.from_folder(random_models.folder("qwen3")), 0.25)


def test_a_model_without_experts_is_refused(load: Any) -> None:
    with pytest.raises(InvalidRequest, match="has no experts"):
        load(random_models.folder("qwen3")).inspect(Routing([1, 2])).result()


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("mixtral", "torch"),
        ("qwen2_moe", "torch"),
        ("qwen3_moe", "torch"),
        ("olmoe", "torch"),
        pytest.param("olmoe", "wgpu", marks=pytest.mark.slow),
    ],
)
def test_removing_a_dead_expert_changes_nothing(
    name: str, backend: str, tmp_path: Path, load: Any
) -> None:
    """Also if gates are shares of all experts, since its share was 0."""
    whole, without, less = (tmp_path / part for part in ("whole", "without", "less"))
    dead = planted(name, whole)
    engine = load(whole, backend)
    assert engine.config.experts is not None
    scores = expert_scores(engine, engine.config, WINDOWS)
    alive = {
        i: tuple(e for e in range(engine.config.experts.n_experts) if e != dead[i]) for i in dead
    }
    for counts, means, expert in zip(scores.counts, scores.means, dead.values(), strict=True):
        assert counts[expert] == means[expert] == means.min() == 0
        assert (counts > 0).sum() > len(counts) // 2
    ids = list(WINDOWS[0].ids)
    write_pruned(whole, without, alive)
    smaller = load(without, backend)
    want, got = engine.logits(ids), smaller.logits(ids)
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()
    assert text_perplexity(smaller, WINDOWS) == pytest.approx(
        text_perplexity(engine, WINDOWS), rel=1e-6
    )

    most = scores.means[0].argmax()
    others = {
        i: tuple(e for e in range(engine.config.experts.n_experts) if e != most) for i in dead
    }
    write_pruned(whole, less, others)
    assert np.abs(load(less, backend).logits(ids) - want).max() > 1e-2 * np.abs(want).max()
