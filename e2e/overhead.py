"""What looking costs a run: the speed of writing with panels closed, with the layers captured, and
with each instrument that asks about the newest token open as well.

python -m e2e.overhead [--rounds 5] [--tokens 160] [--open attention,lens] [options of the server]

The bundled model (or --model, an option of the server) writes the same text in a real browser, from
a real server. States are interleaved, forwards and backwards in turn, and a share is beside the
closed panels of the same round, so that a machine with other work to do tells about the same. A
speed is that of all tokens after the second, by the engine's clock; questions are those the page
asked. Where /proc tells, the processor time of the engine is given too, in ms a token: a software
device shares its cores with the browser, and this says what capturing and answering cost without
what drawing does.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser

from e2e.playground import Playground, until
from e2e.screenshots import DESKTOP, chromium
from tests.serving import serving

ASK = "Tell me a story about a fox who finds a lantern"
SEED = 11
WARM_TOKENS = 48
MOST_SECONDS = 300.0
INSTRUMENTS = ("attention", "lens", "filters", "timeline", "cache")
"""Those that follow the newest token while it is written."""

DONE = """async () => {
  const { view } = await import("/static/js/view.js");
  return view.answer?.segment?.state === "done";
}"""

# The engine's times between the tokens, and how many questions this page has asked so far.
READ = """async () => {
  const [{ view }, { questions }] = await Promise.all(
    ["view", "inspect"].map((name) => import(`/static/js/${name}.js`)),
  );
  const intervals = view.answer.tokens.slice(2).map(({ times }) => times.interval);
  return { intervals, questions: questions() };
}"""


@dataclass(frozen=True)
class State:
    """What is open while a text is written; `instrument` is a name of instruments.js or ""."""

    name: str
    capture: bool
    instrument: str = ""


CLOSED = State("panels closed", capture=False)
LAYERS = State("layers", capture=True)


@dataclass(frozen=True)
class Run:
    speed: float
    questions: int
    engine_ms: float | None


def engine_seconds() -> float | None:
    """Processor time so far of the engines that this process started; None where nothing tells."""
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        return None
    parents, ticks = {}, {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        if b"spawn_main" in command:
            ticks[pid] = int(fields[11]) + int(fields[12])
    ours = (n for pid, n in ticks.items() if os.getpid() in _ancestors(pid, parents))
    return sum(ours) / os.sysconf("SC_CLK_TCK")


def _ancestors(pid: int, parents: dict[int, int]) -> Iterable[int]:
    while pid := parents.get(pid, 0):
        yield pid


def write(browser: Browser, url: str, state: State, n_tokens: int) -> Run:
    """One text in one state, in a page without a past. An instrument is opened with the request:
    it would lie over the settings."""
    page = browser.new_page(viewport=DESKTOP)
    play = Playground(page, url).open()
    began = engine_seconds()
    page.get_by_role("switch", name="Capture").set_checked(state.capture)
    play.set(max_tokens=n_tokens, seed=SEED)
    play.ask(ASK)
    if state.instrument:
        page.evaluate("(name) => { location.hash = `#look=${name}` }", state.instrument)
    until(page, lambda: page.evaluate(DONE), "the end of the text", MOST_SECONDS)
    ended = engine_seconds()
    told = page.evaluate(READ)
    page.close()
    intervals = told["intervals"]
    took = None if began is None or ended is None else 1000 * (ended - began) / n_tokens
    return Run(1000 * len(intervals) / sum(intervals), told["questions"], took)


def table(runs: dict[str, list[Run]]) -> Iterable[str]:
    """Medians of the rounds, and the median of what each round lost to its closed panels."""
    yield f"{'open':24}{'tokens/s':>10}{'of closed':>11}{'questions':>11}{'engine, ms':>12}"
    closed = runs[CLOSED.name]
    for name, its in runs.items():
        speed = median(run.speed for run in its)
        share = median(run.speed / base.speed for run, base in zip(its, closed, strict=True))
        asked = median(run.questions for run in its)
        took = [run.engine_ms for run in its if run.engine_ms is not None]
        engine = f"{median(took):12.2f}" if took else f"{'–':>12}"
        yield f"{name:24}{speed:10.1f}{share:11.2f}{asked:11.0f}{engine}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--open", default=",".join(INSTRUMENTS), help="names of instruments")
    given, options = parser.parse_known_args()
    instruments = [State(f"layers, {name}", True, name) for name in given.open.split(",") if name]
    states = [CLOSED, LAYERS, *instruments]
    runs: dict[str, list[Run]] = {state.name: [] for state in states}
    with chromium() as browser, serving(*options) as url:
        for state in states:  # every plan is recorded and compiled before anything is timed
            write(browser, url, state, WARM_TOKENS)
        for number in range(given.rounds):
            for state in states if number % 2 == 0 else reversed(states):
                runs[state.name].append(write(browser, url, state, given.tokens))
            print(f"round {number + 1} of {given.rounds}")
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
