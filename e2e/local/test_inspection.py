"""Instruments ask the engine in the browser, and get the answers of the server's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Error

from e2e.local.exports import SMALL
from e2e.local.local_engine import Array, LocalEnginePage, ids_of, request
from e2e.local.test_architectures import write_manifest
from gpu import Engine, SamplingParams
from gpu.export.exporter import export_model
from gpu.inspection.requests import (
    Answer,
    AttentionFrom,
    AttentionTo,
    Beam,
    CacheBlocks,
    Embedding,
    InterventionEffect,
    LogitLens,
    Losses,
    Profile,
    Question,
    RecentSteps,
    Routing,
    StepPart,
    StepPlan,
    Waterfall,
)
from gpu.interventions.messages import ExpertOff, HeadFactor, Interventions, InterventionSpan
from gpu.load_options import LoadOptions
from gpu.sampling_params import GREEDY_BELOW
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
    check_schema(info, arrays, want)
    for array in want.arrays:
        theirs, mine = array.numpy(), arrays[array.name]
        assert mine.shape == theirs.shape, array.name
        if array.dtype == "u32":
            np.testing.assert_array_equal(mine, theirs, array.name)
        else:
            np.testing.assert_allclose(mine, theirs, BOUND, BOUND, err_msg=array.name)
    return info


def check_schema(info: dict[str, Any], arrays: dict[str, Array], want: Answer) -> None:
    """Assert that an answer has the fields, arrays, types and dimensions of the server's."""
    assert info.keys() == want.info.keys()
    assert list(arrays) == [array.name for array in want.arrays]
    for array in want.arrays:
        mine = arrays[array.name]
        assert (mine.dtype, mine.ndim) == (array.numpy().dtype, len(array.shape)), array.name


QUESTIONS: list[Question] = [
    AttentionFrom(IDS, AT),
    AttentionTo(IDS, 4),
    LogitLens(IDS, AT, chosen=IDS[AT + 1]),
    Waterfall(IDS, AT, PARAMS, index=5, also=[IDS[AT + 1], 7]),
    Waterfall(IDS, AT, SamplingParams(temperature=GREEDY_BELOW / 2, seed=1), index=5),
    Losses(IDS, first=2),
    Beam(IDS[:9], width=3, depth=4),
]


@pytest.mark.quick
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


WATCHED = """async (requests) => {
  const ask = async (kind) => (await engine.ask(inspector.start({ kind, after: 0 }))).arrays;
  await ask("steps");
  const blocks = [];
  let during = null;
  const counted = async () => {
    const { runs, n_run_blocks: n } = await ask("cache");
    return [...runs.values].map((run, i) => [run, n.values[i]]);
  };
  const run = (request, i) =>
    new Promise((resolve) => {
      const params = { ...request.params, seed: BigInt(request.params.seed) };
      const onEvent = (event) => {
        if (event.type === "token") blocks[i] = event.kv_blocks;
        if (i === 0 && event.index === 20) during ??= counted();
        if (event.type === "done") resolve(event.timings.cache_n);
      };
      engine.submit({ ...request, params, run: i + 1, onEvent });
    });
  const ended = Promise.all(requests.map(run));
  let found = null;
  ended.then((all) => (found = all));
  while (!found) {
    await ask("steps"); // they are recorded while somebody asks
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  return { found, blocks, during: await during };
}"""


def test_the_cache_and_the_steps_are_those_of_the_runs(
    small: LocalEnginePage, small_server: Engine
) -> None:
    """Three runs for two slots, the third with the text of the first. Its blocks are used again."""
    prompts = [text.prompt_ids for text in SMALL.texts[:2]]
    requests = [request(ids, temperature=0, max_tokens=40) for ids in [*prompts, prompts[0]]]
    before, _ = small.ask(CacheBlocks())
    found = small.page.evaluate(WATCHED, requests)
    info, arrays = small.ask(CacheBlocks())
    check_schema(info, arrays, small_server.inspect(CacheBlocks()).result())
    assert [run for run, _ in found["during"]] == [1, 2]
    for (_, mine), last in zip(found["during"], found["blocks"], strict=False):
        assert 0 < mine <= last
    assert found["found"][2] == len(prompts[0]) - 1
    assert info["prompt_tokens"] - before["prompt_tokens"] == sum(len(r["ids"]) for r in requests)
    assert info["reused_tokens"] - before["reused_tokens"] == sum(found["found"])
    assert not arrays["owners"].any()
    assert not arrays["run_blocks"].size, "no run is left"
    n_cached = sum(len(ids) + 39 for ids in prompts)  # the last token of a text is not computed
    cached = arrays["n_found"].sum()
    assert n_cached <= cached, "with what questions before computed"

    info, arrays = small.ask(RecentSteps(after=0))
    check_schema(info, arrays, small_server.inspect(RecentSteps()).result())
    assert arrays["numbers"].tolist() == list(range(1, len(arrays["numbers"]) + 1))
    assert arrays["n_parts"].sum() == len(arrays["parts"])
    assert (arrays["ms"] >= 0).all(), "results read at once are 0 apart on a clock of 0.1 ms"
    assert np.median(arrays["ms"]) > 0
    rows = {kind: np.zeros(4, int) for kind in StepPart}
    for run, kind, n, accepted in arrays["parts"].tolist():
        rows[StepPart(kind)][run] += n
        assert accepted == 0
    computed = [len(r["ids"]) - n for r, n in zip(requests, found["found"], strict=True)]
    assert rows[StepPart.PREFILL].tolist() == [0, *computed]
    assert (rows[StepPart.DECODE][1:] >= 39).all(), "the first token comes from the prompt"
    waited = [run for run, kind, *_ in arrays["parts"].tolist() if kind == StepPart.WAITING]
    assert set(waited) == {3}


def test_every_dispatch_is_timed(small: LocalEnginePage, small_server: Engine) -> None:
    """The text of a question before it is computed again, because the step overwrites it."""
    check_same(small, small_server, AttentionFrom(IDS, AT))
    for n_rows in (1, 8):
        asked = Profile(n_rows=n_rows, context=5, repeat=3)
        info, arrays = small.ask(asked)
        want = small_server.inspect(asked).result()
        check_schema(info, arrays, want)
        assert len(arrays["ms"]) == len(info["dispatches"])
        assert (arrays["ms"] >= 0).all()
        assert 0 < arrays["ms"].sum() * asked.repeat <= info["ms"]
        assert [each["label"] for each in info["dispatches"]] == [
            each["label"] for each in small.ask(StepPlan(n_rows, 5))[0]["dispatches"]
        ]
    check_same(small, small_server, AttentionFrom(IDS, AT))


BAD: list[tuple[Question, str]] = [
    (AttentionFrom(IDS, len(IDS)), f"position should be from 0 to {len(IDS) - 1}, but is"),
    (AttentionFrom([], 0), "ids are missing"),
    (LogitLens([10**6], 0, 1), "ids should be from 0 to"),
    (LogitLens(IDS, 0, -1), "chosen should be from 0 to"),
    (LogitLens(IDS, 0, 1, top=101), "top should be from 1 to 100, but is 101"),
    (Losses([1]), "one token has nothing before it; give two ids"),
    (InterventionEffect(IDS, len(IDS)), f"first should be from 0 to {len(IDS) - 1}, but is"),
    (
        InterventionEffect(
            IDS, base=(InterventionSpan(0, Interventions(experts=(ExpertOff(0, 1),))),)
        ),
        "base.experts: layer 0 has no experts",
    ),
    (Beam(IDS, width=17), "width should be from 1 to 16, but is 17"),
    (Profile(repeat=101), "repeat is 101, expected 1 to 100"),
    (StepPlan(n_rows=0), "n_rows is 0, expected 1 to"),
    (Routing(IDS), "this model has no experts; ask one that has"),
    (Embedding(IDS), "embeddings are not available while the model runs in this browser"),
]


@pytest.mark.quick
@pytest.mark.parametrize(("question", "message"), BAD)
def test_a_bad_question_is_refused_in_the_servers_words(
    small: LocalEnginePage, small_server: Engine, question: Question, message: str
) -> None:
    with pytest.raises(Error, match=message):
        small.ask(question)
    if not isinstance(question, Embedding):
        with pytest.raises(Exception, match=message):
            small_server.inspect(question).result()


@pytest.mark.quick
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
        config = engine.config
        layers = config.expert_layers
        routed = engine.inspect(Routing(ids)).result()["chosen"]
        off = tuple(ExpertOff(at, int(routed[20, i, 0])) for i, at in enumerate(layers))
        spans = (
            InterventionSpan(5, Interventions(experts=off)),
            InterventionSpan(30, Interventions(heads=(HeadFactor(0, 0, 0.0),), experts=off[:1])),
        )
        check_same(local, engine, Routing(ids, spans=spans))
        check_same(local, engine, InterventionEffect(ids, 2, spans=spans))
        check_same(local, engine, InterventionEffect(ids, 30, spans=spans[:1], base=spans))
        assert config.experts is not None
        most = config.experts.n_experts - config.experts.experts_per_token
        many = tuple(ExpertOff(layers[0], expert) for expert in range(most + 1))
        bad = InterventionEffect(ids, spans=(InterventionSpan(0, Interventions(experts=many)),))
        with pytest.raises(Error, match=f"at most {most} experts of layer {layers[0]} can be off"):
            local.ask(bad)
    finally:
        engine.close()
