"""Adapters act in the browser as they do in the server's engine, at every strength, and their
sliders move them while a text is written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from playwright.sync_api import expect

from e2e.local.conftest import paced_server
from e2e.local.exports import TALE, exported
from e2e.local.local_engine import LocalEnginePage, ids_of, request, tokens_of
from e2e.local.place_dialog import PlaceDialog
from e2e.local.test_architectures import LOGITS, write_manifest
from e2e.local.test_inspection import check_same
from e2e.local.test_interventions import ATTENUATED, server_ids
from e2e.local.test_moves import engine_written, written
from e2e.panels.test_loras import slider
from e2e.playground import Playground
from e2e.replay import playback
from e2e.site import Site
from gpu import Engine, ScheduledUpdate
from gpu.export.exporter import export_model
from gpu.inspection.requests import AttentionFrom, LogitLens, Losses, Question
from gpu.interventions.messages import Interventions, InterventionSpan, LoraStrength
from gpu.load_options import LoadOptions
from tests.gpu.lora import random_loras
from tests.gpu.models import random_models
from tests.gpu.models.logit_checks import check_logits

BOUND = 2e-4
"""Difference of a logit between two drivers."""
PROMPT = TALE.texts[0].prompt_ids
OTHER = TALE.texts[1].prompt_ids
N = 10
OFF = Interventions()


def at(**strengths: float) -> Interventions:
    return Interventions(loras=tuple(LoraStrength(*one) for one in strengths.items()))


def greedy(ids: list[int], **asked: Any) -> dict[str, Any]:
    return request(ids, **{"temperature": 0, "max_tokens": N, **asked})


@pytest.fixture(scope="module")
def loras() -> dict[str, Path]:
    """Folders of two adapters of the bundled model: one of all modules and one of some."""
    return {
        "tone": random_loras.of_model(TALE.folder, "all"),
        "rhyme": random_loras.of_model(TALE.folder, "attention", seed=1),
    }


@pytest.fixture(scope="module")
def server(loras: dict[str, Path]) -> Iterator[Engine]:
    engine = Engine.load(TALE.folder, LoadOptions(dtype="f32", slots=2, loras=loras))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory, loras: dict[str, Path]) -> Path:
    return exported(TALE, tmp_path_factory.mktemp("adapted"), "f32", loras=loras)


NOTE_USES = """() => {
  const { buffers, queue: { pipelines } } = engine;
  const { prepare } = pipelines;
  const { write } = buffers;
  pipelines.prepare = (plan) => {
    window.used.push(plan.loras ? "adapters" : "none");
    return prepare.call(pipelines, plan);
  };
  buffers.write = (name, ...rest) => {
    if (name === "lora.strengths") window.used.push(name);
    write.call(buffers, name, ...rest);
  };
}"""
"""Notes in `used` which plans run, and writes of strengths."""


@pytest.fixture
def tab(local: LocalEnginePage, export: Path) -> LocalEnginePage:
    """The page with that model."""
    if local.loaded != export:
        local.load(export)
        local.page.evaluate(NOTE_USES)
    local.page.evaluate("window.used = []")
    return local


def logits_after(tab: LocalEnginePage, ids: list[int], wanted: Interventions) -> Any:
    tab.run(greedy(ids, interventions=wanted, max_tokens=1))
    return np.array(tab.page.evaluate(LOGITS), np.float32)


def test_ids_and_logits_are_the_servers_at_every_strength(
    tab: LocalEnginePage, server: Engine
) -> None:
    """Keys and values of one strength are not used for another. An adapter that is off has no plan
    and no write."""
    for other in (5, 6):
        tab.run(greedy([other], max_tokens=1))  # no slot has the prompt now, or a strength
    found = []
    for strength in (0.0, 0.5, 1.0):
        wanted = at(tone=strength)
        tab.page.evaluate("window.used = []")
        [run] = tab.run(greedy(PROMPT, interventions=wanted))
        assert set(tab.page.evaluate("used")) == (
            {"adapters", "lora.strengths"} if strength else {"none"}
        )
        assert ids_of(run) == server_ids(server, PROMPT, wanted, n=N)
        assert run[-1]["timings"]["cache_n"] == 0
        got = logits_after(tab, PROMPT, wanted)
        want = server.logits(PROMPT, (InterventionSpan(0, wanted),))[-1]
        np.testing.assert_allclose(got, want, BOUND, BOUND)
        found.append(got)
    assert all(np.abs(a - b).max() > 0.1 for a, b in itertools.pairwise(found))


def test_a_strength_moved_in_midstream_acts_from_the_acknowledged_token(
    tab: LocalEnginePage, server: Engine
) -> None:
    """In captured steps; a run beside it is left alone."""
    wanted = at(tone=1.0)
    reach = msgspec.to_builtins(wanted)
    live = {"after": 3, "params": {}, "reach": reach}
    run, other = tab.run(greedy(PROMPT, live=live, capture=True), greedy(OTHER))
    [told] = [event for event in run if event["type"] == "updated"]
    assert told["index"] >= 4
    assert told["reach"] == json.loads(msgspec.json.encode(wanted))
    updates = (ScheduledUpdate(told["index"], interventions=wanted),)
    assert ids_of(run) == server_ids(server, PROMPT, updates=updates, n=N)
    assert ids_of(run) != TALE.texts[0].greedy_ids[:N]
    assert ids_of(other) == TALE.texts[1].greedy_ids[:N]
    assert all(token["stats"] is not None for token in tokens_of(run))


PREFIX = """async (pairs) => {
  const { CachedText } = await import("/static/js/local/gpu/cached-text.js");
  const { ActiveInterventions } = await import("/static/js/local/interventions/active.js");
  const text = (loras) =>
    new CachedText([1, 2, 3], [{ first: 1, active: new ActiveInterventions({ loras }) }]);
  return pairs.map((pair) => {
    const [one, other] = pair.map(text);
    return one.commonPrefix(other);
  });
}"""


@pytest.mark.quick
def test_keys_of_another_strength_are_no_prefix(local: LocalEnginePage) -> None:
    """In whatever order adapters are named, and those that are off left out."""
    half, whole = ({"name": "tone", "strength": each} for each in (0.5, 1))
    rhyme, off = ({"name": "rhyme", "strength": each} for each in (0.5, 0))
    pairs = [
        ([half], [half]), ([half], [whole]), ([half], []), ([half], [rhyme]),
        ([half, rhyme], [rhyme, half]), ([half, off], [half]), ([off], []),
    ]  # fmt: skip
    assert local.page.evaluate(PREFIX, pairs) == [3, 1, 1, 1, 3, 3, 3]


MIXED = at(tone=-0.5, rhyme=0.8)
BOTH = Interventions(mlp=ATTENUATED.mlp, loras=MIXED.loras)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [MIXED, BOTH], ids=["two", "with_interventions"])
@pytest.mark.parametrize("long", [False, True])
def test_adapters_add_up(
    tab: LocalEnginePage, server: Engine, wanted: Interventions, long: bool
) -> None:
    """Each other and with changes of the model's own parts; in chunks of several sizes."""
    ids = (PROMPT + OTHER) * 4 if long else PROMPT
    [run] = tab.run(greedy(ids, interventions=wanted))
    assert ids_of(run) == server_ids(server, ids, wanted, n=N)
    want = server.logits(ids, (InterventionSpan(0, wanted),))[-1]
    np.testing.assert_allclose(logits_after(tab, ids, wanted), want, BOUND, BOUND)


IDS = PROMPT + TALE.texts[0].greedy_ids[:4]
SPANS = (InterventionSpan(0, at(tone=1.0)), InterventionSpan(len(PROMPT), MIXED))
LAST = len(IDS) - 1
QUESTIONS: list[Question] = [
    Losses(IDS, first=2, spans=SPANS),
    AttentionFrom(IDS, LAST, spans=SPANS),
    LogitLens(IDS, LAST, chosen=IDS[3], spans=SPANS),
]


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: str(each.__class__.__name__))
def test_answers_under_adapters_are_those_of_the_server(
    tab: LocalEnginePage, server: Engine, question: Question
) -> None:
    check_same(tab, server, question)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", *random_models.ONE_OF_EACH_MOE])
@pytest.mark.parametrize("dtype", ["f32", "q8", "q4"])
def test_experts_and_storage_types(
    local: LocalEnginePage, tmp_path: Path, name: str, dtype: str
) -> None:
    """Keys and values are in f32: rounded to f16 they would differ between two drivers."""
    name = random_loras.LLAMA if name == "llama" else name
    folder, ids = random_loras.base(name), random_models.ids(40)
    loras = {"tone": random_loras.folder(name, "all")}
    options = LoadOptions(dtype=dtype, kv_dtype="f32", slots=2, loras=loras)
    write_manifest(tmp_path, export_model(folder, tmp_path, options))
    local.load(tmp_path)
    engine = Engine.load(folder, options)
    try:
        for wanted in (OFF, at(tone=0.7)):
            want = engine.logits(ids, (InterventionSpan(0, wanted),))[-1]
            got = logits_after(local, ids, wanted)
            check_logits(f"browser.logits.{dtype}", got[None], want[None], name)
    finally:
        engine.close()


# ---- the page --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapted_server(loras: dict[str, Path]) -> Iterator[Site]:
    """A server that runs the bundled model in f32 with an adapter."""
    yield from paced_server({"tone": loras["tone"]})


@pytest.mark.slow  # the server writes an export of its own
def test_the_sliders_act_on_the_model_in_the_browser(
    adapted_server: Site, open_with_gpu: Callable[[str], Playground], tmp_path: Path
) -> None:
    """While a text is written, and the saved replay has what they did."""
    play = open_with_gpu(adapted_server.url.replace("127.0.0.1", "localhost"))
    page, place = play.page, PlaceDialog(play)
    dialog = place.open()
    expect(dialog.locator("#place-fit")).to_contain_text("The adapter tone comes along.")
    page.keyboard.press("Escape")
    place.to_browser()
    play.set(temperature=0, max_tokens=60, seed=7)
    play.ask("Tell me a story about a fox")
    play.wait_tokens(3)
    slider(page, "tone").fill("0.5")
    expect(page.locator(".mark-change")).to_have_text("adapter tone × 0.5")
    play.wait_done()
    saved = playback.read(play.playback.save(tmp_path / "adapted.json"))
    [run] = playback.segments(saved)
    [told] = playback.events(run, "updated")
    assert told["index"] >= 3
    assert told["reach"] == json.loads(msgspec.json.encode(at(tone=0.5)))
    updates = (ScheduledUpdate(told["index"], interventions=at(tone=0.5)),)
    assert written(run) == engine_written(adapted_server, run, updates)
    assert written(run) != engine_written(adapted_server, run)
