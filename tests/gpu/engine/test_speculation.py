"""Speculative decoding: the same text as without drafts, in fewer steps where it can be guessed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.engine.sequence import Sequence
from gpu.events import Done, Event, Token, Updated
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.interventions.hand import ManualEngine


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


def repeating(ids: list[int]) -> int:
    """Return a token of a text that repeats itself, with a surprise now and then."""
    return 200 + len(ids) % 7 if len(ids) % 23 == 0 else 1 + len(ids) % 6


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Callable[..., ManualEngine]:
    def make(**options: Any) -> ManualEngine:
        runner = ScriptedRunner(**{"script": repeating, **options})
        return ManualEngine(runner, tokenizer, ngrams=True)

    return make


def test_a_text_that_repeats_itself_takes_fewer_steps(hand: Callable[..., ManualEngine]) -> None:
    one = hand()
    one.run([1, 2, 3], 60)  # `release` compares the text with the script
    assert len(one.runner.steps) < 40
    drafted = [step for step in one.runner.steps if any(s.verifies for s in step.samples)]
    assert len(drafted) > 5


def test_a_text_without_repetition_takes_a_step_for_every_token(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(script=lambda ids: 1 + (len(ids) * len(ids)) % 251)
    one.run([1, 2, 3], 60)
    decoding = [step for step in one.runner.steps if len(step.rows) == 1]
    assert len(decoding) >= 58


@pytest.mark.parametrize("seed", range(12))
def test_no_interleaving_changes_a_text(hand: Callable[..., ManualEngine], seed: int) -> None:
    """Runs of many lengths beside each other, with too few blocks for all, cancelled and resized at
    any time, and recomputed tokens between them."""
    draw = random.Random(seed)
    one = hand(n_slots=3, n_blocks=draw.randint(6, 9), max_rows=12)
    alive: list[Sequence] = []
    for _ in range(300):
        action = draw.random()
        alive = [s for s in alive if not s.finished]
        if action < 0.15 and len(alive) < 5:
            prompt = [draw.randint(1, 6) for _ in range(draw.randint(1, 20))]
            penalty = draw.choice([0.0, 0.5])
            alive.append(one.start(prompt, draw.randint(1, 40), frequency_penalty=penalty))
        elif action < 0.2 and alive:
            one.cancel(draw.choice(alive))
        elif action < 0.25 and alive:
            running = [s for s in alive if s.decoding.drafting and not s.decoding.has_drafts]
            if running:
                one.resize(draw.choice(running), draw.randint(1, 40))
        elif (len(one.in_flight) == one.runner.in_flight or not one.advance()) and one.in_flight:
            one.collect()
        if not draw.randint(0, 20):
            while one.in_flight:
                one.collect()
            one.check(draw)
    one.finish(*[s for s in alive if not s.finished])
    one.check_owners()
    assert one.scheduler.kv.n_free == one.runner.limits.n_blocks


@pytest.mark.parametrize("seed", range(4))
def test_the_penalty_is_for_the_tokens_of_the_text_alone(
    hand: Callable[..., ManualEngine], seed: int
) -> None:
    """`ScriptedRunner` compares what the device counts with the text, before each penalised sample:
    rejected drafts are not in it, accepted ones are."""
    draw = random.Random(seed)
    one = hand(n_slots=2, n_blocks=7)
    runs = [one.start([1, 2, 3], 40), one.start([4, 5], 45)]
    penalised = 0
    while not all(run.finished for run in runs):
        if len(one.in_flight) == one.runner.in_flight or not one.advance():
            one.collect()
        run = draw.choice(runs)
        if not (run.finished or run.decoding.drafting is None or run.decoding.has_drafts):
            run.update({"frequency_penalty": draw.choice([0.0, 0.3])}, None)
    for step in one.runner.steps:
        penalised += sum(s.frequency_penalty != 0 and s.verifies for s in step.samples)
    assert penalised > 10


class Recorded:
    """Events of a run, and the end of it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Done):
            self.ended.set()

    def all(self, kind: type[Any]) -> list[Any]:
        assert self.ended.wait(60)
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.all(Token)]


@pytest.fixture
def engine(tokenizer: Tokenizer) -> Iterator[Callable[..., Engine]]:
    engines = []

    def make(*, spec_type: str = "ngram", **options: Any) -> Engine:
        runner = ScriptedRunner(**{"script": repeating, **options})
        one = Engine(lambda: runner, tokenizer, LoadOptions(spec_type=spec_type), name="script")
        engines.append(one)
        return one

    yield make
    for one in engines:
        one.close()


def run(engine: Engine, prompt: list[int], **changes: Any) -> Recorded:
    recorded = Recorded()
    updates = changes.pop("updates", ())
    params = SamplingParams(**{"seed": 0, "max_tokens": 50, **changes})
    engine.submit(Request(prompt, params, updates=updates), recorded)
    return recorded


def test_the_report_counts_drafts_by_their_place(engine: Callable[..., Engine]) -> None:
    recorded = run(engine(), [1, 2, 3])
    timings = recorded.all(Done)[0].timings
    proposed, accepted = timings.draft_n_by_position, timings.draft_n_accepted_by_position
    assert timings.draft_n == sum(proposed) > 0
    assert timings.draft_n_accepted == sum(accepted) > 0
    assert all(a <= p for a, p in zip(accepted, proposed, strict=True))
    assert list(accepted) == sorted(accepted, reverse=True)
    tokens = recorded.all(Token)
    drafts = [(token.id, token.draft) for token in tokens if token.draft is not None]
    assert sum(draft.accepted for _, draft in drafts) == timings.draft_n_accepted
    assert sum(1 + len(draft.discarded) for _, draft in drafts) == timings.draft_n
    assert all((draft.id == id) is draft.accepted for id, draft in drafts)
    assert any(draft.discarded for _, draft in drafts)


def test_without_speculation_nothing_is_drafted(engine: Callable[..., Engine]) -> None:
    recorded = run(engine(spec_type="none"), [1, 2, 3])
    assert recorded.all(Done)[0].timings.draft_n == 0
    assert all(token.draft is None for token in recorded.all(Token))


def test_a_stop_string_inside_accepted_drafts_ends_the_text(
    engine: Callable[..., Engine],
) -> None:
    """Byte 5 is no printable character, so the script writes letters here."""
    one = engine(script=lambda ids: 97 + len(ids) % 6)
    plain = engine(spec_type="none", script=lambda ids: 97 + len(ids) % 6)
    for stop in ("c", "de", "fabc"):
        wanted, found = (run(e, [97, 98], stop=(stop,)) for e in (plain, one))
        assert found.all(Done)[0].reason == "stop"
        assert found.ids == wanted.ids


def test_a_text_that_ended_inside_drafts_is_continued_from_the_cache(
    engine: Callable[..., Engine],
) -> None:
    """The end token took the place of a draft whose keys are in the cache: they are not matched.
    `ScriptedRunner` checks that every block holds the text that is read from it."""
    script = lambda ids: 0 if len(ids) == 40 else 1 + len(ids) % 6  # noqa: E731
    one = engine(script=script)
    first = run(one, [1, 2, 3])
    assert first.all(Done)[0].reason == "eos"
    text = [1, 2, 3, *first.ids]
    again = run(one, [*text, 7, 8], max_tokens=5)
    assert again.all(Done)[0].timings.cache_n <= len(text) - 1
    assert again.ids == expected([*text, 7, 8], 5, script)


def test_a_scheduled_update_acts_from_its_token_on(engine: Callable[..., Engine]) -> None:
    updates = tuple(ScheduledUpdate(index, {"temperature": 0.5}) for index in (11, 12, 30))
    recorded = run(engine(), [1, 2, 3], updates=updates)
    assert [updated.index for updated in recorded.all(Updated)] == [11, 12, 30]


def test_a_scheduled_update_waits_for_drafts_that_may_be_rejected(
    engine: Callable[..., Engine],
) -> None:
    """The step before it verifies drafts up to its token. If one is rejected, the tokens that take
    their places are still drawn with the old setting."""
    one = engine(context=100)
    due = {index: round(0.1 + index / 100, 2) for index in range(5, 90, 3)}
    updates = tuple(ScheduledUpdate(i, {"temperature": t}) for i, t in due.items())
    run(one, [1, 2, 3], max_tokens=90, temperature=0.0, updates=updates).all(Done)
    runner: Any = one._thread.runner
    drawn = {s.index: s.temperature for step in runner.steps for s in step.samples}
    in_force = [due.get(i - (i - 5) % 3, 0.0) for i in range(90)]
    assert [drawn[i] for i in range(90)] == in_force


def test_an_update_amid_drafts_names_the_first_token_it_acts_on(
    engine: Callable[..., Engine],
) -> None:
    """Every token from the one named on is drawn with the new setting, and none before it. A text
    beside, which nobody can guess, keeps steps in flight."""

    def script(ids: list[int]) -> int:
        return repeating(ids) if ids[0] == 1 else 1 + len(ids) * len(ids) % 251

    one = engine(script=script, context=600, n_blocks=80)
    runner: Any = one._thread.runner
    recorded = Recorded()
    asked: dict[float, Future[int]] = {}

    def on_event(event: Event) -> None:
        """Ask after every fourth token of the text beside: as three steps are in flight, every
        third would find the drafts of the other text always in the same place."""
        if isinstance(event, Token) and event.index % 4 == 0 and len(recorded.events) < 400:
            temperature = 0.1 + 0.001 * event.index
            asked[temperature] = going.start_update(temperature=temperature)

    params = SamplingParams(seed=0, max_tokens=500, temperature=1.0)
    with runner.held():
        one.submit(Request([9], SamplingParams(seed=0, max_tokens=550)), on_event)
        going = one.submit(Request([1, 2, 3], params), recorded)
    slot = 1
    n_written = len(recorded.ids)
    assert len(asked) > 30
    in_force = dict.fromkeys(range(500), 1.0)
    for temperature, first in asked.items():
        in_force |= dict.fromkeys(range(first.result(20), 500), temperature)
    own = [s for step in runner.steps for s in step.samples if s.slot == slot]
    drawn = {s.index: s.temperature for s in own}
    assert any(s.verifies for step in runner.steps for s in step.samples)
    assert [drawn[i] for i in range(n_written)] == [in_force[i] for i in range(n_written)]
