"""Instruments ask the engine in the browser, and get the answers of the server's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Error

from e2e.local.exports import SMALL
from e2e.local.local_engine import LocalEnginePage, ids_of, request
from e2e.local.test_architectures import write_manifest
from gpu import Engine, SamplingParams
from gpu.export.exporter import export_model
from gpu.inspection.requests import (
    AttentionFrom,
    AttentionTo,
    Beam,
    Embedding,
    LogitLens,
    Losses,
    Question,
    Routing,
    Waterfall,
)
from gpu.load_options import LoadOptions
from tests.gpu.models import random_models

BOUND = 1e-4
"""Difference of a number between two drivers, absolute and relative."""
IDS = SMALL.texts[0].prompt_ids + SMALL.texts[0].greedy_ids[:40]
AT = len(IDS) - 3
PARAMS = SamplingParams(
    temperature=0.8, top_k=40, top_p=0.9, min_p=0.03, repetition_penalty=1.2,
    frequency_penalty=0.3, presence_penalty=0.1, seed=2**40 + 3, first_index=2,
)  # fmt: skip


def check_same(page: LocalEnginePage, server: Engine, question: Question) -> dict[str, Any]:
    """Assert that both answer alike; return the browser's info."""
    info, arrays = page.ask(question)
    want = server.inspect(question).result()
    assert list(arrays) == [array.name for array in want.arrays]
    for array in want.arrays:
        theirs, mine = array.numpy(), arrays[array.name]
        assert mine.shape == theirs.shape, array.name
        if array.dtype == "u32":
            np.testing.assert_array_equal(mine, theirs, array.name)
        else:
            np.testing.assert_allclose(mine, theirs, BOUND, BOUND, err_msg=array.name)
    assert info.keys() == want.info.keys()
    return info


QUESTIONS: list[Question] = [
    AttentionFrom(IDS, AT),
    AttentionTo(IDS, 4),
    LogitLens(IDS, AT, chosen=IDS[AT + 1]),
    Waterfall(IDS, AT, PARAMS, index=5, also=[IDS[AT + 1], 7]),
    Waterfall(IDS, AT, SamplingParams(temperature=0, seed=1), index=5),
    Losses(IDS, first=2),
    Beam(IDS[:9], width=3, depth=4),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: str(each.__class__.__name__))
def test_answers_are_those_of_the_server(
    small: LocalEnginePage, small_server: Engine, question: Question
) -> None:
    """No run has the text, so it is computed in the slot for questions."""
    check_same(small, small_server, question)


def test_a_run_goes_on_beside_questions_about_it(
    small: LocalEnginePage, small_server: Engine
) -> None:
    """Its text stays, and another one shares its first blocks."""
    prompt = SMALL.texts[1].prompt_ids
    found = small.page.evaluate(
        """async ([asked, question]) => {
          const asking = [];
          const text = [...asked.ids];
          const params = { ...asked.params, seed: BigInt(asked.params.seed) };
          const ids = await new Promise((resolve) => {
            const onEvent = (event) => {
              if (event.type === "token") text.push(event.id);
              if (event.type === "done") resolve(text.slice(asked.ids.length));
              if (event.type !== "token" || event.index % 8 !== 7) return;
              const own = { ...question, ids: [...text], position: text.length - 1 };
              const other = { ...own, ids: [...text.slice(0, -3), 9, 9, 9] };
              for (const each of [own, other]) asking.push(engine.ask(inspector.start(each)));
            };
            engine.submit({ ...asked, params, onEvent });
          });
          const answers = await Promise.all(asking);
          return { ids, weights: answers.map(({ arrays }) => [...arrays.weights.values]) };
        }""",
        [request(prompt, temperature=0, max_tokens=32), {"kind": "attention_from", "reached": []}],
    )
    assert found["ids"] == SMALL.texts[1].greedy_ids[:32]
    assert len(found["weights"]) == 8
    for n, weights in zip((8, 16, 24, 32), found["weights"][::2], strict=True):
        ids = prompt + found["ids"][:n]
        want = small_server.inspect(AttentionFrom(ids, len(ids) - 1)).result()["weights"]
        np.testing.assert_allclose(weights, want.ravel(), BOUND, BOUND)
    ids = [*prompt, *found["ids"][:29], 9, 9, 9]
    want = small_server.inspect(AttentionFrom(ids, len(ids) - 1)).result()["weights"]
    np.testing.assert_allclose(found["weights"][-1], want.ravel(), BOUND, BOUND)
    again = small.run(request(prompt, temperature=0, max_tokens=32))[0]
    assert ids_of(again) == found["ids"]


BAD: list[tuple[Question, str]] = [
    (AttentionFrom(IDS, len(IDS)), f"position should be from 0 to {len(IDS) - 1}, but is"),
    (AttentionFrom([], 0), "ids are missing"),
    (LogitLens([10**6], 0, 1), "ids should be from 0 to"),
    (LogitLens(IDS, 0, -1), "chosen should be from 0 to"),
    (LogitLens(IDS, 0, 1, top=101), "top should be from 1 to 100, but is 101"),
    (Losses([1]), "one token has nothing before it; give two ids"),
    (Beam(IDS, width=17), "width should be from 1 to 16, but is 17"),
    (Routing(IDS), "this model has no experts; ask one that has"),
    (Embedding(IDS), "embeddings are not available while the model runs in this browser"),
]


@pytest.mark.parametrize(("question", "message"), BAD)
def test_a_bad_question_is_refused_in_the_servers_words(
    small: LocalEnginePage, small_server: Engine, question: Question, message: str
) -> None:
    with pytest.raises(Error, match=message):
        small.ask(question)
    if not isinstance(question, Embedding):
        with pytest.raises(Exception, match=message):
            small_server.inspect(question).result()


@pytest.mark.slow  # compiles the kernels of another model
@pytest.mark.parametrize("name", random_models.ONE_OF_EACH_MOE[:1])
def test_the_experts_are_those_of_the_server(
    local: LocalEnginePage, tmp_path: Path, name: str
) -> None:
    folder, ids = random_models.folder(name), random_models.ids(40)
    write_manifest(tmp_path, export_model(folder, tmp_path, LoadOptions(dtype="f32", slots=2)))
    local.load(tmp_path)
    engine = Engine.load(folder, LoadOptions(dtype="f32", slots=2))
    try:
        check_same(local, engine, Routing(ids, first=3))
    finally:
        engine.close()
