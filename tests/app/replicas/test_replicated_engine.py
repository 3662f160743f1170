"""Several engines behind one client: a text outlives the engine that began it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.engine_client import ServedModel, UnavailableError
from app.protocol.messages import Hello, Status
from app.replicas import engine as replicated
from app.replicas.engine import ReplicatedEngine
from app.replicas.run import MAX_ENGINES
from gpu import (
    Interventions,
    InvalidRequest,
    Patch,
    QueueFull,
    Request,
    SamplingParams,
    ScheduledUpdate,
)
from gpu.events import Accepted, Queued, Token, Updated
from gpu.inspection.requests import CacheBlocks, Losses
from gpu.pace import LEAST_PACE, PaceChange
from tests.app.page import wait_until
from tests.app.replicas.mortal import MortalEngine, Written, token, wait_ready
from tests.app.replicas.test_replica_processes import write_to_the_end
from tests.gpu.engine.scripted_runner import expected

Start = Callable[..., tuple[ReplicatedEngine, list[MortalEngine]]]
PROMPT = [9, 8, 7] * 12


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts several engines; its keywords are those of `MortalEngine`."""
    started: list[ReplicatedEngine] = []

    def start(n: int = 2, **options: Any) -> tuple[ReplicatedEngine, list[MortalEngine]]:
        replicas = [MortalEngine(tmp_path, **options) for _ in range(n)]
        engine = ReplicatedEngine(replicas)
        started.append(engine)
        engine.start()
        wait_ready(*replicas)
        return engine, replicas

    yield start
    for engine in started:
        engine.close()


def request(ids: list[int], n: int, pace: float | None = None) -> Request:
    return Request(ids, SamplingParams(max_tokens=n, ignore_eos=True), pace=pace)


def home(replicas: list[MortalEngine]) -> MortalEngine:
    """Return the replica that got the latest request of all."""
    return max((r for r in replicas if r.requests), key=lambda r: len(r.requests[-1].ids))


def after(written: Written, index: int) -> None:
    written.until(token(index))


# ---- routing ---------------------------------------------------------------------------------


def test_requests_are_shared_and_a_conversation_stays_where_it_is_cached(start: Start) -> None:
    engine, (first, second) = start()
    texts = []
    for ids in (PROMPT, [5] * 36):
        texts.append(Written())
        engine.submit(request(ids, 20), texts[-1])
    for text in texts:
        text.wait_done()
    assert len(first.requests) == len(second.requests) == 1
    for replica in (first, second):
        ids = [*replica.requests[0].ids, 1, 2, 3]
        again = Written()
        engine.submit(request(ids, 2), again)
        assert again.wait_done().timings.cache_n >= 32
        assert replica.requests[-1].ids == ids


def test_the_load_of_every_replica_is_told(start: Start) -> None:
    """Two long texts go to one replica each; what was found in a cache is of that replica."""
    engine, (first, second) = start(n_slots=1)
    text = Written()
    engine.submit(request(PROMPT, 3), text)
    text.wait_done()
    has = home([first, second])
    again, other = Written(), Written()
    engine.submit(request(PROMPT, 150, LEAST_PACE), again)
    engine.submit(request([5] * 20, 150, LEAST_PACE), other)
    for written in (again, other):
        after(written, 0)
    one, two = engine.replica_statuses()
    assert [status.state for status in (one, two)] == ["ready", "ready"]
    assert one.stats is not None
    assert two.stats is not None
    assert one.stats.n_running == two.stats.n_running == 1
    busy, fresh = (one.stats, two.stats) if has is first else (two.stats, one.stats)
    assert busy.reused_tokens >= 32
    assert fresh.reused_tokens == 0
    assert fresh.used_blocks >= 2
    has.die()
    states = [status.state for status in engine.replica_statuses()]
    assert states == (["restarting", "ready"] if has is first else ["ready", "restarting"])


def test_an_engine_that_started_again_has_nothing_cached(start: Start) -> None:
    engine, replicas = start()
    text = Written()
    engine.submit(request(PROMPT, 3), text)
    text.wait_done()
    before = home(replicas)
    before.die()
    before.revive()
    engine.submit(request(PROMPT, 3), text)
    text.wait_done()
    assert [len(replica.requests) for replica in replicas] == [1, 1], "it was the other's turn"


def test_a_full_replica_sends_on_to_another_and_then_refuses(start: Start) -> None:
    engine, replicas = start(n_slots=1, queue=0)
    texts = [Written(), Written()]
    runs = [engine.submit(request(PROMPT, 60, LEAST_PACE), text) for text in texts]
    assert [len(replica.requests) for replica in replicas] == [1, 1]
    with pytest.raises(QueueFull):
        engine.submit(request(PROMPT, 5), Written())
    for run, text in zip(runs, texts, strict=True):
        run.update(pace=PaceChange(None))
        assert text.wait_done().reason == "length"
    engine.submit(request(PROMPT, 5), texts[0])
    texts[0].wait_done()


def test_bad_requests_are_refused_once(start: Start) -> None:
    engine, replicas = start()
    with pytest.raises(InvalidRequest):
        engine.submit(request([10**6], 5), Written())
    assert sum(len(replica.requests) for replica in replicas) == 1


def test_questions_go_where_their_tokens_are_cached(start: Start) -> None:
    engine, replicas = start()
    texts = [Written(), Written()]
    for text, ids in zip(texts, (PROMPT, [5] * 36), strict=True):
        engine.submit(request(ids, 4), text)
        text.wait_done()
    for replica in replicas:
        ids = replica.requests[0].ids
        answer = engine.inspect(Losses(ids), asker=3).result(20)
        assert replica.questions == [Losses(ids)]
        assert answer.info["mean_loss"] > 0
        engine.inspect(CacheBlocks(), asker=3).result(20)
        assert replica.questions.pop() == CacheBlocks(), "the pool that this page asked about"
    engine.cancel_questions(3)


def test_an_engine_is_asked_by_the_number_that_a_run_tells(start: Start) -> None:
    engine, replicas = start()
    for ids in (PROMPT, [5] * 36):
        text = Written()
        engine.submit(request(ids, 4), text)
        text.wait_done()
        (accepted,) = text.of(Accepted)
        replica = replicas[accepted.engine - 1]
        assert replica.requests[-1].ids == ids
        assert engine.replica(accepted.engine) is replica
    for number, replica in enumerate(replicas, 1):
        engine.replica(number).inspect(CacheBlocks(), 3).result(20)
        assert replica.questions == [CacheBlocks()]
    for number in (-1, 0, 3):
        with pytest.raises(InvalidRequest, match=f"no engine {number}: .* engines 1 to 2"):
            engine.replica(number)
    replicas[1].die()
    with pytest.raises(UnavailableError):
        engine.replica(2).inspect(CacheBlocks(), 3)


def test_questions_about_texts_that_nobody_has_cached_are_shared(start: Start) -> None:
    engine, replicas = start()
    texts = [Written(lambda event: isinstance(event, Accepted)) for _ in replicas]
    for text, id in zip(texts, (50, 60), strict=True):
        engine.submit(request([id] * 20, 1), text)
    assert [len(replica.requests) for replica in replicas] == [1, 1], "both stand still"
    answers = [engine.inspect(Losses([n] * 20), asker=n) for n in range(1, 7)]
    assert [len(replica.questions) for replica in replicas] == [3, 3]
    for text in texts:
        text.go_on()
    for answer in answers:
        answer.result(20)
    wait_until(lambda: not any(engine._n_questions))  # a moment after the last answer
    engine.inspect(Losses([9] * 20), asker=9).result(20)
    assert [len(replica.questions) for replica in replicas] == [4, 3], "all were answered"


def test_figures_are_sums(start: Start) -> None:
    engine, replicas = start()
    texts = [Written(), Written()]
    for text in texts:
        engine.submit(request(PROMPT, 3), text)
        text.wait_done()
    stats, parts = engine.stats, [replica.stats for replica in replicas]
    assert stats is not None
    assert stats.prompt_tokens == 2 * len(PROMPT)
    assert stats.n_blocks == sum(part.n_blocks for part in parts if part is not None) == 32


# ---- a replica that dies ---------------------------------------------------------------------


def test_a_text_goes_on_at_another_engine_as_if_nothing_had_happened(start: Start) -> None:
    engine, replicas = start()
    text = Written(token(20, 50))
    engine.submit(request(PROMPT, 80), text)
    for index in (20, 50):
        after(text, index)
        dead = home(replicas)
        dead.die()
        dead.revive()
        text.go_on()
    done = text.wait_done()
    tokens = text.of(Token)
    assert [token.index for token in tokens] == list(range(80))
    assert [token.id for token in tokens] == expected(PROMPT, 80)
    assert len(text.of(Accepted)) == 1
    assert (done.reason, done.prompt_tokens, done.completion_tokens) == ("length", len(PROMPT), 80)
    work = sum(token.times.interval for token in tokens[1:])
    timings = done.timings
    assert (timings.predicted_n, timings.predicted_ms) == (80, pytest.approx(work))
    assert timings.tpot_ms == pytest.approx(work / 79)
    assert timings.predicted_per_second == pytest.approx(1e3 * 79 / work)
    assert sum(len(replica.requests) for replica in replicas) == 3
    places = [text.of(Accepted)[0], *(moved for moved in text.of(Queued) if moved.engine)]
    assert [place.engine for place in places] in ([1, 2, 1], [2, 1, 2])
    assert len({place.run for place in places}) == 3, "each engine numbers its runs"


def test_changed_settings_go_with_it(start: Start) -> None:
    engine, replicas = start()
    text = Written(token(30))
    scheduled = (ScheduledUpdate(4, {"top_k": 3}), ScheduledUpdate(60, {"top_k": 5}))
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    run = engine.submit(Request(PROMPT, params, updates=scheduled, pace=0.0), text)
    run.update(pace=PaceChange(steps=11))
    after(text, 10)
    run.update(temperature=0.5, max_tokens=80, pace=PaceChange(None))
    after(text, 30)
    home(replicas).die()
    text.go_on()
    text.wait_done()
    updated = text.of(Updated)
    assert [event.params.top_k for event in updated] == [3, 3, 5], "each is told once"
    moved = home(replicas).requests[-1]
    assert moved.params.seed is not None, "the seed that was drawn"
    assert [update.index for update in moved.updates] == [event.index for event in updated]
    assert len(text.of(Token)) == 80


def test_a_change_that_had_not_acted_yet_acts_elsewhere_and_is_told_once(start: Start) -> None:
    engine, replicas = start()
    is_third = token(3)
    text = Written(lambda event: isinstance(event, Updated) or is_third(event))
    engine.submit(request(PROMPT, 24), text)
    after(text, 3)
    asked = home(replicas).runs[-1].start_update(temperature=0.5)
    text.go_on()
    text.until(lambda event: isinstance(event, Updated))
    home(replicas).die()
    text.go_on()
    first = asked.result(20)
    text.wait_done()
    moved = home(replicas).requests[-1]
    assert moved.n_written < first == moved.updates[0].index, "it was in flight"
    assert [event.index for event in text.of(Updated)] == [first]


def test_a_patch_that_was_dropped_is_in_no_change_to_come(start: Start) -> None:
    engine, replicas = start()
    patched = Interventions(patch=(Patch(0, 2, "a fox", 1),))
    scheduled = (ScheduledUpdate(20, {"temperature": 0.5}, interventions=patched),)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    text = Written()
    asked = Request(PROMPT, params, updates=scheduled, interventions=patched, pace=0.0)
    run = engine.submit(asked, text)
    run.update(pace=PaceChange(steps=6))
    after(text, 5)
    first = run.update(interventions=Interventions())
    home(replicas).die()
    write_to_the_end(run)
    assert text.wait_done().reason == "length"
    assert home(replicas).requests[-1].n_written == first == 6
    told = [event.interventions for event in text.of(Updated) if event.interventions is not None]
    assert told == [Interventions(), Interventions()]


def test_runs_wait_for_an_engine_if_none_is_ready(start: Start) -> None:
    engine, replicas = start()
    states: list[str] = []
    engine.listen(lambda status, hello: states.append(status.state))
    text = Written(token(10))
    run = engine.submit(request(PROMPT, 60), text)
    after(text, 10)
    for replica in replicas:
        replica.die()
    text.go_on()
    with pytest.raises(UnavailableError, match="moving to another engine"):
        run.update(temperature=1)
    with pytest.raises(UnavailableError):
        engine.submit(request(PROMPT, 5), Written())
    replicas[1].revive()
    text.wait_done()
    assert [token.id for token in text.of(Token)] == expected(PROMPT, 60)
    assert states == ["ready", "restarting", "ready"]


def test_the_death_of_one_of_two_is_not_told(start: Start) -> None:
    engine, replicas = start()
    told: list[tuple[Status, Hello | None]] = []
    engine.listen(lambda status, hello: told.append((status, hello)))
    replicas[0].die()
    replicas[0].revive()
    replicas[1].die("failed")
    assert [status.state for status, _ in told] == ["ready"]
    assert engine.hello is not None


def test_a_cancelled_run_does_not_move(start: Start) -> None:
    engine, replicas = start()
    text = Written(token(10))
    run = engine.submit(request(PROMPT, 200), text)
    after(text, 10)
    for replica in replicas:
        replica.die()
    text.go_on()
    run.cancel()
    replicas[0].revive()
    assert text.wait_done().reason == "cancelled"
    assert not replicas[0].requests or replicas[0].requests[-1].n_written == 0


def test_a_request_that_kills_engines_is_given_up(start: Start) -> None:
    engine, replicas = start()
    indexes = range(0, 4 * MAX_ENGINES, 4)
    text = Written(token(*indexes))
    engine.submit(request(PROMPT, 200), text)
    for index in indexes:
        after(text, index)
        dead = home(replicas)
        dead.die()
        dead.revive()
        text.go_on()
    done = text.wait_done()
    assert (done.reason, done.message) == ("error", "the engine stopped")
    assert sum(len(replica.requests) for replica in replicas) == MAX_ENGINES


@pytest.mark.parametrize(("max_tokens", "last", "reason"), [(200, 4, "eos"), (3, 2, "length")])
def test_a_text_that_had_ended_is_not_written_on(
    start: Start, max_tokens: int, last: int, reason: str
) -> None:
    """The last token came through, but not the end of the run."""
    engine, replicas = start(script=lambda ids: 0 if len(ids) == len(PROMPT) + 4 else 5)
    for replica in replicas:
        replica.tells_ends = False
    text = Written()
    engine.submit(Request(PROMPT, SamplingParams(max_tokens=max_tokens)), text)
    after(text, last)
    home(replicas).die()
    done = text.wait_done()
    assert (done.reason, done.completion_tokens) == (reason, last + 1)
    assert sum(len(replica.requests) for replica in replicas) == 1


def test_waiting_for_an_engine_ends_with_the_server_or_after_a_while(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicated, "RESUME_SECONDS", 0.3)
    engine, replicas = start()
    for close in (False, True):
        text = Written(token(5))
        engine.submit(request(PROMPT, 200), text)
        after(text, 5)
        if close:
            monkeypatch.setattr(replicated, "RESUME_SECONDS", 60)
        for replica in replicas:
            replica.die()
        text.go_on()
        if close:
            engine.close()
        assert text.wait_done().reason == "error"
        if not close:
            replicas[0].revive()


# ---- another model ---------------------------------------------------------------------------


class Switchable(MortalEngine):
    """An engine that notes what it is told to load."""

    def switch(self, served: ServedModel) -> None:
        self.served = served
        self.die("loading")


def test_all_replicas_change_the_model_and_their_runs_end(tmp_path: Path) -> None:
    replicas = [Switchable(tmp_path) for _ in range(2)]
    engine = ReplicatedEngine(replicas, lambda load, number: lambda progress: load(number))
    engine.start()
    try:
        wait_ready(*replicas)
        text = Written()
        engine.submit(request(PROMPT, 200, LEAST_PACE), text)
        after(text, 0)
        states: list[str] = []
        engine.listen(lambda status, hello: states.append(status.state))
        tokenizer = replicas[0].tokenizer
        engine.switch(ServedModel(lambda number: number, tokenizer, None))
        assert text.wait_done().reason == "error"
        assert [replica.served.load(None) for replica in replicas] == [0, 1]
        replicas[1].revive()
        wait_until(lambda: engine.hello is not None)
        assert states == ["ready", "loading", "loading", "ready"]
    finally:
        engine.close()


class Reloaded(MortalEngine):
    """An engine that is loaded again when it is told, or cannot be."""

    fails = False

    def reload(self) -> None:
        if self.fails:
            raise UnavailableError("it cannot be changed")
        self.die("loading")
        self.revive()


def test_all_replicas_are_loaded_again(tmp_path: Path) -> None:
    replicas = [Reloaded(tmp_path) for _ in range(2)]
    engine = ReplicatedEngine(replicas)
    engine.start()
    try:
        wait_ready(*replicas)
        engine.reload()
        wait_until(lambda: engine.hello is not None)
        replicas[1].fails = True
        with pytest.raises(UnavailableError, match="it cannot be changed"):
            engine.reload()
        wait_until(lambda: engine.hello is not None)
        text = Written()
        engine.submit(request(PROMPT, 3), text)
        assert text.wait_done().reason == "length"
    finally:
        engine.close()
