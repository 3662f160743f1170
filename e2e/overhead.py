"""Measure the cost of instruments: the speed of generation with panels closed, with the layers
captured, and with each instrument that follows the newest token open as well.

python -m e2e.overhead [--rounds 5] [--tokens 160] [--open attention,lens] [options of the server]

The bundled model (or --model, an option of the server) generates the same text in a real browser
from a real server. The states are interleaved, in alternating order, and each share is relative to
the closed panels of the same round, so that other load on the machine matters less. The speed is
that of all tokens after the second, by the engine's clock; questions are those that the page sent.
If /proc is available, the CPU time of the engine is printed too, in ms per token: a software device
shares its cores with the browser, and this figure excludes the cost of drawing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from playwright.sync_api import Browser

from e2e.playground import Playground
from e2e.processor_time import descendants_seconds
from e2e.screenshots import DESKTOP, chromium
from e2e.waiting import until
from tests.serving import serving

ASK = "Tell me a story about a fox who finds a lantern"
SEED = 11
WARM_TOKENS = 48
MAX_SECONDS = 300.0
INSTRUMENTS = ("attention", "lens", "filters", "timeline", "cache")
"""Instruments that follow the newest token during generation."""

DONE = """async () => {
  const { view } = await import("/static/js/view.js");
  return view.answer?.segment?.state === "done";
}"""

# The engine's times between tokens, and the number of questions that this page has sent.
READ = """async () => {
  const [{ view }, { questions }] = await Promise.all(
    ["view", "net/inspect"].map((name) => import(`/static/js/${name}.js`)),
  );
  const intervals = view.answer.tokens.slice(2).map(({ times }) => times.interval);
  return { intervals, questions: questions() };
}"""


@dataclass(frozen=True)
class PanelState:
    """Panels that are open during a run; `instrument` is a name in instruments.js or ""."""

    name: str
    capture: bool
    instrument: str = ""


CLOSED = PanelState("panels closed", capture=False)
LAYERS = PanelState("layers", capture=True)


@dataclass(frozen=True)
class Measurement:
    """One run: tokens per second, questions sent, CPU time of the engine in ms per token."""

    speed: float
    questions: int
    engine_ms: float | None


def engine_seconds() -> float | None:
    """Return the CPU time of the engines that this process started; None without /proc."""
    return descendants_seconds(b"spawn_main")


def write(browser: Browser, url: str, state: PanelState, n_tokens: int) -> Measurement:
    """Generate one text in one state, on a new page.

    An instrument is opened together with the request, because it would cover the settings."""
    page = browser.new_page(viewport=DESKTOP)
    play = Playground(page, url=url).open()
    began = engine_seconds()
    page.get_by_role("switch", name="Capture").set_checked(state.capture)
    play.set(max_tokens=n_tokens, seed=SEED)
    play.ask(ASK)
    if state.instrument:
        page.evaluate("(name) => { location.hash = `#look=${name}` }", state.instrument)
    until(page, lambda: page.evaluate(DONE), "the end of the text", MAX_SECONDS)
    ended = engine_seconds()
    result = page.evaluate(READ)
    page.close()
    intervals = result["intervals"]
    engine_ms = None if began is None or ended is None else 1000 * (ended - began) / n_tokens
    return Measurement(1000 * len(intervals) / sum(intervals), result["questions"], engine_ms)


def table(runs: dict[str, list[Measurement]]) -> Iterable[str]:
    """Yield a table of medians; shares are relative to the same round with closed panels."""
    yield f"{'open':24}{'tokens/s':>10}{'of closed':>11}{'questions':>11}{'engine, ms':>12}"
    closed = runs[CLOSED.name]
    for name, measured in runs.items():
        speed = median(run.speed for run in measured)
        share = median(run.speed / base.speed for run, base in zip(measured, closed, strict=True))
        asked = median(run.questions for run in measured)
        engine_ms = [run.engine_ms for run in measured if run.engine_ms is not None]
        engine = f"{median(engine_ms):12.2f}" if engine_ms else f"{'–':>12}"
        yield f"{name:24}{speed:10.1f}{share:11.2f}{asked:11.0f}{engine}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--open", default=",".join(INSTRUMENTS), help="names of instruments")
    arguments, options = parser.parse_known_args()
    instruments = [
        PanelState(f"layers, {name}", True, name) for name in arguments.open.split(",") if name
    ]
    states = [CLOSED, LAYERS, *instruments]
    runs: dict[str, list[Measurement]] = {state.name: [] for state in states}
    with chromium() as browser, serving(*options) as url:
        for state in states:  # warm up: record and compile every plan
            write(browser, url, state, WARM_TOKENS)
        for number in range(arguments.rounds):
            for state in states if number % 2 == 0 else reversed(states):
                runs[state.name].append(write(browser, url, state, arguments.tokens))
            print(f"round {number + 1} of {arguments.rounds}")
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
