"""The engine in the browser writes the same text press by press, with previews of each token."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.local.exports import SMALL
from e2e.local.local_engine import LocalEnginePage, ids_of, request
from gpu.interventions.messages import Interventions, Steer
from gpu.kv.blocks import BLOCK_TOKENS

PRESSED = """async ({ ids, params, capture }) => {
  const events = [];
  await new Promise((resolve) => {
    let tried = -1;
    const onEvent = (event) => {
      events.push(event);
      if (event.type === "done") resolve();
      if (event.type !== "preview") return;
      // Once a token, a slider is moved away and back; then the token is asked for.
      if (tried < event.index) {
        tried = event.index;
        run.update({ temperature: 2 }, null);
        run.update({ temperature: params.temperature }, null);
      } else if (event.index < 6) run.update({}, null, null, { steps: 1 });
      else run.update({}, null, null, { pace: event.index < 8 ? 200 : null });
    };
    const seeded = { ...params, seed: BigInt(params.seed) };
    const run = engine.submit({ ids, params: seeded, capture, pace: 0, run: 0, onEvent });
  });
  return JSON.parse(JSON.stringify(events));
}"""


START = """
  const { RunQueue } = await import("/static/js/local/run-queue.js");
  const queue = new RunQueue(engine, (id) => `<${id}>`, { active: 2, queue: 3, context: 512 });
  const start = ({ ids, params, capture, reach }, pace) => {
    const events = [];
    const waiting = [];
    const onEvent = (event) => {
      events.push(event);
      for (const wait of waiting) wait();
    };
    const until = (type, index, n = 1) =>
      new Promise((resolve) => {
        const isAwaited = (e) => e.type === type && e.index === index;
        const wait = () => events.filter(isAwaited).length >= n && resolve();
        waiting.push(wait);
        wait();
      });
    const seeded = { ...params, seed: BigInt(params.seed) };
    const asked = { ids, params: seeded, capture, pace };
    asked.interventions = checks.check({ ...asked, updates: [], reach, reached: [] });
    return { events, until, run: queue.submit(asked, onEvent) };
  };
  const runs = paused.map((asked) => start(asked, 0));
  for (const { until, run } of runs) {
    await until("preview", 0);
    run.update({}, null, null, { steps: 4 });
    await until("preview", 4);
  }
  engine.slots.evict(engine.slots.inspection, 0);
  const kept = engine.slots.freeBlocks.splice(0);
"""

BESIDE = f"""async ({{ paused, other, questions }}) => {{
  {START}
  const restarted = async () => {{
    while (engine.running) await new Promise((go) => setTimeout(go));
  }};
  try {{
    for (const question of questions) {{
      const endless = runs[1].until("preview", 4, 5).then(() => Promise.reject("it never ends"));
      await Promise.race([endless, engine.ask(inspector.start(question))]);
      await restarted();
    }}
    const third = start(other, null);
    runs.push(third);
    await third.until("done");
    await restarted();
  }} finally {{
    engine.slots.freeBlocks.push(...kept);
    for (const {{ until, run, events }} of runs) {{
      if (!events.some((e) => e.type === "done")) run.update({{}}, null, null, {{ pace: null }});
      await until("done");
    }}
  }}
  return JSON.parse(JSON.stringify(runs.map(({{ events }}) => events)));
}}"""


def test_paused_runs_hold_up_no_other(small: LocalEnginePage) -> None:
    """Two paused runs have both slots, and all KV blocks there are: one gives its slot to the third
    run, the other one its blocks. Both are computed again."""
    ids = SMALL.texts[0].prompt_ids
    asked = [
        request([*ids, n], temperature=1.0, frequency_penalty=0.5, max_tokens=most, seed=n)
        for n, most in ((5, 9), (6, 9), (7, 40))
    ]
    *paused, other = small.page.evaluate(
        BESIDE, {"paused": asked[:2], "other": asked[2], "questions": []}
    )
    assert [ids_of(events) for events in (*paused, other)] == [
        ids_of(events) for events in small.run(*asked)
    ]
    assert not any(e["type"] == "queued" for e in other)
    places = [[e["position"] for e in events if e["type"] == "queued"] for events in paused]
    # What they are told meanwhile depends on when the steps of the third run are read.
    for told in places:
        assert any(told), "they wait for a slot and for blocks"
        assert told[-1] == 0, "until they start again"
    for events in paused:
        told = [e["done"] for e in events if e["type"] == "prefill"]
        assert told == sorted(set(told)), "the prompt is told once"
        timings = events[-1]["timings"]
        assert timings["cache_n"] + timings["prompt_n"] == len(ids) + 1


ROWS = f"""async ({{ paused }}) => {{
  {START}
  engine.slots.freeBlocks.push(...kept);
  const {{ recomputer, questions }} = engine;
  const most = () => [recomputer.mostRows, questions.isDue(engine.scheduler.isWriting)];
  async function* pieces() {{
    return {{ info: {{ most: most() }}, arrays: {{}} }};
  }}
  const {{ info: beside }} = await engine.ask(pieces());
  const [{{ until, run }}] = runs;
  const written = new Promise((resolve) => {{
    const {{ onEvent }} = run;
    run.onEvent = (event) => {{
      onEvent(event);
      if (event.type === "token") resolve(recomputer.mostRows);
    }};
  }});
  run.update({{}}, null, null, {{ pace: null }});
  await until("done");
  return {{ beside: beside.most, written: await written }};
}}"""


def test_a_paused_run_takes_no_time_from_questions(small: LocalEnginePage) -> None:
    """Once its preview is there nothing of it is computed, so pieces are as large as a step."""
    [run] = [request(SMALL.texts[0].prompt_ids, max_tokens=40)]
    found = small.page.evaluate(ROWS, {"paused": [run]})
    most = small.page.evaluate("engine.limits.max_rows")
    assert found == {"beside": [most, True], "written": 16}
    assert most > 16


def test_paused_runs_give_their_blocks_to_questions_and_steers(small: LocalEnginePage) -> None:
    """Two paused runs have two KV blocks each, and there are no others. The questions need two and
    four; between their pieces the runs do not take them back. Once they are answered, and once a
    run whose steer needs one has ended, the paused runs are computed again."""
    ids = SMALL.texts[0].prompt_ids
    small.set_texts({"steer": ids[:3]})
    steered = Interventions(steer=(Steer(1, "steer", 2.0),))
    asked = [
        request([*ids, 5], temperature=1.0, max_tokens=7, seed=5),
        request([*ids, 6], temperature=1.0, max_tokens=7, seed=6),
        request([*ids, 7], temperature=1.0, max_tokens=5, seed=7, interventions=steered),
    ]
    questions = [
        {"kind": "losses", "ids": [token] * n, "first": n - 2, "top": 1, "rope": True}
        for token, n in ((9, 2 * BLOCK_TOKENS), (10, 4 * BLOCK_TOKENS))
    ]
    given = {"paused": asked[:2], "other": asked[2], "questions": questions}
    found = small.page.evaluate(BESIDE, given)
    previews = [
        [e for e in events if e["type"] == "preview" and e["index"] == 4] for events in found
    ]
    assert [len(each) for each in previews] == [2, 4, 0]
    assert [ids_of(events) for events in found] == [ids_of(events) for events in small.run(*asked)]


PACED = """async ({ paused, paced, late }) => {
  const start = ({ ids, params, capture }, pace, awaited) => {
    const events = [];
    let run;
    const seen = new Promise((resolve) => {
      const onEvent = (event) => {
        events.push(event);
        if (event.type === awaited) resolve();
      };
      const seeded = { ...params, seed: BigInt(params.seed) };
      run = engine.submit({ ids, params: seeded, capture, pace, run: 0, onEvent });
    });
    return { events, run, seen };
  };
  const held = start(paused, 0, "preview");
  await held.seen;
  const { scheduler } = engine;
  if (late)
    scheduler.nextStep = () => {
      const step = Object.getPrototypeOf(scheduler).nextStep.call(scheduler);
      const until = step || engine.inFlight.length ? 0 : scheduler.dueAt;
      while (Number.isFinite(until) && performance.now() <= until);
      return step;
    };
  try {
    const { events, seen } = start(paced, 2, "done");
    const never = new Promise((_, fail) => setTimeout(() => fail("it stands still"), 20_000));
    await Promise.race([seen, never]);
    return JSON.parse(JSON.stringify(events));
  } finally {
    delete scheduler.nextStep;
    held.run.cancel();
  }
}"""


@pytest.mark.quick
@pytest.mark.parametrize("late", [False, True])
def test_a_run_at_a_pace_goes_on_beside_a_paused_one(small: LocalEnginePage, late: bool) -> None:
    """Also when its time comes between the engine's last look for work and its end."""
    prompt = SMALL.texts[0].prompt_ids
    paused, paced = (request(prompt, temperature=0, max_tokens=3, seed=n) for n in (5, 6))
    events = small.page.evaluate(PACED, {"paused": paused, "paced": paced, "late": late})
    assert ids_of(events) == SMALL.texts[0].greedy_ids[:3]
    assert events[-1]["reason"] == "length"


@pytest.mark.quick
def test_the_ids_are_the_same_press_by_press(small: LocalEnginePage) -> None:
    asked = request(
        SMALL.texts[0].prompt_ids,
        temperature=1.0,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        max_tokens=12,
        seed=7,
    )
    paused: list[dict[str, Any]] = small.page.evaluate(PRESSED, asked)
    assert ids_of(paused) == ids_of(small.run(asked)[0])
    previews = {e["index"]: e for e in paused if e["type"] == "preview"}
    tokens = [e for e in paused if e["type"] == "token"]
    for index in range(6):
        for name in ("candidates", "n_kept", "mass"):
            assert previews[index][name] == tokens[index][name]
    assert [e["pace"] for e in paused if "pace" in e] == [200]
    timings = paused[-1]["timings"]
    assert timings["paced_ms"] > 0
    assert timings["predicted_ms"] + timings["paced_ms"] < 60_000


ENDED_IN_PAUSE = """async () => {
  const { RunClock } = await import("/static/js/local/gpu/run-clock.js");
  const began = performance.now();
  const clock = new RunClock();
  clock.start();
  clock.wait();
  await new Promise((resolve) => setTimeout(resolve, 50));
  return { ...clock.timings(0, 5, 0), whole: performance.now() - began };
}"""


@pytest.mark.quick
def test_the_pause_in_which_a_run_is_cancelled_is_no_work(small: LocalEnginePage) -> None:
    found: dict[str, float] = small.page.evaluate(ENDED_IN_PAUSE)
    assert found["paced_ms"] > 40
    assert found["ttft_ms"] + found["predicted_ms"] + found["paced_ms"] <= found["whole"]
