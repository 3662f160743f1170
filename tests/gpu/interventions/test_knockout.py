"""Attention knock-out: losses with masked keys equal those of transformers with the same mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.inspection.requests import Knockout, Losses
from gpu.interventions.active import ActiveInterventions
from gpu.interventions.messages import HeadFactor, Interventions, InterventionSpan, LayerFactor
from gpu.load_options import LoadOptions
from gpu.reference.softmax import log_softmax
from gpu.step import Floats
from tests.gpu.models import random_llama, random_models
from tests.gpu.models.random_models import Reference, masked

pytestmark = pytest.mark.parity

LLAMA = "derived_head"
CASES = [
    ("torch", LLAMA),
    ("wgpu", LLAMA),
    pytest.param("wgpu", "mistral", marks=pytest.mark.ci),
    pytest.param("wgpu", "gemma2", marks=pytest.mark.ci),
    ("wgpu", "gemma3"),
    ("wgpu", "gpt2"),
]
"""A model for each way to attend: all keys, windows in every layer, windows in some with capped
scores, more windowed layers than full ones, and no rotary positions."""
IDS = random_models.ids(40)
FIRST = 21
TOLERANCE = 1e-4
"""Largest error of a log-probability, in nats."""

Load = Callable[[str, str], Engine]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    opened: dict[tuple[str, str], Engine] = {}

    def load_(backend: str, name: str) -> Engine:
        if (backend, name) not in opened:
            options = LoadOptions(backend=backend, dtype="f32", kv_dtype="f32", slots=2)
            opened[backend, name] = Engine.load(folder(name), options)
        return opened[backend, name]

    yield load_
    for engine in opened.values():
        engine.close()


def folder(name: str) -> Path:
    return random_llama.folder(name) if name == LLAMA else random_models.folder(name)


def losses(logits: Floats, first: int = FIRST) -> Floats:
    """Return the log-probability of each id after IDS[first]."""
    logs = log_softmax(logits[first:-1])
    own: Floats = np.take_along_axis(logs, np.array(IDS[first + 1 :])[:, None], 1)[:, 0]
    return own


def asked(engine: Engine, knockout: Knockout | None, first: int = FIRST) -> Floats:
    return engine.inspect(Losses(IDS, first=first, knockout=knockout)).result()["logprob"]


def knockouts(config: ModelConfig) -> list[Knockout]:
    """Return one of all layers, one of the last alone, one that hides a row from itself, one of a
    single head, and one of a head in every layer."""
    n_layers, n_heads = config.n_layers, config.n_heads
    return [
        Knockout(3, 9, 0, n_layers),
        Knockout(12, 13, n_layers - 1, n_layers),
        Knockout(FIRST - 1, FIRST + 2, 0, 1),
        Knockout(1, 19, n_layers - 1, n_layers, head=1),
        Knockout(4, 20, 0, n_layers, head=n_heads - 1),
    ]


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_losses_are_those_of_transformers_with_the_same_mask(
    load: Load, backend: str, name: str
) -> None:
    engine, reference = load(backend, name), Reference(folder(name))
    plain = losses(reference.logits(IDS))
    moved = []
    for knockout in knockouts(engine.config):
        keys = slice(knockout.first, knockout.end)
        layers = range(knockout.first_layer, knockout.end_layer)
        with masked(reference.model, FIRST, keys, layers, knockout.head):
            want = losses(reference.logits(IDS))
        np.testing.assert_allclose(asked(engine, knockout), want, atol=TOLERANCE)
        moved.append(float(np.abs(want - plain).max()))
    assert max(moved[:3]) > 100 * TOLERANCE, "the masks should show"
    assert min(moved[3:]) > 10 * TOLERANCE, "and so should those of one head"
    np.testing.assert_allclose(asked(engine, None), plain, atol=TOLERANCE)


@pytest.mark.parametrize("backend", ["wgpu", "torch"])
def test_keys_are_masked_under_the_interventions_of_the_text(load: Load, backend: str) -> None:
    engine, reference = load(backend, LLAMA), Reference(folder(LLAMA))
    interventions = Interventions(
        heads=(HeadFactor(0, 1, 1.0),), attention=(LayerFactor(0, 0.4),), mlp=(LayerFactor(1, 1.5),)
    )
    question = Losses(
        IDS, first=FIRST, spans=(InterventionSpan(0, interventions),), knockout=Knockout(3, 9, 0, 2)
    )
    got = engine.inspect(question).result()["logprob"]
    active = ActiveInterventions(attention={0: 0.4}, mlp={1: 1.5})
    found = []
    for mask in (masked(reference.model, FIRST, slice(3, 9), range(2)), nullcontext()):
        with reference.intervened(active), mask:
            found.append(losses(reference.logits(IDS)))
    np.testing.assert_allclose(got, found[0], atol=TOLERANCE)
    assert np.abs(found[0] - found[1]).max() > 100 * TOLERANCE


@pytest.mark.parametrize("backend", ["wgpu", "torch"])
def test_a_knockout_leaves_no_trace_and_has_the_same_bits_again(load: Load, backend: str) -> None:
    """Nor do the keys of masked rows serve other questions about the same text."""
    engine = load(backend, LLAMA)
    first, other = knockouts(engine.config)[:2]
    plain, without = asked(engine, None), asked(engine, first)
    assert np.array_equal(asked(engine, None), plain)
    assert not np.array_equal(asked(engine, other), without)
    assert np.array_equal(asked(engine, first), without)
    n_layers = engine.config.n_layers
    unseen = asked(engine, Knockout(len(IDS) - 2, len(IDS) - 1, 0, n_layers), first=0)
    before = asked(engine, None, first=0)
    assert np.array_equal(unseen[:-1], before[:-1]), "no row but the last sees the last key"
    assert unseen[-1] != before[-1]
