"""GPU times of passes: what is timed, what they add up to, and to what a browser rounds them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.quick

ROUNDED = 65_536
"""Nanoseconds to which Chromium rounds."""


def rounding(page: Page, ticks: list[int]) -> float:
    found: float = page.evaluate(
        """async (ticks) => {
          const { roundingOf } = await import("/static/js/local/gpu/pass-clock.js");
          return roundingOf(ticks.map(BigInt));
        }""",
        [str(each) for each in ticks],
    )
    return found


def test_the_rounding_of_a_browser_is_found(loaded: Page) -> None:
    """From the ticks themselves: no browser tells it."""
    draw = random.Random(5)
    exact = [10**12 + draw.randrange(10**8) for _ in range(16)]
    assert rounding(loaded, exact) == 0
    assert rounding(loaded, [each // 40 * 40 for each in exact]) == 0, "a clock of 25 MHz"
    assert rounding(loaded, [each // ROUNDED * ROUNDED for each in exact]) == ROUNDED / 1e6


PASSES = """async ([ticks, n]) => {
  const { passTimes } = await import("/static/js/local/gpu/pass-clock.js");
  const data = new BigUint64Array(ticks.map(BigInt)).buffer;
  return passTimes(data, 8, n);
}"""


def test_passes_add_up_to_the_step(loaded: Page) -> None:
    begin, ends = 5_000_000, [5_250_000, 5_250_000, 9_000_000]
    times = loaded.evaluate(PASSES, [["1", *map(str, [begin, *ends]), "1"], 3])
    assert times == [0.25, 0, 3.75]
    assert loaded.evaluate(PASSES, [["1", "7", "5", "9"], 2]) is None, "the clock was set back"


ENDS = """async ([profile, clock, steps]) => {
  const { StepQueue } = await import("/static/js/local/gpu/step-queue.js");
  const queue = { clock, nCaptured: 0, plan: { profile, limits: { slots: 2 } } };
  const recorded = { marks: [[1, "embed"], [3, "layer00.attn"], [5, "layer00.mlp"]] };
  return steps.map((step) => StepQueue.prototype.passEnds.call(queue, recorded, 7, step));
}"""
DECODE = {"rows": 2, "captured": True}
PROMPT = {"rows": 3, "captured": True}
PLAIN = {"rows": 2, "captured": False}


def test_layers_of_some_tokens_are_timed(loaded: Page) -> None:
    """A GPU may stop between passes, so that it is one token in eight there; prompts always."""
    every, once = [1, 3, 5, 7], [7]
    steps = [*[DECODE] * 9, PLAIN, PROMPT]
    assert loaded.evaluate(ENDS, ["software", {}, steps]) == [*[every] * 9, once, every]
    found = loaded.evaluate(ENDS, ["portable", {}, steps])
    assert found == [every, *[once] * 7, every, once, every]
    assert loaded.evaluate(ENDS, ["portable", None, steps]) == [once] * 11, "no timestamps"


def test_the_passes_of_a_timed_step_are_those_of_its_layers(loaded: Page) -> None:
    found = loaded.evaluate(
        """async () => {
          const { layerTimes } = await import("/static/js/local/gpu/results.js");
          const passes = [0.5, 1, 2, 3, 4, 0.25];
          return [layerTimes({ passes, nRows: 2 }, 9), layerTimes({ passes: null, nRows: 1 }, 9)];
        }"""
    )
    layers = [{"attention_ms": 1, "mlp_ms": 2}, {"attention_ms": 3, "mlp_ms": 4}]
    times = {"position": 9, "nRows": 2, "layers": layers, "embed": 0.5, "head": 0.25}
    assert found == [times, None]


TIMES = """async ([runs, repeat, clockMs]) => {
  const { dispatchTimes } = await import("/static/js/local/inspection/dispatch-times.js");
  const left = [...runs];
  const pieces = dispatchTimes(["embed", "head"], { repeat, clockMs }, async () => left.shift());
  let n = 0;
  for (;;) {
    const { done, value } = await pieces.next();
    if (done) return { n, info: value.info, ms: value.arrays.ms && [...value.arrays.ms.values] };
    n += 1;
  }
}"""
RUNS = [[1, 0.5], [2, 0.5], [9, 0.25]]


@pytest.mark.parametrize(
    ("repeat", "clock_ms", "ms"), [(3, 0, [2, 0.5]), (2, 0, [1.5, 0.5]), (3, 0.0625, [4, 1.25 / 3])]
)
def test_dispatches_are_timed_over_several_runs(
    loaded: Page, repeat: int, clock_ms: float, ms: list[float]
) -> None:
    """Their median, or, of rounded times, their mean."""
    found = loaded.evaluate(TIMES, [RUNS, repeat, clock_ms])
    assert found["ms"] == pytest.approx(ms)
    assert found["info"] == {"dispatches": ["embed", "head"]}
    assert found["n"] == repeat, "other runs go on after each"


def test_a_device_without_a_clock_has_no_times(loaded: Page) -> None:
    found: dict[str, Any] = loaded.evaluate(TIMES, [[None], 5, 0])
    assert found["ms"] is None
