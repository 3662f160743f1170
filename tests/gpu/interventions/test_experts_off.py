"""Experts that are switched off: both runners equal hooks on transformers, a pruned checkpoint
gives the same, and the divergence that the engine reports is that of the hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu import Engine, write_pruned
from gpu.errors import InvalidRequest
from gpu.inspection.requests import InterventionEffect, Routing
from gpu.interventions.active import ActiveInterventions, InterventionSchedule
from gpu.interventions.messages import ExpertOff, Interventions, InterventionSpan
from gpu.load_options import LoadOptions
from gpu.reference.softmax import log_softmax
from gpu.step import Floats
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.interventions.test_active import always, intervened_logits
from tests.gpu.models import random_models
from tests.gpu.ops.rig import compare

pytestmark = pytest.mark.parity

NAMES = ("mixtral_window_odd", "qwen2_moe")
"""Gates that are a softmax over the chosen experts; gates of all experts, a shared expert, and a
dense layer."""
IDS = random_models.ids(30)
FROM = 11
"""Position from which experts are off."""


def some_off(name: str, n_off: int = 2) -> list[tuple[int, int]]:
    """Return the experts of each layer that transformers chooses most often."""
    chosen: list[tuple[int, int]] = []
    with hooked(name, [], 0) as routed:
        random_models.reference(name).logits(IDS)
    for layer, experts in routed.items():
        counts = np.bincount(experts.ravel())
        chosen += [(layer, int(expert)) for expert in np.argsort(-counts, kind="stable")[:n_off]]
    return chosen


@contextmanager
def hooked(name: str, off: list[tuple[int, int]], first: int) -> Iterator[dict[int, Any]]:
    """Let the routers of transformers choose without the experts `off` from position `first` on.
    Yields the experts (n, experts_per_token) that they choose, by layer."""
    routed: dict[int, Any] = {}
    handles = []
    for i, layer in enumerate(random_models.reference(name).model.model.layers):

        def choose(module: Any, inputs: Any, output: Any, i: int = i) -> tuple[Any, ...]:
            logits = torch.nn.functional.linear(inputs[0].flatten(0, -2), module.weight)
            for at, expert in off:
                if at == i:
                    logits[first:, expert] = -torch.inf
            gates, experts = logits.softmax(-1).topk(module.top_k, -1)
            if getattr(module, "norm_topk_prob", True):
                gates = gates / gates.sum(-1, keepdim=True)
            routed[i] = experts.numpy()
            return (output[0], gates, experts)

        if hasattr(layer.mlp, "gate"):
            handles.append(layer.mlp.gate.register_forward_hook(choose))
    try:
        with torch.no_grad():
            yield routed
    finally:
        for handle in handles:
            handle.remove()


def hooked_logits(name: str, off: list[tuple[int, int]], first: int = 0) -> Floats:
    with hooked(name, off, first):
        return random_models.reference(name).logits(IDS)


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    opened: list[Engine] = []

    def load(folder: Path, backend: str = "wgpu") -> Engine:
        options = LoadOptions(dtype="f32", kv_dtype="f32", backend=backend, context=64, slots=1)
        opened.append(Engine.load(folder, options))
        return opened[-1]

    yield load
    for each in opened:
        each.close()


@pytest.mark.ci
@pytest.mark.parametrize("slots", [None, 3], ids=["all_on_device", "offloaded"])
@pytest.mark.parametrize("name", NAMES)
def test_experts_off_equal_hooks_on_transformers(
    device: Device, name: str, slots: int | None
) -> None:
    """From a position on, in a prompt that is computed in pieces."""
    off = some_off(name)
    want = hooked_logits(name, off, FROM)
    size = np.abs(want).max()
    plain = hooked_logits(name, [])
    assert np.array_equal(plain[:FROM], want[:FROM])
    assert np.abs(plain - want)[FROM:].max() > 0.01 * size, "it should show"
    runner = driving.load(device, random_models.folder(name), "f32", expert_slots=slots)
    driving.begin(runner, 0, IDS, len(IDS))
    schedule = InterventionSchedule()
    schedule.change(FROM, ActiveInterventions(experts_off=off))
    got = intervened_logits(runner, IDS, schedule=schedule)
    compare(f"experts_off.{slots}", name, got, want, np.array(2e-5 * size), seed=0)


@pytest.mark.ci
@pytest.mark.parametrize("backend", ["wgpu", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_the_divergence_is_that_of_hooks(
    engine: Callable[..., Engine], name: str, backend: str
) -> None:
    opened = engine(random_models.folder(name), backend)
    off = some_off(name)
    spans = (InterventionSpan(FROM, Interventions(experts=tuple(ExpertOff(*e) for e in off))),)
    first = 4
    found = opened.inspect(InterventionEffect(IDS, first, spans=spans)).result()
    logs = [log_softmax(hooked_logits(name, each, FROM)[first:]) for each in ([], off)]
    kl = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1)
    assert kl[FROM - first :].max() > 1e-3
    assert np.abs(found["kl"] - kl).max() <= 1e-5 * kl.max()
    same = [one.argmax() == other.argmax() for one, other in zip(*logs, strict=True)]
    assert found["same_top"].tolist() == same
    rows = np.arange(len(IDS) - first - 1)
    want = np.stack([each[rows, IDS[first + 1 :]] for each in logs])
    assert np.abs(found["logprobs"] - want).max() <= 1e-4
    swapped = opened.inspect(InterventionEffect(IDS, first, base=spans)).result()
    assert np.array_equal(swapped["logprobs"], found["logprobs"][::-1])
    with hooked(name, off, FROM) as routed:
        random_models.reference(name).logits(IDS)
    routes = opened.inspect(Routing(IDS, spans=spans)).result()
    for place, layer in enumerate(routes.info["layers"]):
        assert np.array_equal(routes["chosen"][:, place], routed[layer])


def test_the_divergence_of_one_token_and_bad_questions(engine: Callable[..., Engine]) -> None:
    opened = engine(random_models.folder("mixtral_window_odd"))
    alone = opened.inspect(InterventionEffect(IDS[:1])).result()
    assert (alone["kl"].tolist(), alone["same_top"].tolist()) == ([0], [1])
    assert alone["logprobs"].shape == (2, 0)
    off = Interventions(experts=(ExpertOff(0, 99),))
    for question, param in (
        (InterventionEffect([]), "ids"),
        (InterventionEffect(IDS, len(IDS)), "first"),
        (InterventionEffect(IDS, base=(InterventionSpan(0, off),)), "base.experts"),
        (InterventionEffect(IDS, spans=(InterventionSpan(0, off),)), "reached.experts"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            opened.inspect(question).result()
        assert refusal.value.param == param


def test_experts_off_equal_a_pruned_model(device: Device, tmp_path: Path) -> None:
    name = "qwen2_moe"
    folder, off = random_models.folder(name), some_off(name, 3)
    runner = driving.load(device, folder, "f32")
    n = runner.config.experts.n_experts  # type: ignore[union-attr]
    kept = {
        layer: [expert for expert in range(n) if (layer, expert) not in off]
        for layer in runner.config.expert_layers
    }
    write_pruned(folder, tmp_path / "pruned", kept)
    pruned = driving.load(device, tmp_path / "pruned", "f32")
    for each in (runner, pruned):
        driving.begin(each, 0, IDS, len(IDS))
    active = always(ActiveInterventions(experts_off=off))
    want = intervened_logits(pruned, IDS, schedule=InterventionSchedule())
    got = intervened_logits(runner, IDS, schedule=active)
    assert np.array_equal(got.view("u4"), want.view("u4"))
