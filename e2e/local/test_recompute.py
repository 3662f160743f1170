"""Texts that the engine in the browser computes again, piece by piece, while runs take the KV
blocks of earlier pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.quick

BLOCK = 4
PIECE_ROWS = 16
SCRIPT = """async ([limits, ids, first, acts]) => {
  const { Slots } = await import("/static/js/local/gpu/slots.js");
  const { CachedText } = await import("/static/js/local/gpu/cached-text.js");
  const { Recomputer } = await import("/static/js/local/gpu/recompute.js");
  const slots = new Slots({ limits });
  const { block_tokens: n } = limits;
  // What was computed where: each key has the tokens up to its own, as text.
  const keys = new Map();
  const placeOf = (slot, at) => `${slots.tables[slot][Math.floor(at / n)]} ${at % n}`;
  const textTo = (of, position) => of.slice(0, position + 1).join();
  let nRows = 0, nWrong = 0;
  const compute = ({ rows }, of) => {
    for (const { slot, position } of rows) {
      for (let before = 0; before < position; before += 1)
        if (keys.get(placeOf(slot, before)) !== textTo(of, before)) nWrong += 1;
      keys.set(placeOf(slot, position), textTo(of, position));
    }
  };
  const passes = {
    fill: async (part) => {
      nRows += part.rows.length;
      compute(part, ids);
    },
    logits: async (part) => compute(part, ids),
    copyBlocks: (from, to) => {
      for (const [i, block] of from.entries())
        for (let at = 0; at < n; at += 1) keys.set(`${to[i]} ${at}`, keys.get(`${block} ${at}`));
    },
  };
  let runs = [];
  const texts = () => {
    const found = [...slots.texts];
    for (const { slot, ids } of runs) found[slot] = new CachedText(ids);
    return found;
  };
  const cover = (slot, position) => slots.cover(slot, position) !== null;
  const act = {
    start: (own) => {
      const taken = slots.take(new CachedText(own));
      if (!taken) return;
      const { slot, reused } = taken;
      if (!cover(slot, own.length - 1)) return void slots.release(slot, new CachedText());
      runs.push({ slot, ids: own });
      compute({ rows: own.map((_, position) => ({ slot, position })).slice(reused) }, own);
    },
    end: () => {
      for (const { slot, ids: own } of runs) slots.release(slot, new CachedText(own));
      runs = [];
    },
  };
  const recomputer = new Recomputer({
    passes, slots, texts, cover, isIdle: () => false, maxRows: limits.max_rows,
  });
  const pieces = recomputer.logits(ids, first);
  let nPieces = 1;
  while (!(await pieces.next()).done) {
    nPieces += 1;
    for (const [name, ...given] of acts.splice(0, 2)) act[name](...given);
  }
  return { nRows, nWrong, nPieces };
}"""


RESOLVE = """async () => {
  const { LocalEngine } = await import("/static/js/local/gpu/engine.js");
  const { EngineError } = await import("/static/js/local/shared/errors.js");
  const activations = {
    async *resolveRun() {
      throw new EngineError("queue_full", "full");
    },
  };
  const first = async (active) => {
    const found = { ended: "", heard: false };
    const sequence = { end: (reason) => (found.ended = reason) };
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => (found.heard = true);
    port2.postMessage("stop");
    const engine = { activations, scheduler: { active } };
    await LocalEngine.prototype.resolve.call(engine, sequence).next();
    return found;
  };
  const writing = await first([{ paused: true }, { paused: false }]);
  const cancelled = await first([{ paused: true, finished: true }]);
  return { writing, cancelled, paused: await first([{ paused: true }]) };
}"""


def recompute(page: Page, ids: list[int], acts: list[tuple[Any, ...]], n_blocks: int) -> Any:
    """Return what the logits after the last of `ids` took, with two acts after each piece."""
    limits = {"slots": 2, "inspection_slot": 2, "block_tokens": BLOCK, "max_rows": 32}
    return page.evaluate(SCRIPT, [{**limits, "n_blocks": n_blocks}, ids, len(ids) - 1, acts])


def test_a_text_is_computed_once_in_pieces_where_there_is_room(loaded: Page) -> None:
    found = recompute(loaded, list(range(100)), [("start", [7, 8, 9]), ("end",)], n_blocks=60)
    assert found == {"nRows": 99, "nWrong": 0, "nPieces": 1 + -(-99 // PIECE_ROWS)}


def test_a_text_whose_blocks_were_taken_is_computed_in_one_piece(loaded: Page) -> None:
    """The run that took them ends at once: the text waits for no second one."""
    taker: list[tuple[Any, ...]] = [("start", list(range(200, 300))), ("end",)]
    found = recompute(loaded, list(range(100)), taker, n_blocks=26)
    assert found == {"nRows": PIECE_ROWS + 99, "nWrong": 0, "nPieces": 3}


def test_a_run_that_waits_for_blocks_to_steer_with_lets_messages_be_read(loaded: Page) -> None:
    """It waits for those that end, and a paused run need not end."""
    found = loaded.evaluate(RESOLVE)
    assert found["writing"] == found["cancelled"] == {"ended": "", "heard": True}
    assert found["paused"]["ended"] == "error"


@pytest.mark.parametrize("seed", range(4))
def test_rows_always_see_the_keys_of_their_own_text(loaded: Page, seed: int) -> None:
    """Also those that were copied from a run, or that a run begins with."""
    rng = np.random.default_rng(seed)
    ids = list(range(int(rng.integers(40, 90))))
    acts: list[tuple[Any, ...]] = []
    for _ in range(40):
        shared = int(rng.integers(len(ids)))
        own = [*ids[:shared], *(int(i) for i in rng.integers(1000, 2000, rng.integers(1, 30)))]
        acts += [("end",), ("start", own)]  # both texts have room beside each other
    assert recompute(loaded, ids, acts, n_blocks=56)["nWrong"] == 0
