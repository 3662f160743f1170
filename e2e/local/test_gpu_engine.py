"""The engine in the browser writes what the server's engine writes, from an export alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.local.exports import SMALL, TALE, exported, server_tokens
from e2e.local.local_engine import LocalEnginePage, ids_of, request, tokens_of
from gpu import ScheduledUpdate

N = 24
"""Tokens of a greedy text."""
ALL_SETTINGS = {
    "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1,
    "frequency_penalty": 0.2, "presence_penalty": 0.1, "seed": 2**40 + 7,
}  # fmt: skip
STATISTICS_BOUND = 1e-4
"""Relative difference of a statistic between two drivers."""


@pytest.mark.quick
def test_golden_ids_of_three_texts_at_once(small: LocalEnginePage) -> None:
    """The third one waits for a slot. Asked again, all but the last prompt token is found."""
    requests = [request(text.prompt_ids, temperature=0, max_tokens=N) for text in SMALL.texts[:3]]
    runs = small.run(*requests)
    assert [ids_of(run) for run in runs] == [text.greedy_ids[:N] for text in SMALL.texts[:3]]
    assert runs[2][0]["position"] == 1
    again = small.run(requests[2])[0]
    assert again[-1]["timings"]["cache_n"] == len(SMALL.texts[2].prompt_ids) - 1
    assert ids_of(again) == SMALL.texts[2].greedy_ids[:N]


def test_draws_and_statistics_are_those_of_the_server(small: LocalEnginePage) -> None:
    """With every setting on and every layer captured."""
    prompt = SMALL.texts[0].prompt_ids
    run = small.run(request(prompt, capture=True, max_tokens=24, **ALL_SETTINGS))[0]
    want = server_tokens(SMALL, "f32", prompt, capture=True, max_tokens=24, **ALL_SETTINGS)
    got = tokens_of(run)
    assert [token["id"] for token in got] == [token.id for token in want]
    assert [token["draw"] for token in got] == [token.draw for token in want]
    for mine, theirs in zip(got, want, strict=True):
        assert [each["id"] for each in mine["candidates"]] == [c.id for c in theirs.candidates]
        assert mine["stats"]["position"] == theirs.stats.position
        for layer, other in zip(mine["stats"]["layers"], theirs.stats.layers, strict=True):
            for name in ("residual", "attention", "mlp"):
                assert layer[name] == pytest.approx(getattr(other, name), rel=STATISTICS_BOUND)
            assert layer["entropy"] == pytest.approx(list(other.entropy), abs=STATISTICS_BOUND)
    check_times(run)
    prefills = [event for event in run if event["type"] == "prefill"]
    positions = [stats["position"] for event in prefills for stats in event["stats"]]
    assert positions == list(range(prefills[0]["reused"], len(prompt)))


def test_a_token_has_statistics_if_it_was_drawn_while_its_run_captured(
    small: LocalEnginePage,
) -> None:
    """Of the run that captures beside it, whose steps it is in, it has none; of its own all, also
    those on their way when the setting changes."""
    first, second = (text.prompt_ids for text in SMALL.texts[:2])
    updates: list[dict[str, Any]] = [
        {"index": 3, "params": {}, "capture": True},
        {"index": 6, "params": {}, "capture": False},
    ]
    own = request(second, updates=updates, temperature=0, max_tokens=12)
    beside, run = small.run(request(first, capture=True, temperature=0, max_tokens=12), own)
    assert [token["index"] for token in tokens_of(run) if token["stats"]] == [3, 4, 5]
    assert all(token["stats"] for token in tokens_of(beside))


def test_a_change_acts_from_the_token_it_is_acknowledged_for(small: LocalEnginePage) -> None:
    prompt = SMALL.texts[1].prompt_ids
    live = {"after": 5, "params": {"temperature": 1.2, "top_k": 7}}
    run = small.run(request(prompt, live=live, temperature=0, max_tokens=20))[0]
    [index] = [event["index"] for event in run if event["type"] == "updated"]
    assert 6 <= index <= 8, "no more than two steps are in flight"
    change = ScheduledUpdate(index, {"temperature": 1.2, "top_k": 7})
    want = server_tokens(SMALL, "f32", prompt, temperature=0, max_tokens=20, updates=(change,))
    assert ids_of(run) == [token.id for token in want]
    update = {"index": index, "params": change.params}
    again = small.run(request(prompt, updates=[update], temperature=0, max_tokens=20))[0]
    assert ids_of(again) == ids_of(run)


def test_a_limit_below_what_was_written_ends_a_run_before_the_token_it_acts_on(
    small: LocalEnginePage,
) -> None:
    prompt = SMALL.texts[1].prompt_ids
    live = {"after": 5, "params": {"max_tokens": 2}}
    run = small.run(request(prompt, live=live, temperature=0, max_tokens=20))[0]
    [index] = [event["index"] for event in run if event["type"] == "updated"]
    update = {"index": index, "params": {"max_tokens": 2}}
    again = small.run(request(prompt, updates=[update], temperature=0, max_tokens=20))[0]
    assert [len(ids_of(run)), run[-1]["reason"]] == [index, "length"]
    assert ids_of(again) == ids_of(run)


def test_a_cancelled_run_disturbs_no_other(small: LocalEnginePage) -> None:
    first, second, third = SMALL.texts[:3]
    runs = small.run(
        request(first.prompt_ids, live={"after": 3, "cancel": True}, temperature=0, max_tokens=200),
        request(second.prompt_ids, temperature=0, max_tokens=40),
        request(third.prompt_ids, temperature=0, max_tokens=40),
    )
    assert runs[0][-1]["reason"] == "cancelled"
    assert ids_of(runs[0]) == first.greedy_ids[: len(ids_of(runs[0]))]
    assert ids_of(runs[1]) == second.greedy_ids[:40]
    assert ids_of(runs[2]) == third.greedy_ids[:40]


@pytest.mark.quick
def test_a_bias_acts(small: LocalEnginePage) -> None:
    prompt = SMALL.texts[0].prompt_ids
    bias = [{"id": 300, "bias": 100.0}]
    asked = request(prompt, temperature=0, max_tokens=3)
    asked["params"]["logit_bias"] = bias
    assert ids_of(small.run(asked)[0]) == [300, 300, 300]


ASKED_AT_THE_END = """() => {
  const { questions, scheduler } = engine;
  const isLast = ({ nSubmitted, settled }) => nSubmitted === 3 && !settled;
  questions.isDue = () => scheduler.active.some(isLast);
}"""


@pytest.mark.quick
def test_a_known_change_of_the_length_acts_beside_questions(small: LocalEnginePage) -> None:
    """Also if a question is due from the last token of the old length on, so that no step is made
    until that token was read."""
    prompt = SMALL.texts[0].prompt_ids
    longer = [{"index": 3, "params": {"max_tokens": 6}}]
    small.page.evaluate(ASKED_AT_THE_END)
    try:
        [run] = small.run(request(prompt, updates=longer, temperature=0, max_tokens=3))
    finally:
        small.page.evaluate("delete engine.questions.isDue")
    assert ids_of(run) == SMALL.texts[0].greedy_ids[:6]
    [told] = [event for event in run if event["type"] == "updated"]
    assert (told["index"], told["params"]["max_tokens"]) == (3, 6)


QUEUED = """async (requests) => {
  const { RunQueue } = await import("/static/js/local/run-queue.js");
  const queue = new RunQueue(engine, String, { active: 1, queue: 3, context: 512 });
  const run = ({ ids, params, capture }) =>
    new Promise((resolve) => {
      const events = [];
      const onEvent = (event) => {
        events.push({ ...event, now: performance.now() });
        if (event.type === "done") resolve(events);
      };
      queue.submit({ ids, params: { ...params, seed: BigInt(params.seed) }, capture }, onEvent);
    });
  return JSON.parse(JSON.stringify(await Promise.all(requests.map(run))));
}"""


@pytest.mark.quick
def test_the_wait_for_other_runs_is_in_the_times_of_a_run(small: LocalEnginePage) -> None:
    """In the browser, the engine is given a run only when it may start."""
    prompt = SMALL.texts[0].prompt_ids
    asked = [request(prompt, temperature=0, max_tokens=n) for n in (16, 2)]
    first, second = small.page.evaluate(QUEUED, asked)
    waited = first[-1]["now"] - second[0]["now"]
    timings = second[-1]["timings"]
    assert waited > 0
    assert timings["queue_ms"] >= waited
    assert timings["ttft_ms"] >= timings["queue_ms"]
    assert tokens_of(second)[0]["times"]["interval"] >= waited


FAIL_ONCE = """() => {
  const { queue, slots } = engine;
  for (const slot of slots.texts.keys()) slots.evict(slot, 0); // else another has the prompt, too
  const failed = (result) => {
    const samples = result.samples.map((sample) => ({ ...sample, logprob: NaN }));
    return { ...result, samples };
  };
  let n = 0;
  queue.submit = async (...step) => {
    const { result } = await Object.getPrototypeOf(queue).submit.apply(queue, step);
    n += 1;
    return { result: n === 3 ? result.then(failed) : result };
  };
}"""


@pytest.mark.quick
def test_a_text_whose_output_is_not_a_number_is_computed_anew(small: LocalEnginePage) -> None:
    """Its keys and values may be the fault, so another try must not find them."""
    prompt = SMALL.texts[0].prompt_ids
    asked = request(prompt, temperature=0, max_tokens=6)
    small.page.evaluate(FAIL_ONCE)
    try:
        [broken] = small.run(asked)
    finally:
        small.page.evaluate("delete engine.queue.submit")
    assert broken[-1]["reason"] == "error"
    assert "is not a number" in broken[-1]["message"]
    [again] = small.run(asked)
    assert ids_of(again) == SMALL.texts[0].greedy_ids[:6]
    assert again[-1]["timings"]["cache_n"] == 0


LOSE = """async () => {
  const { LocalEngine } = await import("/static/js/local/gpu/engine.js");
  let lose;
  const device = { lost: new Promise((resolve) => (lose = resolve)), addEventListener() {} };
  const step = { sample: [], row: [], header: [], bytes: 4 };
  const limits = { slots: 2, inspection_slot: 2, n_blocks: 4, block_tokens: 16, max_rows: 8 };
  const engine = new LocalEngine({ device, plan: { limits, step } }, {});
  const heard = [];
  engine.onLost = (message) => heard.push(message);
  async function* pieces() {
    lose({ reason: "unknown", message: "reset" });
    await new Promise(() => {}); // what waits for the device never comes
  }
  const told = ({ code, message }) => [code, message];
  const asked = await engine.ask(pieces()).catch(told);
  const after = await engine.ask(pieces()).catch(told);
  return { heard, asked, after };
}"""


@pytest.mark.quick
def test_a_question_fails_when_the_device_is_lost(loaded: Any) -> None:
    """Also one that is asked afterwards; neither waits for ever."""
    lost = ["unavailable", "the GPU was lost: reset"]
    assert loaded.evaluate(LOSE) == {"heard": [lost[1]], "asked": lost, "after": lost}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8", "q4"])
def test_the_bundled_model_in_every_storage_type(
    local: LocalEnginePage, tmp_path: Path, dtype: str
) -> None:
    """Rows are interleaved here as the server's loader does it."""
    prompt = TALE.texts[0].prompt_ids
    local.load(exported(TALE, tmp_path, dtype))
    greedy, seeded = local.run(
        request(prompt, temperature=0, max_tokens=24),
        request(prompt, max_tokens=24, **ALL_SETTINGS),
    )
    want = server_tokens(TALE, dtype, prompt, temperature=0, max_tokens=24)
    assert ids_of(greedy) == [token.id for token in want]
    want = server_tokens(TALE, dtype, prompt, max_tokens=24, **ALL_SETTINGS)
    assert ids_of(seeded) == [token.id for token in want]


def check_times(events: list[dict[str, Any]]) -> None:
    """Assert that every layer was timed, and that the parts of a step are no more than the whole,
    nor the steps than the run."""
    steps = [
        (event["gpu_ms"], event["stats"][-1]) for event in events if event["type"] == "prefill"
    ]
    steps += [(token["times"]["gpu"], token["stats"]) for token in tokens_of(events)[1:]]
    assert len(steps) > 20
    for whole, stats in steps:
        assert stats["timed_at"] == stats["position"]
        parts = [stats["embed_ms"], stats["head_ms"]]
        parts += [layer[name] for layer in stats["layers"] for name in ("attention_ms", "mlp_ms")]
        assert all(ms >= 0 for ms in parts)
        assert 0 < sum(parts) <= whole * (1 + 1e-5), "a layer's times have six digits"
        assert sum(parts) == pytest.approx(whole, rel=1e-4)
    timings = events[-1]["timings"]
    assert sum(whole for whole, _ in steps) <= timings["prompt_ms"] + timings["predicted_ms"]
