"""Runs with a grammar: their order in the queue of steps, their ends, and texts of a real model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from gpu.engine.engine import Engine
from gpu.errors import EngineError, InvalidRequest
from gpu.events import Done, Token
from gpu.grammar import Grammar
from gpu.inspection.requests import Waterfall
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.text.grammar_matcher import MAX_STEP_ITEMS, GrammarCompiler
from gpu.text.grammar_vocabulary import GrammarVocabulary
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer
from tests.gpu.engine.test_pace import Paced

MODEL = Path(__file__).parents[3] / "app" / "tale" / "model"
EOS = 0
"""End token of `ScriptedRunner`, whose other tokens are bytes."""


def written(engine: Engine, request: Request) -> tuple[list[Token], Done]:
    run = engine.submit(request)
    tokens = list(run)
    assert run.done is not None
    return tokens, run.done


def text_of(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


# ---- over a scripted runner ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def open_engine(tokenizer: Tokenizer) -> Iterator[Any]:
    engines: list[Engine] = []

    def start(runner: ScriptedRunner, **options: Any) -> Engine:
        engines.append(Engine(lambda: runner, tokenizer, LoadOptions(**options)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def test_the_text_ends_when_nothing_may_follow(open_engine: Any) -> None:
    """No end token is needed; the script would go on."""
    request = Request([7], SamplingParams(max_tokens=30), grammar=Grammar("regex", "abc"))
    tokens, done = written(open_engine(ScriptedRunner()), request)
    assert (text_of(tokens), done.reason, done.completion_tokens) == ("abc", "stop", 3)
    assert [token.allowed.n for token in tokens] == [1, 1, 1]


def test_a_complete_text_is_not_cut_by_a_limit_that_it_reaches(open_engine: Any) -> None:
    engine = open_engine(ScriptedRunner())
    for n, reason in ((3, "stop"), (2, "length")):
        params = SamplingParams(max_tokens=n)
        _, done = written(engine, Request([7], params, grammar=Grammar("regex", "abc")))
        assert done.reason == reason


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_model_may_end_a_text_that_may_end(open_engine: Any, ignore_eos: bool) -> None:
    engine = open_engine(ScriptedRunner(lambda ids: ord("a") if len(ids) < 4 else EOS))
    params = SamplingParams(max_tokens=30, ignore_eos=ignore_eos)
    tokens, done = written(engine, Request([7], params, grammar=Grammar("regex", "a*")))
    assert text_of(tokens) == "aaa"
    assert (done.reason, tokens[-1].id, tokens[-1].eos) == ("eos", EOS, True)


def test_other_runs_stay_ahead_of_what_is_read(open_engine: Any) -> None:
    """Only a run with a grammar waits for each of its tokens."""
    runner = ScriptedRunner()
    engine = open_engine(runner)
    params = SamplingParams(max_tokens=40)
    with runner.held():
        free = engine.submit(Request([5], params))
        bound = engine.submit(Request([9], params, grammar=Grammar("regex", "[a-z]+")))
    assert (len(list(free)), len(list(bound))) == (40, 40)
    kinds = [{sample.n_allowed > 0 for sample in step.samples} for step in runner.steps]
    pairs = list(itertools.pairwise(kinds))
    assert {True, False} in kinds
    assert not any(True in now and after == {True, False} for now, after in pairs)
    assert sum(False in now and False in after for now, after in pairs) >= 35


def test_a_run_with_a_grammar_has_no_drafts(open_engine: Any) -> None:
    runner = ScriptedRunner(lambda ids: ord("a"))
    engine = open_engine(runner, spec_type="ngram")
    written(engine, Request([7], SamplingParams(max_tokens=20), grammar=Grammar("regex", "a+b")))
    assert not any(sample.verifies for step in runner.steps for sample in step.samples)
    written(engine, Request([7], SamplingParams(max_tokens=20)))
    assert any(sample.verifies for step in runner.steps for sample in step.samples)


def test_a_preempted_run_goes_on_where_its_grammar_was(open_engine: Any) -> None:
    runner = ScriptedRunner(n_blocks=4, n_slots=2)
    engine = open_engine(runner)
    grammar = Grammar("regex", "[a-y]{39}z")
    requests = [
        Request([7 + i] * 8, SamplingParams(max_tokens=50), grammar=grammar) for i in range(2)
    ]
    with runner.held():
        runs = [engine.submit(request) for request in requests]
    assert [len(list(run)) for run in runs] == [40] * 2
    assert [run.done and run.done.reason for run in runs] == ["stop"] * 2
    assert engine.stats.n_preemptions > 0


def test_a_grammar_that_stops_fitting_ends_the_run_with_its_reason(open_engine: Any) -> None:
    """No token is U+0000: its byte is the end token."""
    grammar = Grammar("regex", "a\\x00b")
    run = open_engine(ScriptedRunner()).submit(Request([7], grammar=grammar))
    with pytest.raises(EngineError, match="the model has no token that may come next"):
        assert [token.text for token in run] == ["a"]


def test_bad_grammars_are_refused_and_leave_their_place_free(open_engine: Any) -> None:
    engine = open_engine(ScriptedRunner(n_slots=1), queue=0)
    for grammar in (Grammar("regex", "["), Grammar("regex", "a", n_read=9)):
        with pytest.raises(InvalidRequest) as error:
            engine.submit(Request([7], grammar=grammar))
        assert error.value.param == "grammar"
    tokens, _ = written(engine, Request([7], SamplingParams(max_tokens=3)))
    assert len(tokens) == 3


# ---- a real model -------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["fox", "owl", "bear"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    found = {
        backend: Engine.load(MODEL, LoadOptions(backend=backend, dtype="f32", slots=4, context=512))
        for backend in ("wgpu", "torch")
    }
    yield found
    for engine in found.values():
        engine.close()


def story(engine: Engine, **settings: Any) -> Request:
    ids = engine.tokenizer.encode("Once upon a time, there was")
    settings = {"temperature": 1.5, "max_tokens": 250, **settings}
    return Request(ids, SamplingParams(**settings), grammar=GRAMMAR)


@pytest.mark.parametrize("backend", ["wgpu", pytest.param("torch", marks=pytest.mark.slow)])
def test_every_text_follows_its_schema(engines: dict[str, Engine], backend: str) -> None:
    engine = engines[backend]
    shapes: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.3}, {"top_p": 0.5, "top_k": 40}]
    requests = [story(engine, seed=seed, **shapes[seed % 3]) for seed in range(12)]
    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda request: written(engine, request), requests))
    n_valid = 0
    for tokens, done in texts:
        if done.reason != "length":
            jsonschema.validate(json.loads(text_of(tokens)), SCHEMA)
            n_valid += 1
    assert n_valid >= 10
    assert len({text_of(tokens) for tokens, _ in texts}) > 6


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_both_backends_write_the_same(engines: dict[str, Engine], temperature: float) -> None:
    texts = []
    for engine in engines.values():
        tokens, _ = written(engine, story(engine, seed=3, temperature=temperature, max_tokens=30))
        texts.append([(t.id, t.n_kept, t.allowed.n) for t in tokens])
        for token in tokens:
            assert len(token.candidates) <= token.allowed.n
            assert token.n_kept <= token.allowed.n
            assert sum(token.mass) == pytest.approx(1, abs=1e-5)
    assert texts[0] == texts[1]


def test_an_earlier_run_is_continued_under_its_grammar(engines: dict[str, Engine]) -> None:
    engine = engines["wgpu"]
    whole, _ = written(engine, story(engine, seed=5))
    n = len(whole) // 2
    first = story(engine, seed=5)
    ids = [*first.ids, *(token.id for token in whole[:n])]
    resumed = msgspec.structs.replace(first, ids=ids, n_written=n)
    params = msgspec.structs.replace(first.params, first_index=n)
    again = msgspec.structs.replace(first, ids=ids, params=params, grammar=GRAMMAR.after(n))
    for request in (resumed, again):
        rest, _ = written(engine, request)
        assert [token.id for token in rest] == [token.id for token in whole[n:]]


def test_the_filters_of_a_token_are_those_of_its_run(engines: dict[str, Engine]) -> None:
    engine, request = engines["wgpu"], story(engines["wgpu"], seed=9, max_tokens=12)
    tokens, _ = written(engine, request)
    ids, n = [*request.ids, *(token.id for token in tokens)], len(request.ids)
    for at in (0, 5, 11):
        question = Waterfall(
            ids[: n + at],
            n + at - 1,
            request.params,
            index=at,
            grammar=GRAMMAR.after(at),
        )
        info = engine.inspect(question).result(60).info
        assert info["chosen"] == tokens[at].id
        assert info["allowed"]["n"] == tokens[at].allowed.n
        assert info["allowed"]["probability"] == pytest.approx(
            tokens[at].allowed.probability, rel=0.01
        )


def test_the_filters_know_that_a_limit_brings_json_to_its_end(engines: dict[str, Engine]) -> None:
    """Of every token of a text in which strings are closed and space between values is masked."""
    engine, n = engines["wgpu"], 40
    free = {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3}
    grammar = Grammar("json_schema", json.dumps(free))
    request = msgspec.structs.replace(story(engine, seed=2, max_tokens=n), grammar=grammar)
    tokens, done = written(engine, request)
    assert done.reason == "length"
    json.loads(text_of(tokens))
    ids = [*request.ids, *(token.id for token in tokens)]
    for at, token in enumerate(tokens):
        upto = len(request.ids) + at
        asked = grammar.after(at)
        question = Waterfall(ids[:upto], upto - 1, request.params, index=at, grammar=asked)
        info = engine.inspect(question).result(60).info
        assert (info["chosen"], info["allowed"]["n"]) == (token.id, token.allowed.n), at


def test_a_limit_that_is_moved_in_a_pause_acts_on_the_next_token(
    engines: dict[str, Engine],
) -> None:
    """Raised where a string is being closed, the next token is drawn from all that may follow, and
    the text, which ends by itself, does not end with the reason of a limit. Lowered, it is the one
    that closes the string. A replay has the same ids."""
    engine = engines["wgpu"]
    request = msgspec.structs.replace(
        story(engine, seed=4, temperature=1.0, max_tokens=40),
        grammar=Grammar("json_schema", '{"type": "string"}'),
    )
    for n_before, limit, reason in ((33, 250, "stop"), (20, 26, "length")):
        paced = Paced(engine, msgspec.structs.replace(request, pace=0.0))
        paced.preview(0)
        paced.press(n_before)
        closes = [paced.preview(n_before).allowed.n == 1]  # the last seven tokens close the string
        index = paced.run.update(max_tokens=limit)
        closes.append(paced.preview(n_before).allowed.n == 1)
        assert closes == [limit > 40, limit < 40]
        ids = paced.end()
        json.loads("".join(token.text for token in paced.of(Token)))
        assert paced.of(Done)[0].reason == reason
        updates = (ScheduledUpdate(index, {"max_tokens": limit}),)
        tokens, _ = written(engine, msgspec.structs.replace(request, updates=updates))
        assert [token.id for token in tokens] == ids


def test_a_run_without_a_grammar_says_nothing_of_one(engines: dict[str, Engine]) -> None:
    engine = engines["wgpu"]
    tokens, _ = written(engine, msgspec.structs.replace(story(engine, max_tokens=3), grammar=None))
    assert all(token.allowed is msgspec.UNSET for token in tokens)


def test_an_ambiguous_grammar_ends_before_its_masks_hold_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each character multiplies the ways to read the text. What ends it here is the number of the
    parser's items: the clock stands still."""
    monkeypatch.setattr("gpu.text.grammar_matcher.time.thread_time", lambda: 0.0)
    tokenizer = Tokenizer.load(MODEL)
    compiler = GrammarCompiler(
        lambda: GrammarVocabulary.of(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    )
    ids = tokenizer.encode("Once upon a time there was a little fox who lived in the wood. " * 4)
    grammar = Grammar("lark", "start: e\ne: e e | C | e e e\nC: /(?s)./", n_read=24)
    matcher = compiler.matcher(grammar, ids[:24])
    for id in ids[24:]:
        if matcher.failure:
            break
        matcher.read(id)
    assert f"Too many items (limit {MAX_STEP_ITEMS}" in matcher.failure
