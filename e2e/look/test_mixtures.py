"""Experts on mixtures with random weights: routing, offloading and pruning, against transformers,
the engine's events and hooks in torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from e2e.look.panel import LookPanel
from e2e.look.test_experts import field, says
from e2e.playground import Playground
from gpu.reference.divergence import mean_kl
from tests.gpu.analysis.test_reap import observed
from tests.gpu.interventions.test_experts_off import hooked
from tests.gpu.models import random_models
from tests.serving import serving


@contextmanager
def written(page: Page, name: str, n: int, *options: str) -> Iterator[Playground]:
    """A page on which the model of a case has written `n` tokens; Experts is open."""
    with serving("--model", random_models.folder(name), *options) as url:
        play = Playground(page, url=url).open()
        play.set(max_tokens=n, seed=3, temperature="1")
        play.ask("Mia found a lamp")
        play.wait_tokens(n)
        play.wait_done()
        play.look.open("experts")
        yield play


def ids_of(play: Playground) -> list[int]:
    """Return the ids of the prompt and of the text."""
    tokens = [*play.messages.events("accepted")[0]["prompt"], *play.messages.events("token")]
    return [token["id"] for token in tokens]


def rows_of(look: LookPanel) -> list[dict[str, Any]]:
    """Return the rows of the table that the panel saves."""
    told = json.loads(look.save("JSON"))
    return [dict(zip(told["columns"], row, strict=True)) for row in told["rows"]]


def test_a_real_mixture_is_shown_as_transformers_routes_it(page: Page) -> None:
    """Every choice of every row of a run, and the gates of its last; the weights are random."""
    name, n = "qwen3_moe", 12
    config = random_models.reference(name).model.config
    n_experts, per_token = config.num_experts, config.num_experts_per_tok
    options = ("--dtype", "f32", "--kv-dtype", "f32")
    with written(page, name, n, *options) as play:
        found = rows_of(play.look)
    ids = ids_of(play)[:-1]
    chosen, gates = routed(name, ids)
    experts = [row for row in found if row["expert"] is not None]
    assert len(experts) == n_experts * len(chosen)
    for row in experts:
        layer, expert = row["layer"], row["expert"]
        assert row["chosen"] == np.sum(chosen[layer] == expert), (layer, expert)
        at_token = gates[layer][-1][chosen[layer][-1] == expert]
        gate = row["gate at the token"]
        assert gate == (pytest.approx(float(at_token[0]), abs=2e-4) if len(at_token) else None)
    for row in (row for row in found if row["expert"] is None):
        assert row["chosen"] == per_token * len(ids)


def test_offloaded_experts_are_shown_as_the_engine_counted_them(page: Page) -> None:
    """Every layer of every step; the first token has no step of its own."""
    n, slots = 8, 3
    options = ("--dtype", "f32", "--expert-slots", str(slots))
    with written(page, "qwen2_moe", n, *options) as play:
        page.locator(".look-views label", has_text="Offload").click()
        rows = rows_of(play.look)
    steps = [*play.messages.events("prefill"), *play.messages.events("token")[1:]]
    layers = [(i + 1, of) for i, step in enumerate(steps) for of in step["experts"]["layers"]]
    assert [(row["step"], row["layer"]) for row in rows] == [(i, of["layer"]) for i, of in layers]
    for row, (_, of) in zip(rows, layers, strict=True):
        for name, experts in (("found", of["found"]), ("loaded", of["brought"])):
            assert row[f"experts {name}"] == " ".join(map(str, experts))
        assert (row["hits"], row["loaded"]) == (len(of["found"]), len(of["brought"]))
        assert (row["bytes"], row["ms"]) == (of["n_bytes"], of["ms"])
        assert len(row["experts held"].split()) <= slots
    last = steps[-1]["experts"]
    expect(says(page)).to_contain_text(
        f"needed {last['found'] + last['brought']} experts: {last['found']} were on the device"
    )
    found, brought = (sum(step["experts"][name] for step in steps) for name in ("found", "brought"))
    cells = page.locator(".view-offload .ex-figures tr", has_text="loaded").locator("td")
    expect(cells.last).to_have_text(f"{brought} of {found + brought}")


def test_experts_are_scored_and_pruned_on_the_text(page: Page) -> None:
    """The scores and the divergence are those of hooks in torch, and the next request is sent with
    the experts that are off."""
    name, n = "mixtral_window_odd", 6
    with written(page, name, n, "--dtype", "f32") as play:
        page.locator(".look-views label", has_text="Prune").click()
        ids, look = ids_of(play), play.look
        expect(look.source).to_contain_text(f"over {len(ids)} tokens")
        scored = expert_rows(look)
        lowest = page.locator(".ex-controls input[type=range]")
        lowest.fill("1")
        expect(page.locator(".ex-says")).to_contain_text("Compared after each of")
        pruned = expert_rows(look)
        says = page.locator(".view-prune .ex-figures tr", has_text="KL").locator("td").last
        told = float(says.inner_text())
        field(page).focus()
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        play.ask("And then?")
        play.wait_done()
        requests = [message for message in play.messages.sent if message["type"] == "generate"]
        sent = requests[-1]["reach"]["experts"]
    chosen, gates, norms = observed(name, ids)
    off = set()
    for layer in range(len(chosen)):
        scores = []
        for expert in range(chosen.max() + 1):
            own = chosen[layer] == expert
            row = scored[layer, expert]
            score = float((gates[layer] * norms[layer])[own].mean()) if own.any() else 0
            assert (row["tokens"], row["score"]) == (own.sum(), pytest.approx(score, rel=1e-3))
            scores.append(row["score"])
        off.add((layer, max(e for e, score in enumerate(scores) if score == min(scores))))
    assert {place for place, row in pruned.items() if row["off"]} == off
    assert told == pytest.approx(pruning_kl(name, ids, off), rel=0.02)
    assert len({(one["layer"], one["expert"]) for one in sent} ^ off) == 1, "switched by key"


def expert_rows(look: LookPanel) -> dict[tuple[int, int], dict[str, Any]]:
    return {(row["layer"], row["expert"]): row for row in rows_of(look)}


def pruning_kl(name: str, ids: list[int], off: set[tuple[int, int]]) -> float:
    """Return the mean KL divergence that transformers' model has without the experts `off`."""
    logits = []
    for each in ([], sorted(off)):
        with hooked(name, each, 0):
            logits.append(random_models.reference(name).logits(ids))
    return mean_kl(*logits)


def routed(name: str, ids: list[int]) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """By layer, the experts (len(ids), per_token) that transformers gives each token to, and their
    gates."""
    chosen: dict[int, np.ndarray] = {}
    gates: dict[int, np.ndarray] = {}
    model = random_models.reference(name).model
    handles = []
    for i, layer in enumerate(model.model.layers):

        def keep(_module: Any, _inputs: Any, output: Any, i: int = i) -> None:
            gates[i], chosen[i] = (part.detach().numpy() for part in output[1:])

        if hasattr(layer.mlp, "gate"):
            handles.append(layer.mlp.gate.register_forward_hook(keep))
    random_models.reference(name).logits(ids)
    for handle in handles:
        handle.remove()
    return chosen, gates
