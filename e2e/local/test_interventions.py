"""Interventions act in the browser as they do in the server's engine: tables, runs and answers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Error

from app.http.page_data import limits_data
from e2e.local.exports import SMALL
from e2e.local.local_engine import LocalEnginePage, ids_of, request, tokens_of
from e2e.local.test_architectures import LOGITS
from e2e.local.test_inspection import check_same
from gpu import Engine, Request, SamplingParams, ScheduledUpdate
from gpu.inspection.requests import (
    AttentionFrom,
    AttentionTo,
    LogitLens,
    Losses,
    Question,
    Waterfall,
)
from gpu.interventions.messages import (
    HeadFactor,
    Interventions,
    InterventionSpan,
    LayerFactor,
    Patch,
    Steer,
)
from tests.gpu.export import intervention_tables

BOUND = 2e-4
"""Difference of a logit between two drivers."""
PROMPT = SMALL.texts[0].prompt_ids
N = 12
OTHER = "The dog was happy"
AWAY = "She was sad"
LATE = "One day"

SCALED = Interventions(
    heads=(HeadFactor(0, 1, 0.0), HeadFactor(1, 0, -1.5)),
    attention=(LayerFactor(1, 0.5),),
    mlp=(LayerFactor(2, 0.0),),
)
ATTENUATED = Interventions(mlp=(LayerFactor(0, 0.5),))
STEERED = Interventions(steer=(Steer(1, OTHER, 2.0, AWAY), Steer(1, LATE, 0.5), Steer(2, AWAY, 1)))
PATCHED = Interventions(patch=(Patch(1, 2, OTHER, 1), Patch(2, 2, AWAY, 2), Patch(1, 3, OTHER, 2)))
ALL = Interventions(SCALED.heads, SCALED.attention, SCALED.mlp, STEERED.steer, PATCHED.patch)
OFF = Interventions()


@pytest.fixture
def tab(small: LocalEnginePage, small_server: Engine) -> LocalEnginePage:
    """The page with the small model, which knows the ids of the texts."""
    encode = small_server.tokenizer.encode
    small.set_texts({text: encode(text) for text in (OTHER, AWAY, LATE)})
    return small


def server_ids(
    engine: Engine,
    ids: list[int],
    interventions: Interventions = OFF,
    spans: tuple[InterventionSpan, ...] = (),
    updates: tuple[ScheduledUpdate, ...] = (),
    n: int = N,
) -> list[int]:
    """Return the ids that the server's engine writes greedily."""
    params = SamplingParams(temperature=0, seed=5, ignore_eos=True, max_tokens=n)
    asked = Request(ids, params, interventions=interventions, spans=spans, updates=updates)
    return [token.id for token in engine.submit(asked)]


def greedy(ids: list[int], **asked: Any) -> dict[str, Any]:
    return request(ids, **{"temperature": 0, "max_tokens": N, **asked})


# ---- tables ----------------------------------------------------------------------------------

TABLES = """async (given) => {
  const { model, limits, requestLimits, tensors, cases, states } = JSON.parse(given);
  const { InterventionEncoder } = await import("/static/js/local/interventions/encode.js");
  const { InterventionSchedule } = await import("/static/js/local/interventions/active.js");
  const { resolve } = await import("/static/js/local/interventions/resolved.js");
  const { InterventionTables } = await import("/static/js/local/gpu/intervention-tables.js");
  const bytes = Object.fromEntries(
    Object.entries(tensors).map(([name, { initial }]) => [
      name, Uint8Array.from(atob(initial), (c) => c.charCodeAt(0)),
    ]),
  );
  const write = (name, row, at) =>
    bytes[name].set(new Uint8Array(row.buffer, row.byteOffset, row.byteLength), at);
  const tables = new InterventionTables({ plan: { tensors }, write }, { model, limits });
  const encoder = new InterventionEncoder({
    nLayers: model.n_layers, nHeads: model.n_heads, context: 64,
    tokenize: (text) => [...text].map((char) => char.charCodeAt(0)),
    loras: model.loras.map(({ name }) => name),
  }, requestLimits.interventions);
  const lastState = (ids) => states[ids].map((state) => Float32Array.from(state));
  const base64 = (data) => btoa(data.reduce((text, byte) => text + String.fromCharCode(byte), ""));
  return cases.map(({ slot, first, steered, position, wanted }) => {
    const schedule = new InterventionSchedule();
    resolve(encoder.encode(wanted), lastState).addTo(schedule, first, steered);
    const active = schedule.at(position);
    tables.set(slot, active);
    return {
      next: schedule.nextChange(position, 99),
      acts: [active.actsOnBase, active.actsOnLoras],
      tables: Object.fromEntries(Object.entries(bytes).map(([name, data]) => [name, base64(data)])),
    };
  });
}"""


@pytest.mark.quick
def test_the_tables_have_the_servers_bytes(local: LocalEnginePage) -> None:
    """After each of many random settings on random slots, from the message to the device."""
    given, want = intervention_tables.reference(seed=3)
    given["requestLimits"] = limits_data()
    found = local.page.evaluate(TABLES, json.dumps(given))
    assert len(want) >= 40
    for case, mine, theirs in zip(given["cases"], found, want, strict=True):
        assert mine == theirs, case


WAITING = """async ([wanted, requestLimits]) => {
  const { InterventionEncoder } = await import("/static/js/local/interventions/encode.js");
  const { resolve, RunInterventions } = await import("/static/js/local/interventions/resolved.js");
  const encoder = new InterventionEncoder(
    { nLayers: 3, nHeads: 2, context: 64 }, requestLimits.interventions,
  );
  const [first, update] = wanted.map((each) => encoder.encode(each));
  const run = new RunInterventions(first, 5);
  run.changeWaiting(update);
  const isReady = run.ready;
  run.setResolved(new Map(run.encoded.map((each) => [each, resolve(each)])));
  const digests = [0, 3, 4, 5].map((position) => run.schedule.at(position).digest);
  return { isReady, digests, requested: run.requested };
}"""


@pytest.mark.quick
def test_a_change_of_a_run_that_waits_acts_from_its_first_token(local: LocalEnginePage) -> None:
    """The prompt but for its last token is computed under the setting that it was sent with."""
    before, update = (msgspec.to_builtins(each) for each in (ATTENUATED, SCALED))
    found = local.page.evaluate(WAITING, [[before, update], limits_data()])
    assert not found["isReady"]
    first, third, fourth, fifth = found["digests"]
    assert first == third != fourth == fifth
    assert first
    assert found["requested"]["heads"] == list(update["heads"])


# ---- runs ------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(ALL, id="all"),
        pytest.param(SCALED, id="scaled", marks=pytest.mark.slow),
        pytest.param(STEERED, id="steered", marks=pytest.mark.slow),
        pytest.param(PATCHED, id="patched", marks=pytest.mark.slow),
    ],
)
def test_a_run_writes_the_servers_ids_and_logits(
    tab: LocalEnginePage, small_server: Engine, wanted: Interventions
) -> None:
    """The same prompt without interventions is no prefix of it, nor it of that."""
    tab.run(greedy([5], max_tokens=1), greedy([6], max_tokens=1))  # no slot has the prompt now
    [run] = tab.run(greedy(PROMPT, interventions=wanted))
    [again] = tab.run(greedy(PROMPT, interventions=wanted, max_tokens=1))
    got = np.array(tab.page.evaluate(LOGITS), np.float32)
    assert again[-1]["timings"]["cache_n"] == len(PROMPT) - 1
    # It may take the slot of the others, for the tokens before the first that is patched.
    [plain] = tab.run(greedy(PROMPT))
    [after] = tab.run(greedy(PROMPT, interventions=wanted))
    want = server_ids(small_server, PROMPT, wanted)
    assert ids_of(run) == ids_of(after) == want
    assert ids_of(plain) == SMALL.texts[0].greedy_ids[:N]
    assert want != ids_of(plain)
    bare = msgspec.structs.replace(wanted, steer=())
    spans = (InterventionSpan(0, bare), InterventionSpan(len(PROMPT) - 1, wanted))
    np.testing.assert_allclose(got, small_server.logits(PROMPT, spans)[-1], BOUND, BOUND)


def test_a_change_acts_from_the_token_it_is_acknowledged_for(
    tab: LocalEnginePage, small_server: Engine
) -> None:
    """One that has to compute texts first, and one that does not; also the same change again, known
    beforehand, and statistics of captured steps."""
    wanted, n = Interventions(SCALED.heads, steer=STEERED.steer), 3 * N
    tab.run(greedy(PROMPT, interventions=wanted, max_tokens=1))  # compiles the kernels
    tab.page.evaluate("engine.activations.kept.clear()")
    for now, capture in ((wanted, False), (SCALED, True)):
        reach = msgspec.to_builtins(now)
        live = {"after": 3, "params": {}, "reach": reach}
        [run] = tab.run(greedy(PROMPT, live=live, capture=capture, max_tokens=n))
        [told] = [event for event in run if event["type"] == "updated"]
        assert told["index"] >= 4
        assert told["reach"] == json.loads(msgspec.json.encode(now))
        updates = (ScheduledUpdate(told["index"], interventions=now),)
        assert ids_of(run) == server_ids(small_server, PROMPT, updates=updates, n=n)
        assert ids_of(run) != SMALL.texts[0].greedy_ids[:n]
        known = [{"index": told["index"], "params": {}, "reach": reach}]
        [again] = tab.run(greedy(PROMPT, updates=known, max_tokens=n))
        assert ids_of(again) == ids_of(run)
        assert all((token["stats"] is not None) == capture for token in tokens_of(run))


def test_interventions_that_end_leave_nothing_behind(
    tab: LocalEnginePage, small_server: Engine
) -> None:
    """A text computed partly under some goes on as the server's does, and a run beside it is not
    touched."""
    ids = PROMPT + SMALL.texts[0].greedy_ids[:8]
    spans = (InterventionSpan(0, SCALED), InterventionSpan(len(PROMPT), OFF))
    run, other = tab.run(greedy(ids, spans=spans, max_tokens=8), greedy(SMALL.texts[1].prompt_ids))
    assert ids_of(run) == server_ids(small_server, ids, spans=spans, n=8)
    assert ids_of(other) == SMALL.texts[1].greedy_ids[:N]


@pytest.mark.quick
def test_without_interventions_nothing_is_written_for_them(tab: LocalEnginePage) -> None:
    """No plan with interventions, no table, and no buffer for a token."""
    found = tab.page.evaluate(
        """async (asked) => {
          const { queue, buffers, device } = engine;
          const seen = { plans: [], writes: [], buffers: 0 };
          const { find } = queue.lookup;
          const { write } = buffers;
          const { createBuffer } = device;
          queue.lookup.find = (step) => {
            const plan = find.call(queue.lookup, step);
            seen.plans.push(plan.interventions ?? false);
            return plan;
          };
          buffers.write = (name, ...rest) => {
            seen.writes.push(name);
            write.call(buffers, name, ...rest);
          };
          device.createBuffer = (...given) => {
            seen.buffers += 1;
            return createBuffer.apply(device, given);
          };
          const params = { ...asked.params, seed: 5n };
          await new Promise((resolve) => {
            const onEvent = ({ type }) => type === "done" && resolve();
            engine.submit({ ...asked, params, onEvent });
          });
          delete queue.lookup.find;
          delete buffers.write;
          delete device.createBuffer;
          return seen;
        }""",
        greedy(PROMPT),
    )
    assert set(found["plans"]) == {False}
    assert not [name for name in found["writes"] if name.startswith("interventions.")]
    assert found["buffers"] == 0


# ---- instruments -----------------------------------------------------------------------------

IDS = PROMPT + SMALL.texts[0].greedy_ids[:20]
AT = len(IDS) - 4
SPANS = (
    InterventionSpan(0, PATCHED),
    InterventionSpan(5, SCALED),
    InterventionSpan(AT - 3, ALL),
    InterventionSpan(AT - 1, STEERED),
)
DRAW = SamplingParams(temperature=0.8, top_p=0.9, seed=7)
QUESTIONS: list[Question] = [
    AttentionFrom(IDS, AT, spans=SPANS),
    AttentionTo(IDS, 1, spans=SPANS),
    LogitLens(IDS, AT, chosen=IDS[AT + 1], spans=SPANS),
    Waterfall(IDS, AT, DRAW, index=5, spans=SPANS),
    Losses(IDS, first=2, spans=SPANS),
]


@pytest.mark.quick
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: str(each.__class__.__name__))
def test_answers_under_interventions_are_those_of_the_server(
    tab: LocalEnginePage, small_server: Engine, question: Question
) -> None:
    check_same(tab, small_server, question)


@pytest.mark.quick
def test_the_same_question_without_interventions_has_another_answer(
    tab: LocalEnginePage,
) -> None:
    question = AttentionFrom(IDS, AT, spans=SPANS)
    under, without = (
        tab.ask(each)[1]["weights"]
        for each in (question, msgspec.structs.replace(question, spans=()))
    )
    assert not np.allclose(under, without, atol=0.01)


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.quick
def test_a_new_patch_is_refused_while_the_run_writes(tab: LocalEnginePage) -> None:
    live = {"after": 2, "params": {}, "reach": msgspec.to_builtins(PATCHED)}
    with pytest.raises(Error, match="the token at position 2 is computed already"):
        tab.run(greedy(PROMPT, live=live))


@pytest.mark.quick
def test_vectors_that_are_not_finite_end_the_run(tab: LocalEnginePage) -> None:
    """The state of a text that overflows."""
    tab.page.evaluate(
        """(ids) => {
          const { activations } = engine;
          const width = engine.plan.model.hidden_size;
          const states = Array.from({ length: 9 }, () => new Float32Array(width).fill(Infinity));
          activations.isWarm = () => true;
          activations.kept.set(String(ids), states);
        }""",
        [1, 2, 3],
    )
    tab.set_texts({"huge": [1, 2, 3]})
    wanted = Interventions(steer=(Steer(0, "huge", 1.0),))
    [run] = tab.run(greedy(PROMPT, interventions=wanted))
    assert run[-1]["reason"] == "error"
    assert "the vector that steers layer 0 has shape" in run[-1]["message"]
