"""The beam search equals transformers' and an exhaustive one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest
from gpu.inspection.beam import Hypothesis, search
from gpu.inspection.requests import Answer, Beam, Losses, Question
from gpu.load_options import LoadOptions
from gpu.reference.softmax import log_softmax
from gpu.sampling_params import SamplingParams
from gpu.step import Floats
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected
from tests.gpu.models import random_llama

Text = tuple[int, ...]
Model = Callable[[Text], Floats]

# ---- the search alone ------------------------------------------------------------------------

VOCAB = 7


def drawn(seed: int) -> Model:
    """float32 (VOCAB,) logits after a text, drawn for it."""

    @cache
    def logits(ids: Text) -> Floats:
        values: Floats = np.random.default_rng([seed, *ids]).normal(0, 2, VOCAB).astype(np.float32)
        return values

    return logits


def run(model: Model, ids: list[int], **options: Any) -> list[Hypothesis]:
    def after(text: list[int]) -> Generator[None, None, Floats]:
        yield
        return model(tuple(text))[None]

    searching = search(ids, after, **options)
    while True:
        try:
            next(searching)
        except StopIteration as done:
            found: list[Hypothesis] = done.value
            return found


def widest(model: Model, ids: list[int], depth: int, ends: Text) -> dict[Text, float]:
    """Return every text of `depth` tokens, or that ended before, with its log-probability."""
    found: dict[Text, float] = {}
    left: list[tuple[Text, float]] = [((), 0.0)]
    while left:
        text, total = left.pop()
        if len(text) == depth or (text and text[-1] in ends):
            found[text] = total
            continue
        logs = log_softmax(model((*ids, *text)))
        left += [((*text, id), total + float(logs[id])) for id in range(VOCAB)]
    return found


@pytest.mark.parametrize("ends", [(), (3,), (0, 5)])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_that_holds_every_text_finds_the_best_of_all(
    ends: Text, length_penalty: float
) -> None:
    for seed in range(5):
        model = drawn(seed)
        every = widest(model, [1], 3, ends)
        want = sorted(every, key=lambda t: -every[t] / len(t) ** length_penalty)
        options = {"width": VOCAB**3, "depth": 3, "length_penalty": length_penalty}
        found = run(model, [1], end_ids=ends, **options)
        assert [one.ids for one in found] == want
        assert [one.ended for one in found] == [text[-1] in ends for text in want]
        totals = [sum(one.logprobs) for one in found]
        np.testing.assert_allclose(totals, [every[text] for text in want], rtol=1e-12)


def step_by_step(
    model: Model, ids: list[int], width: int, depth: int, ends: Text, penalty: float
) -> list[Text]:
    """Return the result by definition: all extensions of all hypotheses in one list at every
    step."""
    beam: list[tuple[Text, float]] = [((), 0.0)]
    for _ in range(depth):
        grown: list[tuple[Text, float]] = []
        for text, total in beam:
            if text and text[-1] in ends:
                grown.append((text, total))
            else:
                logs = log_softmax(model((*ids, *text)))
                grown += [((*text, id), total + float(logs[id])) for id in range(VOCAB)]
        grown.sort(key=lambda one: one[1] / len(one[0]) ** penalty, reverse=True)
        beam = grown[:width]
    return [text for text, _ in beam]


@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("penalty", [0.0, 0.7, 2.0])
def test_an_ended_text_stays_only_while_it_is_among_the_best(width: int, penalty: float) -> None:
    ended = 0
    for seed in range(20):
        model, ends = drawn(seed), (2, 6)
        want = step_by_step(model, [4, 4], width, 6, ends, penalty)
        options = {"width": width, "depth": 6, "length_penalty": penalty}
        found = run(model, [4, 4], end_ids=ends, **options)
        assert [one.ids for one in found] == want
        ended += sum(one.ended for one in found)
    assert ended > 0


def test_equal_hypotheses_are_ordered_by_their_prefix_and_id() -> None:
    even = np.zeros(VOCAB, np.float32)
    found = run(lambda ids: even, [1], width=3, depth=2)
    assert [one.ids for one in found] == [(0, 0), (0, 1), (0, 2)]


def test_a_beam_of_ended_texts_asks_nothing_more() -> None:
    asked: list[Text] = []

    def ends(ids: Text) -> Floats:
        asked.append(ids)
        return np.array([9, *[0] * (VOCAB - 1)], np.float32)

    found = run(ends, [1], width=1, depth=5, end_ids=(0,))
    assert [(one.ids, one.ended) for one in found] == [((0,), True)]
    assert asked == [(1,)]


# ---- over a model ----------------------------------------------------------------------------

NAMES = ("derived_head", "gqa8")


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def engine(request: pytest.FixtureRequest, name: str) -> Iterator[Engine]:
    folder = random_llama.folder(name)
    opened = Engine.load(
        folder, LoadOptions(backend=request.param, dtype="f32", context=128, slots=2)
    )
    yield opened
    opened.close()


def ask(engine: Engine, question: Question) -> Answer:
    return engine.inspect(question).result(60)


def texts(answer: Answer) -> list[list[int]]:
    return [
        row[:n].tolist() for row, n in zip(answer["ids"], answer["lengths"].tolist(), strict=True)
    ]


@pytest.mark.parametrize(("width", "depth"), [(1, 6), (4, 8), (8, 20)])
def test_transformers_finds_the_same(engine: Engine, name: str, width: int, depth: int) -> None:
    """Token for token. It sets ended texts apart, so here is a prompt after which none ends."""
    for seed in range(5):
        ids = random_llama.ids(name, 21, seed=seed)
        found = ask(engine, Beam(ids, width=width, depth=depth))
        if not found["ended"].any():
            break
    assert not found["ended"].any()
    model = random_llama.reference(name).model
    theirs = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=depth,
        do_sample=False,
        length_penalty=0.0,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert texts(found) == theirs[:, len(ids) :].tolist()


def test_the_probabilities_are_those_of_the_texts(engine: Engine, name: str) -> None:
    ids = random_llama.ids(name, 30, seed=5)
    found = ask(engine, Beam(ids, width=5, depth=9))
    assert found["ids"].shape == found["logprobs"].shape == (5, 9)
    for text, logprobs in zip(texts(found), found["logprobs"], strict=True):
        judged = ask(engine, Losses([*ids, *text], top=1, first=len(ids) - 1))
        assert judged["logprob"].shape == (len(text),)
        np.testing.assert_allclose(logprobs[: len(text)], judged["logprob"], atol=1e-5)
        assert not logprobs[len(text) :].any()
    totals = found["logprobs"].sum(1)
    assert (np.diff(totals) <= 1e-6).all(), "best first"


def test_losses_from_a_place_on_are_those_of_the_whole(engine: Engine, name: str) -> None:
    ids = random_llama.ids(name, 40, seed=6)
    whole = ask(engine, Losses(ids, top=3))
    part = ask(engine, Losses(ids, top=3, first=25))
    for array in ("logprob", "rank", "entropy", "top_ids", "top_logprobs"):
        np.testing.assert_allclose(part[array], whole[array][25:], rtol=1e-4, atol=1e-5)


def test_a_run_beside_a_search_writes_what_it_writes_alone(engine: Engine, name: str) -> None:
    prompt, other = random_llama.ids(name, 9), random_llama.ids(name, 33, seed=2)
    params = SamplingParams(seed=1, temperature=0.8, max_tokens=40, ignore_eos=True)
    alone = [token.id for token in engine.generate(prompt, params)]
    run = engine.generate(prompt, params)
    asked = engine.inspect(Beam(other, width=3, depth=10))
    assert [token.id for token in run] == alone
    assert texts(asked.result(60)) == texts(ask(engine, Beam(other, width=3, depth=10)))


@pytest.mark.parametrize("by", ["model", "tokenizer"])
def test_the_text_ends_where_the_model_or_its_tokenizer_ends_it(tmp_path: Path, by: str) -> None:
    runner, tokenizer = (
        ScriptedRunner(lambda ids: 0 if len(ids) == 3 else 7),
        byte_tokenizer(tmp_path),
    )
    runner.config = replace(runner.config, eos_ids=(0,) if by == "model" else ())
    tokenizer.eos_ids = (0,) if by == "tokenizer" else ()
    engine = Engine(lambda: runner, tokenizer)
    assert engine.info.model.eos_ids == (0,)
    try:
        found = ask(engine, Beam([9], width=1, depth=5))
    finally:
        engine.close()
    assert texts(found) == [[7, 7, 0]]
    assert found["ended"].tolist() == [1]


class Searched(ScriptedRunner):
    """A scripted runner whose inspection slot may begin anywhere in a text."""

    def set_blocks(self, slot: int, blocks: list[int], group: int = 0) -> None:
        super().set_blocks(slot, blocks, group)
        if slot == self.limits.inspection_slot:
            self._next[slot] = None


def test_first_hypotheses_share_the_cache_and_leave_it_whole(tmp_path: Path) -> None:
    """A row is computed for each hypothesis, and nothing before it twice."""
    runner = Searched(n_blocks=40)
    runner.config = replace(runner.config, eos_ids=())
    engine = Engine(lambda: runner, byte_tokenizer(tmp_path))
    ids = [1 + i % 200 for i in range(21)]
    rows: list[int] = []
    inner = runner.logits

    def counted(step: Any) -> Floats:
        rows.append(len(step.rows))
        return 20 * inner(step)

    runner.logits = counted  # type: ignore[method-assign]
    try:
        found = ask(engine, Beam(ids, width=3, depth=6))
        assert texts(found)[0] == expected(ids, 6)
        assert rows == [1] * (1 + 3 * 5)
        before = len(runner.steps)
        ask(engine, Beam(ids, width=3, depth=6))
        assert len(runner.steps) == before, "the second time nothing has to be filled in"
    finally:
        engine.close()


WRONG = [
    ({"width": 0}, "width should be from 1 to 16"),
    ({"width": 17}, "width should be from 1 to 16"),
    ({"depth": 0}, "depth should be from 1 to 128"),
    ({"depth": 129}, "depth should be from 1 to 128"),
    ({"length_penalty": -1.0}, "length_penalty should be from 0"),
    ({"length_penalty": float("nan")}, "length_penalty should be from 0"),
    ({"ids": []}, "ids are missing"),
    ({"ids": [256]}, "ids should be from 0 to 255"),
    ({"ids": [1] * 60, "depth": 5}, "ask for a depth of 4 or less"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_an_impossible_search_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    engine = Engine(ScriptedRunner, byte_tokenizer(tmp_path))
    try:
        with pytest.raises(InvalidRequest, match=message):
            ask(engine, Beam(**{"ids": [1], **fields}))
    finally:
        engine.close()
