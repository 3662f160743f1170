"""Runs that outgrow the KV cache: the last gives way, and writes the same in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.engine.engine import Engine
from gpu.engine.sequence import Sequence
from gpu.events import Done, Event, Prefill, Queued, Token
from gpu.interventions.active import ActiveInterventions
from gpu.interventions.messages import Interventions, LayerFactor
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.step import Step
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.interventions.hand import ManualEngine


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Callable[..., ManualEngine]:
    def make(*, prefix_cache: bool = True, **options: Any) -> ManualEngine:
        return ManualEngine(ScriptedRunner(**options), tokenizer, prefix_cache=prefix_cache)

    return make


def preempted(hand: ManualEngine, *sequences: Sequence) -> Sequence:
    """Advance until one of the sequences is preempted; return it."""
    hand.until(lambda: any(s.n_preemptions for s in sequences))
    return next(s for s in sequences if s.n_preemptions)


def test_the_last_gives_way_and_goes_on_when_there_is_room(
    hand: Callable[..., ManualEngine],
) -> None:
    """Each may come to 4 blocks, and there are 5."""
    one = hand(n_slots=3, n_blocks=5)
    first, second = one.start([1] * 10, 50), one.start([2] * 10, 50)
    last = preempted(one, first, second)
    assert last is second
    assert one.scheduler.waiting == [second]
    assert (first.n_preemptions, second.tables) == (0, [])
    one.check_owners()
    one.finish(first)
    assert not second.finished
    one.finish(second)
    assert (len(first.ids), len(second.ids)) == (60, 60)  # `release` compared them with the script


def test_what_the_prefix_cache_still_has_is_not_computed_again(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(n_slots=2, n_blocks=5)
    first, second = one.start([1] * 10, 50), one.start([2] * 10, 50)
    preempted(one, first, second)
    one.finish(first)
    one.until(lambda: not second.prefilling)
    assert 0 < second.prefill.n_matched < second.prefill.n_known
    assert second.prefill.n_known > len(second.prompt)
    assert second.prefill.n_reused == 0, "reports are about its start"
    one.finish(second)


def test_a_run_waits_until_its_prompt_fits_beside_those_that_run(
    hand: Callable[..., ManualEngine],
) -> None:
    one = hand(n_slots=2, n_blocks=5)
    first, second = one.start([1] * 40, 5), one.start([2] * 40, 5)
    one.until(lambda: first.text.n_written > 0)
    assert one.scheduler.waiting == [second], "2 blocks are free, and it needs 3"
    one.finish(first)
    one.finish(second)


def test_a_prompt_gives_way_too(hand: Callable[..., ManualEngine]) -> None:
    """It is admitted while the first is short, and is not done when that one needs its blocks."""
    one = hand(n_slots=2, n_blocks=5, max_rows=4)
    first = one.start([1] * 3, 60)
    one.until(lambda: first.text.n_written > 5)
    second = one.start([2] * 40, 5)
    one.until(lambda: second.prefill.n_done > 0)
    one.finish(first, second)
    assert len(second.ids) == 45


def test_a_run_that_ends_while_it_gives_way_does_not_come_back(
    hand: Callable[..., ManualEngine],
) -> None:
    """All its tokens were submitted when its blocks were taken, and are read afterwards."""
    one = hand(n_slots=2, n_blocks=4)
    first, second = one.start([1] * 16, 40), one.start([2] * 16, 15)
    one.until(lambda: second.decoding.n_submitted == 15 and second.text.n_written < 15)
    one.scheduler._preempt(second)
    assert one.scheduler.waiting == [second]
    one.until(lambda: second.finished)
    assert one.scheduler.waiting == []
    one.finish(first)
    assert len(second.ids) == 31


def test_a_run_that_gave_way_can_be_cancelled(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=2, n_blocks=5)
    first, second = one.start([1] * 10, 50), one.start([2] * 10, 50)
    preempted(one, first, second)
    one.cancel(second)
    one.finish(first)
    one.check_owners()
    assert set(one.scheduler.kv_state().owners) == {0}


def test_runs_are_served_by_priority_and_then_in_order(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=1, n_blocks=8)
    first = one.start([9], 20)
    one.until(lambda: first.text.n_written > 2)
    started = [one.start([i + 1], 3, priority=p) for i, p in enumerate((1, 0, 1, -5, 0))]
    places = [one.scheduler.waiting.index(sequence) for sequence in started]
    assert places == [3, 1, 4, 0, 2]
    one.finish(first, *started)


def test_the_least_urgent_gives_way_whenever_it_came(hand: Callable[..., ManualEngine]) -> None:
    one = hand(n_slots=2, n_blocks=5)
    first = one.start([1] * 10, 50, priority=2)
    second = one.start([2] * 10, 50, priority=1)
    assert preempted(one, first, second) is first
    one.finish(first, second)


class Log:
    """Events of one run."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._done = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Done):
            self._done.set()

    def wait(self) -> None:
        assert self._done.wait(20)


def test_the_client_sees_a_pause_and_every_prompt_token_once(tokenizer: Tokenizer) -> None:
    runner = ScriptedRunner(n_slots=2, n_blocks=5)
    engine = Engine(lambda: runner, tokenizer)
    logs = [Log(), Log()]
    try:
        with runner.held():
            for i, log in enumerate(logs):
                params = SamplingParams(max_tokens=50)
                engine.submit(Request([i + 1] * 10, params, capture=True), log)
        for log in logs:
            log.wait()
    finally:
        engine.close()
    for i, log in enumerate(logs):
        tokens = [e for e in log.events if isinstance(e, Token)]
        assert [t.id for t in tokens] == expected([i + 1] * 10, 50)
        prefilled = [e.done for e in log.events if isinstance(e, Prefill)]
        assert prefilled == sorted(set(prefilled))
        assert prefilled[-1] == 10
        done = log.events[-1]
        assert isinstance(done, Done)
        assert (done.timings.prompt_n, done.timings.predicted_n) == (10, 50)
    places = [e.position for e in logs[1].events if isinstance(e, Queued)]
    assert places == [1, 0], "it waits, then goes on"
    assert not [e for e in logs[0].events if isinstance(e, Queued)]


class SlotRunner(ScriptedRunner):
    """Notes for every row whose it is, by the first id of its text, and what acts on it. A slot
    begins without interventions, as on a device."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.acted: list[tuple[int, int, bytes]] = []  # first id, position, digest
        self._slots: dict[int, tuple[int, bytes]] = {}

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int = 0) -> None:
        super().begin_slot(slot, tokens, n_written)
        self._slots[slot] = (int(tokens[0]), b"")

    def set_interventions(self, slot: int, active: ActiveInterventions | None) -> None:
        self._slots[slot] = (self._slots[slot][0], active.digest if active else b"")

    def submit(self, step: Step) -> None:
        for row in step.rows:
            first, digest = self._slots[row.slot]
            self.acted.append((first, row.position, digest))
        super().submit(step)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_interventions_act_on_what_is_computed_again(
    tokenizer: Tokenizer, prefix_cache: bool
) -> None:
    """Another slot knows nothing of them, so they are set again; they switch on at token 5."""
    runner = SlotRunner(n_slots=2, n_blocks=5)
    engine = Engine(lambda: runner, tokenizer, LoadOptions(prefix_cache=prefix_cache))
    off = Interventions(mlp=(LayerFactor(0, 0.0),))
    digest = ActiveInterventions(mlp={0: 0.0}).digest
    logs = [Log(), Log()]
    params = SamplingParams(max_tokens=50)
    change = ScheduledUpdate(5, {}, interventions=off)
    try:
        with runner.held():
            engine.submit(Request([1] * 10, params), logs[0])
            engine.submit(Request([2] * 10, params, updates=(change,)), logs[1])
        for log in logs:
            log.wait()
    finally:
        engine.close()
    assert [e.position for e in logs[1].events if isinstance(e, Queued)] == [1, 0]
    assert prefix_cache or len(runner.acted) > 2 * 60, "some rows were computed twice"
    for first, position, found in runner.acted:
        assert found == (digest if first == 2 and position >= 14 else b"")


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_many_runs_in_a_small_cache_all_end(tokenizer: Tokenizer, prefix_cache: bool) -> None:
    runner = ScriptedRunner(n_slots=16, n_blocks=9, max_rows=32)
    hand = ManualEngine(runner, tokenizer, prefix_cache=prefix_cache)
    runs = [
        hand.start([1 + i % 5] * (1 + 3 * i % 20), 40, frequency_penalty=i % 2) for i in range(24)
    ]
    hand.finish(*runs)
    assert hand.scheduler.n_preemptions > 0
    assert {len(run.ids) - len(run.prompt) for run in runs} == {40}
    assert set(hand.scheduler.kv_state().owners) == {0}
