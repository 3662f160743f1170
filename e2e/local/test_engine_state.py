"""What the engine in the browser tells of its KV blocks and its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.quick

BLOCK = 4
SLOTS = """async ([limits, acts]) => {
  const { Slots } = await import("/static/js/local/gpu/slots.js");
  const { CachedText } = await import("/static/js/local/gpu/cached-text.js");
  const { cacheAnswer } = await import("/static/js/local/inspection/engine-state.js");
  const slots = new Slots({ limits });
  const runs = [];
  const texts = (running) => {
    const found = [...slots.texts];
    for (const { slot, ids, computed } of running) found[slot] = new CachedText(ids).upTo(computed);
    return found;
  };
  const act = {
    start: (ids) => {
      const taken = slots.take(new CachedText(ids));
      runs.push({ run: runs.length + 1, ids, computed: 0, ...taken });
    },
    compute: (n, upto) => {
      const run = runs[n - 1];
      run.computed = upto;
      return slots.cover(run.slot, upto - 1);
    },
    end: (n) => {
      const run = runs[n - 1];
      run.ended = true;
      slots.release(run.slot, new CachedText(run.ids).upTo(run.computed));
    },
    ask: (ids) => {
      slots.cover(slots.inspection, ids.length - 1);
      slots.keep(slots.inspection, new CachedText(ids), ids.length);
    },
  };
  const answers = [];
  for (const [name, ...given] of acts) {
    act[name](...given);
    const running = runs.filter(({ ended }) => !ended);
    const { info, arrays } = cacheAnswer(slots, texts(running), running);
    const plain = Object.entries(arrays).map(([key, { values }]) => [key, [...values]]);
    answers.push({ info, ...Object.fromEntries(plain), free: [...slots.freeBlocks] });
  }
  return { answers, runs };
}"""

Acts = list[tuple[Any, ...]]


def play(page: Page, acts: Acts, n_blocks: int = 12) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the state of the cache after each act, and the runs."""
    limits = {"slots": 2, "inspection_slot": 2, "n_blocks": n_blocks, "block_tokens": BLOCK}
    found = page.evaluate(SLOTS, [limits, acts])
    return found["answers"], found["runs"]


def test_two_runs_and_the_text_of_an_ended_one(loaded: Page) -> None:
    """A run has the blocks of its tokens and no others; what it leaves is found by the next."""
    first, second = list(range(10)), list(range(100, 106))
    acts: Acts = [
        ("start", first), ("compute", 1, 10),
        ("start", second), ("compute", 2, 6),
        ("end", 1),
        ("start", [*first[:6], 50, 51]), ("compute", 3, 8),
    ]  # fmt: skip
    states, runs = play(loaded, acts)
    both, left, found, longer = states[3], states[4], states[5], states[6]
    assert both["runs"] == [1, 2]
    assert both["n_run_blocks"] == [3, 2]
    assert sum(both["owners"]) == 5
    assert sorted(n for n in both["n_found"] if n) == [2, 2, 4, 4, 4]
    own = both["run_blocks"][:3]
    assert [both["first"][block] for block in own] == [0, 4, 8]
    assert [left["owners"][block] for block in own] == [0, 0, 0], "cached"
    assert [left["n_found"][block] for block in own] == [4, 4, 2]
    assert runs[2]["reused"] == 6
    assert found["n_run_blocks"] == [2, 2], "those of the 6 tokens that were found"
    assert (found["n_found"][own[2]], found["first"][own[2]]) == (0, -1)
    assert found["info"]["evictions"] == 1
    assert found["info"]["prompt_tokens"] == 10 + 6 + 8
    assert found["info"]["reused_tokens"] == 6
    assert longer["n_run_blocks"] == [2, 2]
    used = [longer["used"][block] for block in longer["run_blocks"]]
    assert min(used[2:]) > max(used[:2]), "the third run is the latest"


@pytest.mark.parametrize("seed", range(4))
def test_each_block_is_free_cached_or_of_one_run(loaded: Page, seed: int) -> None:
    """Whatever runs and questions do, with too few blocks for all texts."""
    rng = np.random.default_rng(seed)
    acts: Acts = []
    running: list[int] = []
    n_runs = 0
    lengths: dict[int, int] = {}
    for _ in range(60):
        length = int(rng.integers(2, 16))
        ids = [int(i < 7) * i + int(i >= 7) * int(rng.integers(20)) for i in range(length)]
        kind = rng.choice(["start", "end", "ask"])
        if kind == "start" and len(running) < 2:
            n_runs += 1
            running.append(n_runs)
            lengths[n_runs] = length
            acts += [("start", ids), ("compute", n_runs, length)]
        elif kind == "end" and running:
            acts.append(("end", running.pop(int(rng.integers(len(running))))))
        elif kind == "ask":
            acts.append(("ask", ids[:8]))
    states, _ = play(loaded, acts, n_blocks=10)
    for state, act in zip(states, acts, strict=True):
        owned, free = state["run_blocks"], state["free"]
        assert len(set(owned)) == len(owned) == sum(state["owners"])
        assert not {*owned} & {*free}
        cached = {b for b, n in enumerate(state["n_found"]) if n and not state["owners"][b]}
        assert not cached & {*free}
        if act[0] == "compute":
            n = state["runs"].index(act[1])
            assert state["n_run_blocks"][n] == -(-act[2] // BLOCK)
    assert states[-1]["info"]["evictions"] > 0


def test_steps_are_logged_while_somebody_reads_them(loaded: Page) -> None:
    """Chunks, tokens and who waits, each step numbered, the last 512 of them."""
    found = loaded.evaluate(
        """async () => {
          const { StepLog } = await import("/static/js/local/gpu/step-log.js");
          const { stepsAnswer } = await import("/static/js/local/inspection/engine-state.js");
          let now = 0;
          const log = new StepLog(() => now);
          const [one, two] = [{ run: 1 }, { run: 2 }];
          const prefill = { parts: [{ sequence: two }, { sequence: one, chunk: { n: 32 } }] };
          const decode = () => ({ parts: [{ sequence: one }, { sequence: two }] });
          const step = (of, waiting = []) => {
            log.submitted(of, () => waiting);
            log.collected(of, 2.5);
          };
          step(decode());
          const before = log.read(0);
          step(prefill, [7, 8]);
          step(decode());
          const { arrays } = stepsAnswer(log.read(0));
          const later = log.read(1).map(({ number }) => number);
          for (let i = 0; i < 600; i += 1) step(decode());
          const kept = log.read(0).map(({ number }) => number);
          now = 6000;
          step(decode());
          const plain = Object.entries(arrays).map(([key, { values }]) => [key, [...values]]);
          const unread = log.read(kept.at(-1));
          return { ...Object.fromEntries(plain), before, later, kept, unread };
        }"""
    )
    assert found["before"] == [], "nobody had asked"
    assert found["numbers"] == [1, 2]
    assert found["ms"] == [2.5, 2.5]
    assert found["n_parts"] == [4, 2]
    assert found["parts"] == [
        *(2, 1, 1, 0), *(1, 0, 32, 0), *(7, 2, 0, 0), *(8, 2, 0, 0),
        *(1, 1, 1, 0), *(2, 1, 1, 0),
    ]  # fmt: skip
    assert found["later"] == [2]
    assert found["kept"] == list(range(91, 603))
    assert found["unread"] == [], "nobody had asked for some seconds"
