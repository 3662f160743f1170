"""The engine in the browser writes the same text press by press, with previews of each token."""

from __future__ import annotations

from typing import Any

from e2e.local.exports import SMALL
from e2e.local.local_engine import LocalEnginePage, ids_of, request

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


BESIDE = """async ({ paused, other }) => {
  const { RunQueue } = await import("/static/js/local/run-queue.js");
  const queue = new RunQueue(engine, (id) => `<${id}>`, { active: 2, queue: 3, context: 512 });
  const start = ({ ids, params, capture }, pace) => {
    const events = [];
    const waiting = [];
    const onEvent = (event) => {
      events.push(event);
      for (const wait of waiting) wait();
    };
    const until = (type, index) =>
      new Promise((resolve) => {
        const wait = () => events.some((e) => e.type === type && e.index === index) && resolve();
        waiting.push(wait);
        wait();
      });
    const seeded = { ...params, seed: BigInt(params.seed) };
    const run = queue.submit({ ids, params: seeded, capture, pace, onEvent }, onEvent);
    return { events, until, run };
  };
  const runs = paused.map((asked) => start(asked, 0));
  for (const { until, run } of runs) {
    await until("preview", 0);
    run.update({}, null, null, { steps: 4 });
    await until("preview", 4);
  }
  const kept = engine.slots.freeBlocks.splice(0);
  const third = start(other, null);
  await third.until("done");
  engine.slots.freeBlocks.push(...kept);
  for (const { until, run } of runs) {
    run.update({}, null, null, { pace: null });
    await until("done");
  }
  return JSON.parse(JSON.stringify([...runs, third].map(({ events }) => events)));
}"""


def test_paused_runs_hold_up_no_other(small: LocalEnginePage) -> None:
    """Two paused runs have both slots, and all KV blocks there are: one gives its slot to the third
    run, the other one its blocks. Both are computed again."""
    ids = SMALL.texts[0].prompt_ids
    asked = [
        request([*ids, n], temperature=1.0, frequency_penalty=0.5, max_tokens=most, seed=n)
        for n, most in ((5, 9), (6, 9), (7, 40))
    ]
    *paused, other = small.page.evaluate(BESIDE, {"paused": asked[:2], "other": asked[2]})
    assert [ids_of(events) for events in (*paused, other)] == [
        ids_of(events) for events in small.run(*asked)
    ]
    assert not any(e["type"] == "queued" for e in other)
    for events in paused:
        told = [e["done"] for e in events if e["type"] == "prefill"]
        assert told == sorted(set(told)), "the prompt is told once"
        timings = events[-1]["timings"]
        assert timings["cache_n"] + timings["prompt_n"] == len(ids) + 1


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
