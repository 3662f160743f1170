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
