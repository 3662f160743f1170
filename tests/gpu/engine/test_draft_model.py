"""A draft model beside the large one: its cache follows every text, and no text depends on it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.engine.sequence import Sequence
from gpu.errors import ModelError
from gpu.events import Done, Token
from gpu.grammar import Grammar
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.speculative.draft_length import MAX_DRAFTS, DraftLength
from gpu.step import Step
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import (
    Script,
    ScriptedRunner,
    arithmetic,
    byte_tokenizer,
    expected,
)
from tests.gpu.interventions.hand import ManualEngine


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


class DraftRunner(ScriptedRunner):
    """Runner of a draft model: it may compute again from any place of a text. `ScriptedRunner`
    checks that every cell before a row holds the text of the row, and that penalties count it."""

    def submit(self, step: Step) -> None:
        for row in step.rows:
            self._drafted[row.slot] = 0
        super().submit(step)


def almost(script: Script, wrong: int = 5) -> Script:
    """Return what a draft model guesses: another token at every place that `wrong` divides."""
    return lambda ids: script(ids) if len(ids) % wrong else 7


GUESS = almost(arithmetic)


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Callable[..., ManualEngine]:
    def make(
        script: Script = GUESS, *, n_draft_blocks: int = 12, draft_rows: int = 16, **options: Any
    ) -> ManualEngine:
        n_slots = options.get("n_slots", 2)
        draft = DraftRunner(script, n_slots=n_slots, n_blocks=n_draft_blocks, max_rows=draft_rows)
        return ManualEngine(ScriptedRunner(**options), tokenizer, draft=draft)

    return make


def samples(step: Step) -> int:
    return sum(sample.verifies for sample in step.samples)


def test_a_good_draft_model_saves_most_steps(hand: Callable[..., ManualEngine]) -> None:
    one = hand()
    one.run([1, 2, 3], 60)  # `release` compares the text with the script
    assert len(one.runner.steps) < 25
    assert any(samples(step) == 1 + MAX_DRAFTS for step in one.runner.steps)


def test_a_draft_model_that_is_always_wrong_is_given_up(
    hand: Callable[..., ManualEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a step cost little; a draft, a tenth of a step."""
    one = hand(lambda ids: 7)
    monkeypatch.setattr(one.scheduler, "decode_cost", lambda n: 1.0 + 0.02 * n)
    monkeypatch.setattr(one.draft_model, "_drafting_ms", lambda n: 0.1 * n)
    one.run([1, 2, 3], 60)
    drafted = [i for i, step in enumerate(one.runner.steps) if samples(step)]
    assert 5 < len(drafted) < 20
    assert drafted[5] < 10


def test_a_text_that_does_not_pay_is_not_read(
    hand: Callable[..., ManualEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows cost as much as steps nothing is drafted, and the draft model does nothing."""
    one = hand()
    monkeypatch.setattr(one.scheduler, "decode_cost", float)
    monkeypatch.setattr(one.draft_model, "_drafting_ms", lambda n: 0.1 * n)
    one.run([1 + i % 5 for i in range(20)], 40)
    draft: Any = one.draft_model.runner  # type: ignore[union-attr]
    assert not draft.steps


def test_drafting_stops_where_it_takes_longer_than_it_saves() -> None:
    """All drafts are accepted. Free ones pay, and those that cost as much as a token do not."""
    for ms, pays in ((0.0, True), (0.3, True), (1.0, False)):
        length = DraftLength(lambda n: 1.0 + 0.1 * n, lambda n, ms=ms: n * ms)  # type: ignore[misc]
        for _ in range(40):
            length.learn(3, 3)
        assert (length.choose(MAX_DRAFTS, 0) > 0) is pays


@pytest.mark.parametrize("seed", range(12))
def test_no_interleaving_changes_a_text(hand: Callable[..., ManualEngine], seed: int) -> None:
    """Runs of many lengths beside each other, with too few blocks for all in both caches,
    preempted, cancelled and resized at any time, with and without penalties."""
    draw = random.Random(seed)
    n_draft_blocks = draw.randint(3, 12)
    one = hand(n_slots=3, n_blocks=draw.randint(6, 9), max_rows=12, n_draft_blocks=n_draft_blocks)
    assert one.draft_model is not None
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
        elif action < 0.28 and one.scheduler.active:
            one.scheduler._preempt(draw.choice(one.scheduler.active))
        elif (len(one.in_flight) == one.runner.in_flight or not one.advance()) and one.in_flight:
            one.collect()
    one.finish(*[s for s in alive if not s.finished])
    one.draft_model.read([], None)
    assert one.draft_model.n_free_blocks == n_draft_blocks
    assert sum(map(samples, one.runner.steps)) > 20


def test_texts_whose_unread_tokens_fill_a_step_draft_in_turns(
    hand: Callable[..., ManualEngine],
) -> None:
    """`ScriptedRunner` refuses a step of more rows than it takes."""
    more: dict[str, Any] = {"max_rows": 64, "max_samples": 64, "n_blocks": 24}
    one = hand(n_slots=4, n_draft_blocks=24, draft_rows=10, **more)
    runs = [one.start([1 + i] * 4, 40) for i in range(4)]
    one.finish(*runs)
    draft: Any = one.draft_model.runner  # type: ignore[union-attr]
    assert max(len(step.rows) for step in draft.steps) > 4
    assert sum(map(samples, one.runner.steps)) > 40


def test_a_text_begins_with_what_the_draft_model_has_read(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand()
    prompt = [1 + i % 5 for i in range(40)]
    one.run(prompt, 5)
    draft: Any = one.draft_model.runner  # type: ignore[union-attr]
    before = sum(len(step.rows) for step in draft.steps)
    one.run([*prompt, 9], 5)
    found = sum(len(step.rows) for step in draft.steps)
    assert found - before < 30
    one.run([*prompt, 9], 5, cache_salt="another client")
    assert sum(len(step.rows) for step in draft.steps) - found > 40


def test_a_text_outgrows_the_draft_models_context(hand: Callable[..., ManualEngine]) -> None:
    one = hand(context=200, n_blocks=16, n_draft_blocks=30)
    one.run([1, 2, 3], 120)
    drafted = [step for step in one.runner.steps if samples(step)]
    assert drafted
    assert max(step.context for step in drafted) <= 64  # the draft model's
    assert len(one.runner.steps) > 60


@pytest.fixture
def engine(tokenizer: Tokenizer) -> Iterator[Callable[..., Engine]]:
    engines = []

    def make(draft: ScriptedRunner | None, **options: Any) -> Engine:
        one = Engine(
            lambda: ScriptedRunner(**options),
            tokenizer,
            LoadOptions(),
            make_draft=(lambda target: draft) if draft else None,  # type: ignore[arg-type]
        )
        engines.append(one)
        return one

    yield make
    for one in engines:
        one.close()


def written(engine: Engine, request: Request) -> tuple[list[Token], Done]:
    run = engine.submit(request)
    tokens = list(run)
    assert run.done is not None
    return tokens, run.done


def test_the_report_counts_drafts_and_their_time(engine: Callable[..., Engine]) -> None:
    draft = DraftRunner(almost(arithmetic), delay=0.001)
    one = engine(draft, delay=0.002)
    tokens, done = written(one, Request([1, 2, 3], SamplingParams(seed=0, max_tokens=50)))
    timings = done.timings
    assert [token.id for token in tokens] == expected([1, 2, 3], 50)
    drafts = [token.draft for token in tokens if token.draft is not None]
    assert sum(draft.accepted for draft in drafts) == timings.draft_n_accepted > 20
    assert timings.draft_n == sum(timings.draft_n_by_position) > timings.draft_n_accepted
    assert timings.draft_ms > timings.draft_n // MAX_DRAFTS  # every draft step took a millisecond
    one.close()
    assert draft.closed


def test_a_draft_of_a_token_that_the_model_lacks_is_dropped(
    engine: Callable[..., Engine],
) -> None:
    """The vocabularies of two sizes of a model may be padded differently."""
    one = engine(DraftRunner(lambda ids: 256 + len(ids) % 2 * 100))
    tokens, done = written(one, Request([1, 2, 3], SamplingParams(seed=0, max_tokens=20)))
    assert [token.id for token in tokens] == expected([1, 2, 3], 20)
    assert done.timings.draft_n == 0


def test_a_prompt_with_a_token_that_the_draft_model_lacks_is_read_without_it(
    engine: Callable[..., Engine],
) -> None:
    draft = DraftRunner(GUESS)
    draft.config = dataclasses.replace(draft.config, vocab_size=200)
    prompt = [1, 2, 220, 3]
    tokens, done = written(engine(draft), Request(prompt, SamplingParams(seed=0, max_tokens=20)))
    assert [token.id for token in tokens] == expected(prompt, 20)
    assert done.timings.draft_n == 0
    assert not draft.steps


def test_a_grammar_is_kept_without_drafts(engine: Callable[..., Engine]) -> None:
    draft = DraftRunner(lambda ids: ord("a"))
    request = Request([7], SamplingParams(max_tokens=20), grammar=Grammar("regex", "a+b"))
    tokens, done = written(engine(draft, script=lambda ids: ord("a")), request)
    assert {token.id for token in tokens} == {ord("a")}
    assert done.timings.draft_n == 0
    assert not draft.steps


def test_both_ways_of_drafting_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ModelError, match="choose one"):
        Engine.load(tmp_path, LoadOptions(draft=tmp_path, spec_type="ngram"))
