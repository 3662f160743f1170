"""The engine's thread over a scripted runner: order, stops, settings, queue, failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gpu.engine.engine import Engine
from gpu.engine.thread import ENDED_BY_CLOSE
from gpu.errors import ContextExceeded, EngineClosed, EngineError, InvalidRequest, QueueFull
from gpu.events import Accepted, Done, Event, Prefill, Queued, Token, Updated
from gpu.load_options import LoadOptions
from gpu.pace import LEAST_PACE, PaceChange
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def made() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.close()


def make(
    made: list[Engine],
    tokenizer: Tokenizer,
    runner: ScriptedRunner,
    queue: int = 2,
    prefix_cache: bool = True,
) -> Engine:
    engine = Engine(lambda: runner, tokenizer, LoadOptions(queue=queue, prefix_cache=prefix_cache))
    made.append(engine)
    return engine


class Events:
    """Collects a run's events; `wait` until it is done."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._done = threading.Event()
        self.first_token = threading.Event()

    def __call__(self, event: Event) -> None:
        self.all.append(event)
        if isinstance(event, Token):
            self.first_token.set()
        if isinstance(event, Done):
            self._done.set()

    def wait(self) -> list[Event]:
        assert self._done.wait(20)
        return self.all

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.all if isinstance(e, Token))

    @property
    def ids(self) -> list[int]:
        return [e.id for e in self.all if isinstance(e, Token)]


def spell(text: str) -> ScriptedRunner:
    """A runner that writes `text` byte by byte after a one-token prompt, then 0s."""
    data = text.encode()
    return ScriptedRunner(lambda ids: data[len(ids) - 1] if len(ids) <= len(data) else 0)


def test_the_text_is_what_the_model_predicts(made, tokenizer):
    run = make(made, tokenizer, ScriptedRunner()).generate([5, 6], SamplingParams(max_tokens=30))
    assert [t.id for t in run] == expected([5, 6], 30)
    assert run.done is not None
    assert run.done.reason == "length"
    assert run.done.completion_tokens == 30


def test_a_long_prompt_runs_in_pieces_and_reports_them(made, tokenizer):
    runner = ScriptedRunner(max_rows=16)
    events = Events()
    prompt = [1 + i % 200 for i in range(50)]
    make(made, tokenizer, runner).submit(Request(prompt, SamplingParams(max_tokens=5)), events)
    done = [e.done for e in events.wait() if isinstance(e, Prefill)]
    assert done == [16, 32, 48, 50]
    assert max(len(step.rows) for step in runner.steps) <= 16
    assert events.ids == expected(prompt, 5)


@pytest.mark.parametrize(("prefix_cache", "n_found"), [(True, 49), (False, 0)])
def test_the_cached_part_of_a_prompt_is_reported(made, tokenizer, prefix_cache, n_found):
    engine = make(made, tokenizer, ScriptedRunner(), prefix_cache=prefix_cache)
    prompt, told = [1 + i % 200 for i in range(50)], []
    for _ in range(2):
        events = Events()
        engine.submit(Request(prompt, SamplingParams(max_tokens=5)), events)
        pieces = [e for e in events.wait() if isinstance(e, Prefill)]
        done = events.all[-1]
        assert isinstance(done, Done)
        assert events.ids == expected(prompt, 5)
        assert (done.prompt_tokens, pieces[-1].done, pieces[-1].total) == (50, 50, 50)
        told.append(({p.reused for p in pieces}, done.timings.cache_n, done.timings.prompt_n))
    assert told == [({0}, 0, 50), ({n_found}, n_found, 50 - n_found)]


def test_a_prompt_cancelled_in_the_queue_was_neither_found_nor_computed(made, tokenizer):
    runner = ScriptedRunner(n_slots=1)
    engine = make(made, tokenizer, runner)
    first, second = Events(), Events()
    with runner.held():
        engine.submit(Request([1, 2, 3], SamplingParams(max_tokens=30)), first)
        engine.submit(Request([1, 2, 3], SamplingParams(max_tokens=30)), second).cancel()
    done = second.wait()[-1]
    assert isinstance(done, Done)
    timings = done.timings
    assert (timings.cache_n, timings.prompt_n, timings.prompt_per_second) == (0, 0, 0)
    assert done.prompt_tokens == 3
    first.wait()


def test_runs_share_steps_and_stay_what_they_are_alone(made, tokenizer):
    runner = ScriptedRunner(n_slots=2)
    engine = make(made, tokenizer, runner)
    with runner.held():
        runs = [engine.generate([p, p + 1], SamplingParams(max_tokens=25)) for p in (3, 90)]
    assert [[t.id for t in run] for run in runs] == [expected([p, p + 1], 25) for p in (3, 90)]
    assert any(len(step.samples) == 2 for step in runner.steps)


def test_eos_ends_and_is_marked(made, tokenizer):
    events = Events()
    make(made, tokenizer, spell("hi")).submit(Request([7], SamplingParams(max_tokens=9)), events)
    last = events.wait()[-1]
    assert isinstance(last, Done)
    assert (events.text, last.reason) == ("hi", "eos")
    assert [e.eos for e in events.all if isinstance(e, Token)] == [False, False, True]


def test_steps_submitted_past_the_end_are_discarded(made, tokenizer):
    runner = spell("hi")
    engine = make(made, tokenizer, runner)
    list(engine.generate([7], SamplingParams(max_tokens=40)))
    assert [t.id for t in engine.generate([7], SamplingParams(max_tokens=40))] == [*b"hi", 0]


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("twx", " th"), "one two"),
        ("aab", ("ab",), "a"),
        ("never", ("stop",), "never"),
        ("ends with sto", ("stop",), "ends with sto"),
    ],
)
def test_stop_strings_are_never_shown_in_part(made, tokenizer, text, stop, shown):
    events = Events()
    engine = make(made, tokenizer, spell(text))
    engine.submit(Request([7], SamplingParams(max_tokens=40, stop=stop)), events)
    last = events.wait()[-1]
    assert isinstance(last, Done)
    assert events.text == shown
    assert last.reason == ("eos" if shown == text else "stop")


def test_half_a_character_is_never_shown(made, tokenizer):
    events = Events()
    make(made, tokenizer, spell("a😀é")).submit(Request([7], SamplingParams(max_tokens=20)), events)
    events.wait()
    assert [e.text for e in events.all if isinstance(e, Token)] == [
        "a",
        "",
        "",
        "",
        "😀",
        "",
        "é",
        "",
    ]


def test_max_tokens_inside_a_character_shows_the_replacement(made, tokenizer):
    run = make(made, tokenizer, spell("a😀")).generate([7], SamplingParams(max_tokens=3))
    assert [t.text for t in run] == ["a", "", "�"]


def test_a_full_context_ends_the_run(made, tokenizer):
    runner = ScriptedRunner(context=32)
    run = make(made, tokenizer, runner).generate([1] * 20, SamplingParams(max_tokens=500))
    assert [t.id for t in run] == expected([1] * 20, 13)
    assert run.done is not None
    assert run.done.reason == "context"


def test_cancel_keeps_what_was_written(made, tokenizer):
    events = Events()
    runner = ScriptedRunner()
    engine = make(made, tokenizer, runner)
    with runner.held(after=3):
        run = engine.submit(Request([9], SamplingParams(max_tokens=60)), events)
        assert events.first_token.wait(10)
        run.cancel()
    last = events.wait()[-1]
    assert isinstance(last, Done)
    assert last.reason == "cancelled"
    assert events.ids == expected([9], last.completion_tokens)
    run.cancel()


def test_an_update_names_the_first_token_it_acts_on(made, tokenizer):
    runner = ScriptedRunner()
    engine = make(made, tokenizer, runner)
    events = Events()
    with runner.held(after=3):
        run = engine.submit(Request([9], SamplingParams(max_tokens=50, temperature=0.5)), events)
        assert events.first_token.wait(10)
        asked = run.start_update(temperature=1.5)
    index = asked.result(20)
    events.wait()
    acknowledged = [e for e in events.all if isinstance(e, Updated)]
    assert [e.index for e in acknowledged] == [index]
    temperatures = [s.temperature for step in runner.steps for s in step.samples]
    assert temperatures == [0.5] * index + [1.5] * (50 - index)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": 4}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_bad_update_changes_nothing(made, tokenizer, changes, param):
    runner = ScriptedRunner()
    engine = make(made, tokenizer, runner)
    with runner.held():
        run = engine.generate([9], SamplingParams(max_tokens=30))
        asked = run.start_update(**changes)
    with pytest.raises(InvalidRequest) as error:
        asked.result(20)
    assert error.value.param == param
    assert [t.id for t in run] == expected([9], 30)


def test_an_update_after_the_end_says_so(made, tokenizer):
    run = make(made, tokenizer, ScriptedRunner()).generate([9], SamplingParams(max_tokens=2))
    list(run)
    with pytest.raises(InvalidRequest, match="has ended"):
        run.update(temperature=1.0)


def test_lowering_max_tokens_below_what_was_written_ends_the_run(made, tokenizer):
    runner = ScriptedRunner()
    engine = make(made, tokenizer, runner)
    events = Events()
    with runner.held(after=3):
        run = engine.submit(Request([9], SamplingParams(max_tokens=60)), events)
        assert events.first_token.wait(10)
        run.start_update(max_tokens=1)
    last = events.wait()[-1]
    assert isinstance(last, Done)
    assert last.reason == "length"


def test_runs_beyond_the_slots_wait_in_order_and_hear_their_place(made, tokenizer):
    runner = ScriptedRunner(n_slots=1)
    engine = make(made, tokenizer, runner, queue=2)
    events = [Events() for _ in range(3)]
    with runner.held():
        for i, sink in enumerate(events):
            engine.submit(Request([i + 1], SamplingParams(max_tokens=10)), sink)
        with pytest.raises(QueueFull, match="3 requests"):
            engine.submit(Request([4], SamplingParams(max_tokens=10)), Events())
    for sink in events:
        sink.wait()
    assert [e.position for s in events for e in s.all if isinstance(e, Accepted)] == [0, 1, 2]
    assert [e.position for e in events[2].all if isinstance(e, Queued)] == [1]
    assert [s.ids for s in events] == [expected([i + 1], 10) for i in range(3)]


def test_a_waiting_run_can_be_cancelled(made, tokenizer):
    runner = ScriptedRunner(n_slots=1)
    engine = make(made, tokenizer, runner)
    first, second = Events(), Events()
    with runner.held():
        engine.submit(Request([1], SamplingParams(max_tokens=30)), first)
        engine.submit(Request([2], SamplingParams(max_tokens=30)), second).cancel()
    last = second.wait()[-1]
    assert isinstance(last, Done)
    assert (last.reason, second.ids) == ("cancelled", [])
    first.wait()
    assert first.ids == expected([1], 30)


def test_runs_wait_until_the_cache_can_hold_their_prompts(made, tokenizer):
    runner = ScriptedRunner(n_slots=2, n_blocks=4, delay=0.001)
    engine = make(made, tokenizer, runner)
    prompts = [[i + 1] * 40 for i in range(2)]
    runs = [engine.generate(prompt, SamplingParams(max_tokens=20)) for prompt in prompts]
    assert [[t.id for t in run] for run in runs] == [expected(prompt, 20) for prompt in prompts]
    assert all(len(step.samples) <= 1 for step in runner.steps)


def test_max_tokens_may_be_raised_past_what_the_cache_holds_now(made, tokenizer):
    engine = make(made, tokenizer, ScriptedRunner(n_slots=2, n_blocks=4))
    sinks = [Events(), Events()]
    runs = [
        engine.submit(Request([i + 1], SamplingParams(max_tokens=30), pace=LEAST_PACE), sink)
        for i, sink in enumerate(sinks)
    ]
    assert all(sink.first_token.wait(10) for sink in sinks)
    runs[0].update(max_tokens=50)
    for run in runs:
        run.update(pace=PaceChange(None))
    for i, (sink, n) in enumerate(zip(sinks, (50, 30), strict=True)):
        sink.wait()
        assert sink.ids == expected([i + 1], n)


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([], InvalidRequest, None),
        ([256], InvalidRequest, None),
        ([-1], InvalidRequest, None),
        ([1.5], InvalidRequest, None),
        ([True], InvalidRequest, None),
        ([1] * 64, ContextExceeded, "by at least 1 token or"),
        ([1] * 65, ContextExceeded, "by at least 2 tokens or"),
    ],
)
def test_bad_prompts_are_refused_at_once(made, tokenizer, ids, error, words):
    engine = make(made, tokenizer, ScriptedRunner())
    with pytest.raises(error, match=words):
        engine.submit(Request(ids, SamplingParams()))
    assert [t.id for t in engine.generate([3], SamplingParams(max_tokens=4))] == expected([3], 4)


def test_logits_are_computed_while_every_slot_writes(made, tokenizer):
    runner = ScriptedRunner(n_slots=1, n_blocks=5, delay=0.002)
    engine = make(made, tokenizer, runner)
    events = Events()
    engine.submit(Request([9] * 20, SamplingParams(max_tokens=40)), events)
    assert events.first_token.wait(10)
    ids = [9] * 20 + expected([9] * 20, 1)
    logits = engine.logits(ids)
    assert logits.argmax(-1).tolist() == [expected(ids[: i + 1], 1)[0] for i in range(21)]
    events.wait()
    assert events.ids == expected([9] * 20, 40)


def test_logits_are_refused_while_runs_have_every_block(made, tokenizer):
    engine = make(made, tokenizer, ScriptedRunner(n_slots=1, n_blocks=4))
    events = Events()
    run = engine.submit(Request([9] * 45, SamplingParams(max_tokens=17), pace=LEAST_PACE), events)
    assert events.first_token.wait(10)
    with pytest.raises(QueueFull, match="no KV cache is free"):
        engine.logits([1] * 33)
    run.update(pace=PaceChange(None))
    events.wait()
    assert engine.logits([1] * 33).shape == (33, 256)


def test_the_same_seed_is_passed_on_and_a_missing_one_is_drawn(made, tokenizer):
    runner = ScriptedRunner()
    engine = make(made, tokenizer, runner)
    events = Events()
    list(engine.generate([3], SamplingParams(max_tokens=3, seed=2**63)))
    assert {s.seed for step in runner.steps for s in step.samples} == {2**63}
    assert [s.index for step in runner.steps for s in step.samples][:3] == [0, 1, 2]
    engine.submit(Request([3], SamplingParams(max_tokens=3)), events)
    accepted = events.wait()[0]
    assert isinstance(accepted, Accepted)
    assert accepted.params.seed is not None


def test_a_failing_device_ends_the_runs_with_the_reason(made, tokenizer):
    engine = make(made, tokenizer, ScriptedRunner(fail_at=5))
    run = engine.generate([3], SamplingParams(max_tokens=40))
    with pytest.raises(EngineError, match="scripted failure"):
        list(run)
    engine._thread.join(10)
    with pytest.raises(EngineClosed, match="scripted failure"):
        engine.submit(Request([3]))


def test_close_ends_running_and_waiting_runs(made, tokenizer):
    runner = ScriptedRunner(n_slots=1)
    engine = make(made, tokenizer, runner)
    events = [Events(), Events()]
    for sink in events:
        engine.submit(Request([3], SamplingParams(max_tokens=60), pace=LEAST_PACE), sink)
    engine.close()
    assert runner.closed
    ends = [(e.reason, e.message) for s in events for e in s.wait() if isinstance(e, Done)]
    assert ends == [("error", ENDED_BY_CLOSE)] * 2
    with pytest.raises(EngineClosed):
        engine.submit(Request([3]))


def test_warms_up_while_idle_and_serves_all_the_same(tokenizer):
    runner = ScriptedRunner()
    engine = Engine(lambda: runner, tokenizer, LoadOptions(warm_up=True))
    deadline = time.monotonic() + 10
    while runner.warmed < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [t.id for t in engine.generate([3], SamplingParams(max_tokens=4))] == expected([3], 4)
    engine.close()
    assert runner.warmed == 3


def test_loading_errors_reach_the_caller(tokenizer):
    def fail() -> ScriptedRunner:
        raise RuntimeError("no such device")

    with pytest.raises(RuntimeError, match="no such device"):
        Engine(fail, tokenizer)


def test_a_setting_that_there_is_none_of_is_named():
    with pytest.raises(TypeError, match="'kv_type'"):
        Engine.load("a folder", kv_type="q8")


@pytest.mark.parametrize(("limits", "reason"), [((13, 64), "length"), ((40, 13), "context")])
def test_text_held_for_a_stop_string_is_shown_at_a_limit(made, tokenizer, limits, reason):
    max_tokens, context = limits
    runner = ScriptedRunner(lambda ids: b"ends with stone"[len(ids) - 1], context=context)
    events = Events()
    params = SamplingParams(max_tokens=max_tokens, stop=("stop",))
    make(made, tokenizer, runner).submit(Request([7], params), events)
    last = events.wait()[-1]
    assert isinstance(last, Done)
    assert last.reason == reason
    assert (events.text, len(events.ids)) == ("ends with sto", 13)
