"""A generation is kept for its own page, for a limited time, in a limited size."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from app.engine_client import LocalEngine
from app.protocol.messages import Generation
from app.ws.send_queue import SendQueue
from app.ws.sessions import (
    GenerationLog,
    LogEntry,
    RequestClock,
    Retention,
    Sessions,
    UnknownGenerationError,
)
from gpu import InvalidRequest, QueueFull, Request, SamplingParams
from gpu.events import Accepted, Done, Event, Queued, Timings, Token, Updated
from tests.app.conftest import StartSite
from tests.app.fake_engine import load
from tests.app.fake_options import FakeOptions
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.page import wait_until

IDS = [0, 262]


class ScriptedEngine(LocalEngine):
    """Engine that keeps what is submitted, and lets the test send its events."""

    def __init__(self) -> None:
        super().__init__(lambda progress: load(FakeOptions(), progress), FakeTokenizer())
        self.tells: list[Callable[[Event], None]] = []
        self.cancelled: list[int] = []
        self.refuse: Exception | None = None

    def submit(self, request: Request, on_event: Any) -> Any:
        if self.refuse is not None:
            raise self.refuse
        number = len(self.tells)
        self.tells.append(on_event)
        engine = self

        class Run:
            def update(self, **changes: Any) -> int:
                if engine.refuse is not None:
                    raise engine.refuse
                on_event(Updated(3, SamplingParams(), True))
                return 3

            def cancel(self) -> None:
                engine.cancelled.append(number)

        return Run()


def done() -> Done:
    return Done("length", 2, 1, Timings(0, 0, 0, 0, 0, 0, 0, 0, 0, 0))


def tokens(n: int) -> list[Token]:
    """Tokens with statistics, as the fake engine makes them."""
    found: list[Token] = []
    ended = threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Token):
            found.append(event)
        elif isinstance(event, Done):
            ended.set()

    engine = load(FakeOptions(delay=0), lambda done, message: None)
    engine.submit(Request(IDS, SamplingParams(max_tokens=n), capture=True), on_event)
    assert ended.wait(20)
    engine.close()
    return found


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


def start(sessions: Sessions, id: str, owner: str = "me") -> GenerationLog:
    return sessions.start(owner, id, Request(IDS, SamplingParams(), True))


def read(live: GenerationLog, lean: bool = False) -> list[Generation]:
    entries = [live.entry(seq) for seq in range(1, live.last_seq + 1)]
    return [
        msgspec.json.decode(e.lean if lean else e.full or e.lean, type=Generation)
        for e in entries
        if e is not None
    ]


def test_the_log_is_numbered_from_one_and_holds_every_event(engine: ScriptedEngine) -> None:
    live = start(Sessions(engine, Retention()), "a")
    events = [*tokens(5), done()]
    for event in events:
        engine.tells[0](event)
    found = read(live)
    assert [message.seq for message in found] == [1, 2, 3, 4, 5, 6]
    assert {message.id for message in found} == {"a"}
    assert [message.event for message in found] == events
    assert live.entry(7) is None


def test_messages_carry_their_times_and_when_the_prompt_was_tokenized(
    engine: ScriptedEngine,
) -> None:
    began = time.perf_counter()
    clock = RequestClock()
    time.sleep(0.02)
    clock.prepared = clock.now()
    live = Sessions(engine, Retention()).start("me", "a", Request(IDS), clock=clock)
    for event in [*tokens(3), done()]:
        time.sleep(0.01)
        engine.tells[0](event)
    took = (time.perf_counter() - began) * 1e3
    found = read(live)
    assert [message.prepared for message in found] == [clock.prepared, None, None, None]
    times = [clock.prepared, *(message.at for message in found), took]
    assert times[0] >= 20
    assert all(later - earlier >= 10 for earlier, later in pairwise(times[:-1]))
    assert times[-1] > times[-2]
    assert [message.at for message in read(live, lean=True)] == times[1:-1]


def test_a_lean_message_lacks_the_statistics_alone(engine: ScriptedEngine) -> None:
    live = start(Sessions(engine, Retention()), "a")
    for event in tokens(3):
        engine.tells[0](event)
    for full, lean in zip(read(live), read(live, lean=True), strict=True):
        assert isinstance(full.event, Token)
        assert full.event.stats is not None
        assert lean.event == msgspec.structs.replace(full.event, stats=None)


def test_old_statistics_go_before_anything_else(engine: ScriptedEngine) -> None:
    some = tokens(12)
    live = start(Sessions(engine, Retention(stats_bytes=12_000)), "a")
    for event in some:
        engine.tells[0](event)
    found = [message.event for message in read(live)]
    assert [event.text for event in found if isinstance(event, Token)] == [t.text for t in some]
    has = [event.stats is not None for event in found if isinstance(event, Token)]
    assert has == sorted(has), "the oldest go first"
    assert 0 < sum(has) < 12
    kept = sum(len(e.full or b"") for e in map(live.entry, range(1, 13)) if e is not None)
    assert kept <= 12_000


def test_finished_generations_are_bounded_in_number(engine: ScriptedEngine) -> None:
    sessions = Sessions(engine, Retention(n_finished=2))
    for number in range(4):
        start(sessions, f"g{number}")
        engine.tells[number](done())
    for gone in ("g0", "g1"):
        with pytest.raises(UnknownGenerationError, match="start it again"):
            sessions.get("me", gone)
    assert sessions.get("me", "g3").finished_at is not None


def test_finished_generations_are_bounded_in_bytes(engine: ScriptedEngine) -> None:
    sessions = Sessions(engine, Retention(finished_bytes=40_000))
    some = tokens(4)
    for number in range(5):
        start(sessions, f"g{number}")
        for event in [*some, done()]:
            engine.tells[number](event)
    kept = [live for live in sessions._generations.values() if live.finished_at is not None]
    assert 0 < len(kept) < 5
    assert sum(live.n_bytes for live in kept) <= 40_000
    assert sessions.get("me", "g4")


def test_kept_messages_take_the_memory_that_is_counted(engine: ScriptedEngine) -> None:
    live, events = start(Sessions(engine, Retention()), "a"), tokens(200)
    tracemalloc.start()
    try:
        for event in events:
            engine.tells[0](event)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert live.n_bytes <= taken < 1.02 * live.n_bytes + 400 * len(events)  # and the objects


def test_a_finished_generation_is_kept_no_longer_than_it_should_be(
    engine: ScriptedEngine,
) -> None:
    """Also where no other one finishes, which would make room."""
    sessions = Sessions(engine, Retention(finished_seconds=900))
    live = start(sessions, "a")
    engine.tells[0](done())
    assert sessions.get("me", "a") is live
    assert sessions.kept() == (1, live.n_bytes)
    assert live.finished_at is not None
    live.finished_at -= 1000
    with pytest.raises(UnknownGenerationError):
        sessions.get("me", "a")
    assert sessions.kept() == (0, 0)


def test_running_generations_are_never_forgotten(engine: ScriptedEngine) -> None:
    sessions = Sessions(engine, Retention(n_finished=0, finished_bytes=0, finished_seconds=0))
    running = start(sessions, "running")
    start(sessions, "finished")
    engine.tells[1](done())
    assert sessions.get("me", "running") is running
    with pytest.raises(UnknownGenerationError):
        sessions.get("me", "finished")


def test_ids_are_per_owner(engine: ScriptedEngine) -> None:
    sessions = Sessions(engine, Retention())
    mine, yours = start(sessions, "a", "me"), start(sessions, "a", "you")
    assert sessions.get("me", "a") is mine
    assert sessions.get("you", "a") is yours
    with pytest.raises(InvalidRequest, match="already"):
        start(sessions, "a", "me")


def test_a_refused_start_leaves_nothing_behind(engine: ScriptedEngine) -> None:
    sessions = Sessions(engine, Retention())
    engine.refuse = QueueFull("full")
    with pytest.raises(QueueFull):
        start(sessions, "a")
    engine.refuse = None
    start(sessions, "a")


def test_a_finished_generation_takes_no_update(engine: ScriptedEngine) -> None:
    live = start(Sessions(engine, Retention()), "a")
    live.update(None, {"temperature": 1.0})
    engine.tells[0](done())
    with pytest.raises(InvalidRequest, match="ended"):
        live.update(None, {"temperature": 1.0})
    live.cancel()
    assert engine.cancelled == []


def test_a_stop_that_comes_before_the_run_is_known_is_kept(engine: ScriptedEngine) -> None:
    live = GenerationLog("me", "a", RequestClock(), Retention(), lambda: None)
    live.cancel()
    run = engine.submit(Request(IDS, SamplingParams()), live.on_event)
    live.attach(run)
    assert engine.cancelled == [0]


def test_followers_are_notified_and_their_absence_cancels(engine: ScriptedEngine) -> None:
    live = start(Sessions(engine, Retention(away_seconds=60)), "a")
    grown = threading.Event()
    live.follow(grown.set)
    engine.tells[0](tokens(1)[0])
    assert grown.is_set()
    live.unfollow(grown.set)
    assert live._away_timer is not None
    live.follow(grown.set)
    assert live._away_timer is None, "somebody came back in time"
    live = start(Sessions(engine, Retention(away_seconds=0.05)), "b")
    live.follow(grown.set)
    live.unfollow(grown.set)
    wait_until(lambda: engine.cancelled)
    assert engine.cancelled == [1]


def accepted(position: int) -> Accepted:
    return Accepted((), SamplingParams(), False, position, 100)


def left_alone(engine: ScriptedEngine, *events: Event) -> GenerationLog:
    """Return a generation that has sent these events, and that nobody follows any more."""
    retention = Retention(away_seconds=60, waiting_seconds=0.2)
    live = start(Sessions(engine, retention), "a")
    for event in events:
        engine.tells[0](event)
    live.follow(print)
    live.unfollow(print)
    return live


@pytest.mark.parametrize(
    "events",
    [
        (),
        (accepted(3),),
        (accepted(3), Queued(1)),
        (accepted(1), Updated(0, SamplingParams(), True)),
    ],
)
def test_a_waiting_generation_is_cancelled_soon_after_its_page_has_gone(
    engine: ScriptedEngine, events: tuple[Event, ...]
) -> None:
    left_alone(engine, *events)
    deadline = time.monotonic() + 10
    while not engine.cancelled and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.cancelled == [0]


def test_a_writing_generation_is_kept_for_longer(engine: ScriptedEngine) -> None:
    left_alone(engine, accepted(2), Queued(0), *tokens(1))
    time.sleep(0.5)
    assert engine.cancelled == []


def test_a_generation_that_starts_writing_meanwhile_is_kept_for_longer(
    engine: ScriptedEngine,
) -> None:
    live = left_alone(engine, accepted(1))
    engine.tells[0](Queued(0))
    time.sleep(0.5)
    assert engine.cancelled == []
    live.follow(print)
    assert live._away_timer is None, "who comes back ends the wait"


class Reader:
    """WebSocket of a page that reads at once."""

    def __init__(self) -> None:
        self.n_read = 0

    def send(self, data: str | bytes) -> None:
        self.n_read += 1


def test_a_page_that_has_the_last_message_follows_no_longer(engine: ScriptedEngine) -> None:
    """However soon it is sent: the page would keep the log for as long as it is open."""
    live, page = start(Sessions(engine, Retention()), "a"), Reader()
    queue = SendQueue(page)  # type: ignore[arg-type]

    class Log(list[LogEntry]):
        """Goes on once the page has what was appended."""

        def append(self, entry: LogEntry) -> None:
            super().append(entry)
            queue._wake.set()
            wait_until(lambda: page.n_read == len(self))

    live._log = Log()
    queue.start()
    queue.follow(live, 0)
    for event in (*tokens(2), done()):
        engine.tells[0](event)
    wait_until(lambda: not queue._cursors, 5)
    queue.close()


def test_a_dropped_log_is_freed_at_once(start_site: StartSite) -> None:
    """Many wait for the garbage collector otherwise, with megabytes each."""
    site = start_site(process=True, retention=Retention(n_finished=1))
    sessions: Sessions = site.app.extensions["tokenglass_sessions"]
    page, dropped = site.page(), list[weakref.ref[GenerationLog]]()
    gc.disable()
    try:
        for id in "ab":
            page.send_message("generate", id=id, prompt="Once", params={"max_tokens": 3})
            page.until("done", id=id)
            dropped += map(weakref.ref, sessions._generations.values())
        wait_until(lambda: dropped[0]() is None)
    finally:
        gc.enable()
    assert dropped[-1]() is not None
