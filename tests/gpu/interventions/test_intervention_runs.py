"""Runs with interventions, submitted to the engine, equal hooks on transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest
from gpu.events import Done, Event, Prefill, Token
from gpu.inspection.requests import (
    AttentionFrom,
    AttentionTo,
    Beam,
    LogitLens,
    Losses,
    Question,
    Waterfall,
)
from gpu.interventions.active import ActiveInterventions, InterventionSchedule
from gpu.interventions.messages import (
    NO_INTERVENTIONS,
    HeadFactor,
    Interventions,
    InterventionSpan,
    LayerFactor,
    Patch,
    Steer,
)
from gpu.load_options import LoadOptions
from gpu.pace import LEAST_PACE, PaceChange
from gpu.pytorch.runner import TorchRunner
from gpu.request import Request
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.step import Floats
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine.test_scheduled_updates import Written, written_with
from tests.gpu.inspection.test_questions import described
from tests.gpu.interventions.test_active import Hooked
from tests.gpu.models import random_llama
from tests.gpu.ops.rig import compare

pytestmark = pytest.mark.parity

NAME = "derived_head"
BOUND = 5e-5  # of the largest logit, of five times the noise of steered and patched states
PARAMS = SamplingParams(temperature=0.8, seed=2**50 + 1, max_tokens=16, ignore_eos=True)
STEER = Interventions(steer=(Steer(2, "to the sea", 2.0, "away"), Steer(2, "b", -1.0)))
OFF = Interventions(
    heads=(HeadFactor(0, 3, 0.0), HeadFactor(4, 7, -1.5)),
    attention=(LayerFactor(1, 0.25),),
    mlp=(LayerFactor(3, 0.0),),
)
PATCHED = Interventions(
    patch=(Patch(3, 7, "a red fox", 3), Patch(1, 7, "a red fox", 2), Patch(2, 18, "blue", 0))
)
ALL = Interventions(
    heads=OFF.heads,
    attention=OFF.attention,
    mlp=OFF.mlp,
    steer=(*STEER.steer, Steer(1, "low", 1.0)),
    patch=PATCHED.patch,
)
BAD = Interventions(mlp=(LayerFactor(5, 0.0),))
SETTINGS = {"steer": STEER, "off": OFF, "patch": PATCHED, "all": ALL}


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def runner(request: pytest.FixtureRequest, device: Device) -> Iterator[Runner]:
    folder = random_llama.folder(NAME)
    if request.param == "torch":
        on_cpu = TorchRunner.load(folder, LoadOptions(dtype="f32", slots=3))
        yield on_cpu
        on_cpu.close()
    else:
        config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
        yield WgpuRunner(device, config, checkpoint, LoadOptions(dtype="f32", slots=3))


@pytest.fixture
def engine(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(runner, "close", lambda: None)
    opened = Engine(lambda: runner, Tokenizer.load(random_llama.folder(NAME)))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def oracle() -> random_llama.Reference:
    return random_llama.reference(NAME)


def text(seed: int, n: int = 20) -> list[int]:
    """Return ids that no other test uses, so that the prefix cache holds none of them."""
    return [int(id) for id in random_llama.ids(NAME, n, seed=seed)]


def spans_of(n_prompt: int, interventions: Interventions) -> tuple[InterventionSpan, ...]:
    """Return the spans with which a question describes a run that began with interventions."""
    bare = Interventions(
        interventions.heads, interventions.attention, interventions.mlp, (), interventions.patch
    )
    return InterventionSpan(0, bare), InterventionSpan(n_prompt - 1, interventions)


class Theirs:
    """The same interventions by hooks on transformers, their vectors from its own states."""

    def __init__(self, oracle: random_llama.Reference, engine: Engine) -> None:
        self._oracle = oracle
        self._encode = engine.tokenizer.encode
        self._config = engine.config

    def hooked(self, *pieces: InterventionSpan) -> Hooked:
        schedule = InterventionSchedule()
        for piece in pieces:
            self._add_to(schedule, piece.first, piece.interventions)
        return Hooked(self._oracle, schedule, self._config.head_dim)

    def _add_to(self, schedule: InterventionSchedule, first: int, told: Interventions) -> None:
        steer: dict[int, Any] = {}
        for s in told.steer:
            vector = self._state(s.toward, -1, s.layer)
            if s.away:
                vector = vector - self._state(s.away, -1, s.layer)
            steer[s.layer] = steer.get(s.layer, 0) + np.float32(s.strength) * vector
        factors = (
            {(h.layer, h.head): h.factor for h in told.heads},
            {f.layer: f.factor for f in told.attention},
            {f.layer: f.factor for f in told.mlp},
        )
        schedule.change(first, ActiveInterventions(*factors, steer))
        for position in sorted({p.position for p in told.patch if p.position >= first}):
            patch = {
                p.layer: self._state(p.prompt, p.token, p.layer)
                for p in told.patch
                if p.position == position
            }
            schedule.change(position, ActiveInterventions(*factors, steer, patch))
            schedule.change(position + 1, ActiveInterventions(*factors, steer))

    @torch.no_grad()
    def _state(self, text: str, token: int, layer: int) -> Floats:
        ids = torch.tensor([self._encode(text)])
        states = self._oracle.model(ids, output_hidden_states=True).hidden_states
        state: Floats = states[layer][0, token].numpy()
        return state


@pytest.fixture
def theirs(oracle: random_llama.Reference, engine: Engine) -> Theirs:
    return Theirs(oracle, engine)


def logprobs(logits: Floats, ids: list[int]) -> Floats:
    """Return the log-probability of each of ids[1:] after those before it."""
    found: Floats = torch.from_numpy(logits).log_softmax(-1).numpy()
    return found[np.arange(len(ids) - 1), ids[1:]]


def submit(
    engine: Engine, ids: list[int], params: SamplingParams = PARAMS, **options: Any
) -> Written:
    written = Written()
    engine.submit(Request(ids, params, **options), written)
    return written.wait()


def tokens(events: list[Event]) -> list[Token]:
    return [event for event in events if isinstance(event, Token)]


def n_found(written: Written) -> int:
    """Return the number of prompt tokens that were found in the cache."""
    done = written.events[-1]
    assert isinstance(done, Done)
    return done.timings.cache_n


# ---- against hooks ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_logits_under_interventions_equal_hooks(
    engine: Engine, theirs: Theirs, oracle: random_llama.Reference, name: str
) -> None:
    ids = text(1, 30)
    pieces = spans_of(19, SETTINGS[name])
    want = theirs.hooked(*pieces).logits(ids)
    largest = np.abs(want).max()
    assert np.abs(want - oracle.logits(ids)).max() > 0.05 * largest, "they should show"
    got = engine.logits(ids, pieces)
    compare(
        f"engine.reached.{engine.info.device.backend}",
        name,
        got,
        want,
        np.array(BOUND * largest),
        0,
    )
    assert np.abs(engine.logits(ids) - oracle.logits(ids)).max() <= BOUND * largest


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_that_begins_with_interventions_equals_hooks(
    engine: Engine, theirs: Theirs, name: str
) -> None:
    prompt = text(2)
    written = submit(engine, prompt, interventions=SETTINGS[name])
    ids = prompt + written.ids
    want = logprobs(theirs.hooked(*spans_of(20, SETTINGS[name])).logits(ids), ids)[19:]
    told = [token.logprob for token in tokens(written.events)]
    np.testing.assert_allclose(told, want, atol=2e-4)
    plain = submit(engine, prompt)
    assert tokens(plain.events)[0].logprob != pytest.approx(told[0], abs=1e-3)


def test_a_change_acts_from_the_token_it_names_and_is_written_again(
    engine: Engine, theirs: Theirs
) -> None:
    """A live change equals hooks, its scheduled repeat writes the same, and undoing it restores the
    plain text."""
    prompt, params = text(3), SamplingParams(seed=9, max_tokens=40, ignore_eos=True)
    plain = submit(engine, prompt, params)
    changes = {3: ALL_BUT_PATCHES, 12: STEER, 20: Interventions()}
    wanted = {after: {"interventions": change} for after, change in changes.items()}
    live, indexes = written_with(engine, Request(prompt, params), wanted)
    assert [event.index for event in live.updated] == indexes
    assert [event.interventions for event in live.updated] == [*changes.values()]
    for event in live.updated:
        before = tokens(live.events[: live.events.index(event)])
        assert event.index - len(before) <= engine.info.limits.in_flight
    pieces = [
        InterventionSpan(19 + e.index, e.interventions)
        for e in live.updated
        if e.interventions is not None
    ]
    assert len(pieces) == 3
    ids = prompt + live.ids
    want = logprobs(theirs.hooked(*pieces).logits(ids), ids)[19:]
    np.testing.assert_allclose([t.logprob for t in tokens(live.events)], want, atol=3e-4)
    first = live.updated[0].index
    assert live.ids[:first] == plain.ids[:first]
    assert live.ids != plain.ids
    updates = [ScheduledUpdate(e.index, interventions=e.interventions) for e in live.updated]
    again = submit(engine, prompt, params, updates=updates)
    assert again.ids == live.ids
    assert [(e.index, e.interventions) for e in again.updated] == [
        (e.index, e.interventions) for e in live.updated
    ]
    reset = submit(engine, prompt, params)
    assert reset.ids == plain.ids
    assert_equal_draws(engine, plain, reset)


ALL_BUT_PATCHES = Interventions(OFF.heads, OFF.attention, OFF.mlp, STEER.steer)


def assert_equal_draws(engine: Engine, a: Written, b: Written) -> None:
    """Equal bit for bit on a GPU; PyTorch's sums depend on the number of rows."""
    exact = engine.info.device.backend != "torch"
    for x, y in zip(tokens(a.events), tokens(b.events), strict=True):
        assert x.id == y.id
        assert x.logprob == (y.logprob if exact else pytest.approx(y.logprob, abs=1e-4))


def test_a_change_while_the_prompt_is_read_acts_from_its_last_token(
    engine: Engine, theirs: Theirs
) -> None:
    """It equals a scheduled update of token 0, whenever it came."""
    prompt = text(4, 40)
    written = submit(engine, prompt, updates=[ScheduledUpdate(0, interventions=ALL_BUT_PATCHES)])
    ids = prompt + written.ids
    want = logprobs(theirs.hooked(InterventionSpan(39, ALL_BUT_PATCHES)).logits(ids), ids)[39:]
    np.testing.assert_allclose([t.logprob for t in tokens(written.events)], want, atol=2e-4)


def test_questions_about_a_run_use_its_interventions(
    engine: Engine, theirs: Theirs, oracle: random_llama.Reference
) -> None:
    prompt = text(5)
    written = submit(
        engine, prompt, interventions=ALL, updates=[ScheduledUpdate(9, interventions=OFF)]
    )
    ids = prompt + written.ids
    pieces = (*spans_of(20, ALL), InterventionSpan(28, OFF))
    hooked, told = theirs.hooked(*pieces), tokens(written.events)

    losses = engine.inspect(Losses(ids, spans=pieces)).result()
    np.testing.assert_allclose(losses["logprob"], logprobs(hooked.logits(ids), ids), atol=3e-4)
    np.testing.assert_allclose(losses["logprob"][19:], [t.logprob for t in told], atol=1e-4)

    weights = hooked.attention(ids)
    for position in (7, 18, 19, 29, 35):
        got = engine.inspect(AttentionFrom(ids, position, spans=pieces)).result()["weights"]
        np.testing.assert_allclose(got, weights[position, :, :, : position + 1], atol=1e-4)
    to = engine.inspect(AttentionTo(ids, 6, spans=pieces)).result()["weights"]
    np.testing.assert_allclose(to, weights[6:, :, :, 6], atol=1e-4)

    for index in (0, 8, 9, 15):
        at = 19 + index
        lens = engine.inspect(LogitLens(ids, at, ids[at + 1], spans=pieces)).result()
        assert np.log(lens["probability"][-1]) == pytest.approx(told[index].logprob, abs=1e-4)
        params = SamplingParams(temperature=0.8, seed=2**50 + 1)
        drawn = engine.inspect(Waterfall(ids, at, params, index, spans=pieces)).result()
        assert drawn.info["chosen"] == told[index].id
        plain = engine.inspect(Waterfall(ids, at, params, index)).result()
        assert np.abs(plain["raw"] - drawn["raw"][: len(plain["raw"])]).max() > 0

    beam = engine.inspect(Beam(ids, width=1, depth=2, spans=pieces)).result()
    grown = hooked.logits([*ids, int(beam["ids"][0, 0])])
    assert beam["ids"][0].tolist() == [int(grown[-2].argmax()), int(grown[-1].argmax())]


# ---- the cache ----------------------------------------------------------------------------------


def test_cached_blocks_are_reused_only_under_the_same_interventions(engine: Engine) -> None:
    prompt = text(6, 50)
    fresh = {
        name: submit(engine, prompt, interventions=interventions)
        for name, interventions in VARIANTS.items()
    }
    counts = {name: n_found(written) for name, written in fresh.items()}
    # steers act from the last prompt token on, so a steered prompt is a plain one up to there
    assert counts == {"plain": 0, "off": 0, "other": 0, "steer": 49, "patch": 20, "patch2": 20}
    for name, interventions in VARIANTS.items():
        again = submit(engine, prompt, interventions=interventions)
        assert n_found(again) == 49, name
        assert_equal_draws(engine, fresh[name], again)
    longer = prompt + fresh["off"].ids
    assert n_found(submit(engine, longer)) == 50 + n_same(fresh["plain"].ids, fresh["off"].ids)
    assert n_found(submit(engine, longer, interventions=OFF)) == len(longer) - 1


def n_same(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


VARIANTS = {
    "plain": Interventions(),
    "off": OFF,
    "other": Interventions(mlp=(LayerFactor(3, 0.5),)),
    "steer": STEER,
    "patch": Interventions(patch=(Patch(1, 20, "a", 0),)),
    "patch2": Interventions(patch=(Patch(2, 20, "a", 0),)),
}


def test_questions_find_the_blocks_of_the_run_they_are_about(engine: Engine) -> None:
    prompt = text(7, 40)
    written = submit(engine, prompt, interventions=ALL)
    ids, pieces = prompt + written.ids, spans_of(40, ALL)
    state = engine._thread._scheduler.kv_state()
    engine.inspect(AttentionFrom(ids, len(ids) - 1, spans=pieces)).result()
    after = engine._thread._scheduler.kv_state()
    assert sum(n > 0 for n in after.n_found) - sum(n > 0 for n in state.n_found) <= 1


# ---- going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [Interventions(), OFF, STEER])
def test_a_continued_text_is_the_one_that_was_not_stopped(
    engine: Engine, now: Interventions
) -> None:
    """A run that began with patches and changed at two tokens continues from its ninth token, bit
    for bit, from the cache."""
    prompt = text(16, 40)
    updates = [
        ScheduledUpdate(3, interventions=ALL_BUT_PATCHES),
        ScheduledUpdate(9, interventions=now),
    ]
    whole = submit(engine, prompt, interventions=PATCHED, updates=updates)
    ids = prompt + whole.ids[:9]
    params = msgspec.structs.replace(PARAMS, first_index=9, max_tokens=PARAMS.max_tokens - 9)
    ran = (InterventionSpan(0, PATCHED), InterventionSpan(39 + 3, ALL_BUT_PATCHES))
    rest = submit(engine, ids, params, interventions=now, spans=ran)
    assert rest.ids == whole.ids[9:]
    told = tokens(whole.events)[9:]
    exact = engine.info.device.backend != "torch"
    assert [t.logprob for t in tokens(rest.events)] == (
        [t.logprob for t in told] if exact else pytest.approx([t.logprob for t in told], abs=1e-4)
    )
    assert n_found(rest) == len(ids) - 1
    anew = submit(engine, ids, params, interventions=now)
    assert tokens(anew.events)[0].logprob != pytest.approx(told[0].logprob, abs=1e-3)


def test_a_continuation_may_repeat_a_patch_that_acted_before(engine: Engine) -> None:
    """A page sends all that is set with every change."""
    prompt = text(17, 24)
    both = msgspec.structs.replace(OFF, patch=PATCHED.patch)
    ran = (InterventionSpan(0, PATCHED),)
    written = submit(
        engine,
        prompt,
        interventions=both,
        spans=ran,
        updates=[ScheduledUpdate(2, interventions=PATCHED)],
    )
    bare = submit(
        engine,
        prompt,
        interventions=OFF,
        spans=ran,
        updates=[ScheduledUpdate(2, interventions=NO_INTERVENTIONS)],
    )
    assert_equal_draws(engine, written, bare)


@pytest.mark.parametrize(
    ("spans", "interventions", "words"),
    [
        ((InterventionSpan(0, BAD),), NO_INTERVENTIONS, "reached.mlp: layer must be"),
        (
            (InterventionSpan(4, OFF), InterventionSpan(2, OFF)),
            NO_INTERVENTIONS,
            "first must be 5 or more",
        ),
        ((InterventionSpan(19, OFF),), NO_INTERVENTIONS, "less than 19"),
        ((InterventionSpan(0, OFF),), PATCHED, "it cannot patch the token at 7"),
    ],
)
def test_an_impossible_intervention_history_is_refused(
    engine: Engine, spans: tuple[InterventionSpan, ...], interventions: Interventions, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        engine.submit(Request(text(18), PARAMS, interventions=interventions, spans=spans))


# ---- others, and none ---------------------------------------------------------------------------


def test_runs_beside_each_other_are_what_they_are_alone(engine: Engine) -> None:
    prompts = {"off": text(8), "plain": text(9), "all": text(10)}
    settings = {"off": OFF, "plain": Interventions(), "all": ALL}
    alone = {
        name: submit(engine, ids, interventions=settings[name]) for name, ids in prompts.items()
    }
    runs = {name: Written() for name in prompts}
    for name, ids in prompts.items():
        engine.submit(Request(ids, PARAMS, interventions=settings[name]), runs[name])
    for name, run in runs.items():
        assert_equal_draws(engine, alone[name], run.wait())


@pytest.mark.parametrize("runner", ["wgpu"], indirect=True)
def test_plans_without_interventions_are_unchanged(engine: Engine, runner: WgpuRunner) -> None:
    prompt = text(11)
    submit(engine, prompt)
    plain = {
        key: [described(d) for d in p.plan.dispatches] for key, p in runner.plans.recorded.items()
    }
    submit(engine, prompt, interventions=ALL)
    n_reached = sum(key.interventions for key in runner.plans.recorded)
    assert n_reached > 0
    neutral = Interventions(mlp=(LayerFactor(0, 1.0),), steer=(Steer(0, "a", 0.0),))
    for interventions in (Interventions(), neutral):
        submit(engine, text(12 + len(interventions.mlp)), interventions=interventions)
    assert sum(key.interventions for key in runner.plans.recorded) == n_reached
    for key, dispatches in plain.items():
        assert [described(d) for d in runner.plans.recorded[key].plan.dispatches] == dispatches


# ---- refused ------------------------------------------------------------------------------------


def test_bad_interventions_of_a_run_change_nothing(engine: Engine) -> None:
    prompt = text(14)
    plain = submit(engine, prompt)
    for bad in (BAD, Interventions(patch=(Patch(0, 20, "a", 0),))):
        with pytest.raises(InvalidRequest, match="must be"):
            engine.submit(Request(prompt, PARAMS, interventions=bad))
    for changes in (
        [ScheduledUpdate(2, interventions=BAD)],
        [ScheduledUpdate(2, interventions=PATCHED)],
    ):
        with pytest.raises(InvalidRequest, match="change 1 of the request"):
            engine.submit(Request(prompt, PARAMS, updates=changes))
    written = Written()
    run = engine.submit(Request(prompt, PARAMS, pace=LEAST_PACE), written)
    for bad in (BAD, PATCHED):
        with pytest.raises(InvalidRequest) as refusal:
            run.update(interventions=bad, temperature=0.1)
        assert refusal.value.param.startswith("reach.")
    with pytest.raises(InvalidRequest, match="temperature"):
        run.update(interventions=OFF, temperature=-1.0)
    run.update(pace=PaceChange(None))
    told = [(event.interventions, event.params.temperature) for event in written.wait().updated]
    assert told == [(None, PARAMS.temperature)], "only the pace changed"
    assert_equal_draws(engine, plain, written)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((InterventionSpan(0, BAD),), "reached.mlp: layer must be"),
        ((InterventionSpan(-1, OFF),), "first must be 0 or more"),
        ((InterventionSpan(3, OFF), InterventionSpan(3, OFF)), "first must be 4 or more"),
    ],
)
def test_bad_interventions_of_a_question_are_refused(
    engine: Engine, pieces: tuple[InterventionSpan, ...], words: str
) -> None:
    questions: list[Question] = [
        AttentionFrom([1, 2], 1, spans=pieces),
        Losses([1, 2], spans=pieces),
        Beam([1, 2], spans=pieces),
    ]
    for question in questions:
        with pytest.raises(InvalidRequest, match=words) as refusal:
            engine.inspect(question).result()
        assert refusal.value.param.startswith("reached")


def test_a_patch_may_be_dropped_by_a_change(engine: Engine) -> None:
    prompt = text(15)
    written = Written()
    request = Request(prompt, PARAMS, interventions=PATCHED, pace=LEAST_PACE)
    run = engine.submit(request, written)
    run.update(interventions=Interventions())
    with pytest.raises(InvalidRequest, match="write again from there"):
        run.update(interventions=PATCHED)
    run.update(pace=PaceChange(None))
    told = [event.interventions for event in written.wait().updated]
    assert told == [Interventions(), None], "the other is of the pace"
    assert any(isinstance(e, Prefill) for e in written.events)


def test_a_patch_that_was_dropped_stays_so_in_scheduled_updates(engine: Engine) -> None:
    """Its token is computed already, and no other run may end because of that."""
    prompt, written = text(16), Written()
    both = msgspec.structs.replace(OFF, patch=PATCHED.patch)
    request = Request(
        prompt,
        PARAMS,
        interventions=PATCHED,
        updates=(ScheduledUpdate(8, {"temperature": 0.5}, interventions=both),),
        pace=LEAST_PACE,
    )
    run = engine.submit(request, written)
    first = run.update(interventions=Interventions())
    run.update(pace=PaceChange(None))
    told = [event.interventions for event in written.wait().updated]
    assert told == [Interventions(), None, OFF], "the second is of the pace"
    bare = [
        ScheduledUpdate(first, interventions=Interventions()),
        ScheduledUpdate(8, {"temperature": 0.5}, interventions=OFF),
    ]
    assert written.ids == submit(engine, prompt, interventions=PATCHED, updates=bare).ids
