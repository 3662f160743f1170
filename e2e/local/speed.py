"""Measure the speed of the engine in a browser, beside the server's engine and transformers.js.

VK_DRIVER_FILES=/usr/lib/chromium/vk_swiftshader_icd.json python -m e2e.local.speed [--dtype q8]

All compute on the same adapter: headless Chromium brings SwiftShader, and the variable gives it to
the server's engine. In every turn they read the same random prompt and write as many tokens, one
after the other; every second turn runs backwards. A speed is the median over the turns, a ratio the
median of the ratios within each turn. Where /proc is, the processor's time for a token is told too:
other programs on the machine change it less.

transformers.js runs too if `--node-modules` names the folder to which `npm install
@huggingface/transformers` put it. It gets the same weights as a graph of onnxruntime's fused
operators (`gpu/bench/peers/onnx_file.py`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from playwright.sync_api import Browser, Error

from app.config import Settings
from app.models.find_model import find_model
from app.site.export import export
from app.tale import model_dir
from e2e.local.local_engine import LocalEnginePage, ids_of, request
from e2e.local.transformers_js import TransformersJsPage
from e2e.processor_time import descendants_seconds
from e2e.screenshots import chromium
from gpu import Engine, Request, SamplingParams
from gpu.bench.peers import onnx_file
from gpu.bench.subject import BenchModel
from gpu.load_options import LoadOptions

CONTEXT = 1024
FIRST_ID = 16
"""Ids below it may be special tokens."""
DRIVER = "VK_DRIVER_FILES"


@dataclass(frozen=True)
class Written:
    """One text: its ids, and the tokens/s of prompt and answer."""

    ids: list[int]
    prefill: float
    decode: float


@dataclass(frozen=True)
class Contestant:
    """An engine. `write` answers a prompt with so many tokens, greedily; `seconds` returns the
    processor's time that it has used so far, or None."""

    name: str
    write: Callable[[list[int], int], Written]
    seconds: Callable[[], float | None]


@dataclass(frozen=True)
class Turn:
    """What one contestant did in one turn; `ms`: of the processor, for each written token."""

    written: Written
    ms: float | None


def server(folder: Path, dtype: str) -> Contestant:
    """The server's engine."""
    engine = Engine.load(folder, LoadOptions(dtype=dtype, slots=2))

    def write(prompt: list[int], n: int) -> Written:
        params = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, seed=5)
        run = engine.submit(Request(prompt, params))
        ids = [token.id for token in run]
        assert run.done is not None
        timings = run.done.timings
        return Written(ids, timings.prompt_per_second, timings.predicted_per_second)

    return Contestant("server", write, time.process_time)


def browser_engine(browser: Browser, folder: Path, dtype: str, out: Path) -> Contestant:
    """The engine in the browser, from an export."""
    settings = Settings(model=str(folder), dtype=dtype)
    page = LocalEnginePage(lambda **_: browser, [])
    page.load(export(settings, find_model(settings), out).folder)

    def write(prompt: list[int], n: int) -> Written:
        [events] = page.run(request(prompt, temperature=0, max_tokens=n))
        timings = events[-1]["timings"]
        speeds = timings["prompt_per_second"], timings["predicted_per_second"]
        return Written(ids_of(events), *speeds)

    return Contestant("browser", write, _browser_seconds)


def transformers_js(
    browser: Browser, folder: Path, dtype: str, modules: Path, out: Path
) -> Contestant:
    """transformers.js in the same browser. Raises playwright's Error with its message."""
    (out / "onnx").mkdir(parents=True)
    shutil.copyfile(folder / "config.json", out / "config.json")
    subject = BenchModel.from_folder(folder)
    onnx_file.write_for_transformers_js(subject, dtype, out / "onnx" / "model.onnx", CONTEXT)
    page = TransformersJsPage(browser, modules, out)

    def write(prompt: list[int], n: int) -> Written:
        found = page.write(prompt, n)
        prefill = len(prompt) / found["firstMs"] * 1e3
        return Written(found["ids"], prefill, (n - 1) / found["restMs"] * 1e3)

    write([FIRST_ID], 2)  # a graph that this browser cannot run fails when it first runs
    return Contestant("transformers.js", write, _browser_seconds)


def _browser_seconds() -> float | None:
    return descendants_seconds(b"chrom")


def take_turns(
    contestants: list[Contestant], n_turns: int, n_prompt: int, n_tokens: int, vocab_size: int
) -> Iterator[dict[str, Turn]]:
    """Yield the turns, after one that warms everything up."""
    rng = np.random.default_rng(0)
    for i in range(n_turns + 1):
        prompt = [int(id) for id in rng.integers(FIRST_ID, vocab_size, n_prompt)]
        turn = {c.name: measured(c, prompt, n_tokens) for c in contestants[:: (-1) ** i]}
        for name, each in turn.items():
            ms = "" if each.ms is None else f", {each.ms:.1f} ms of the processor a token"
            print(f"turn {i}, {name}: {each.written.decode:.1f} tokens/s{ms}", flush=True)
        if i:
            yield turn


def measured(contestant: Contestant, prompt: list[int], n: int) -> Turn:
    before = contestant.seconds()
    written = contestant.write(prompt, n)
    after = contestant.seconds()
    both_known = before is not None and after is not None
    return Turn(written, (after - before) / n * 1e3 if both_known else None)


def table(turns: list[dict[str, Turn]], names: list[str]) -> Iterator[str]:
    """Yield a Markdown table. `browser ×`: decode speed of the engine in the browser over this
    one's; `same ids`: turns in which both wrote the same; `processor ms`: for a written token;
    `its ×`: this one's processor time over the browser's."""
    heads = "engine", "prefill tokens/s", "decode tokens/s", "browser ×", "same ids"
    yield f"| {' | '.join((*heads, 'processor ms', 'its ×'))} |"
    yield f"| --- |{' ---: |' * 6}"
    for name in names:
        mine, others = [turn[name] for turn in turns], [turn["browser"] for turn in turns]
        pairs = list(zip(mine, others, strict=True))
        decode = median(other.written.decode / one.written.decode for one, other in pairs)
        same = sum(one.written.ids == other.written.ids for one, other in pairs)
        ms = [(one.ms, one.ms / other.ms) for one, other in pairs if one.ms and other.ms]
        used = f"{median(n for n, _ in ms):.1f}" if ms else "–"
        ratio = f"{median(n for _, n in ms):.2f}" if ms else "–"
        cells = (
            f"{median(turn.written.prefill for turn in mine):,.0f}",
            f"{median(turn.written.decode for turn in mine):,.1f}",
            f"{decode:.2f}",
            f"{same} of {len(turns)}",
            used,
            ratio,
        )
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=model_dir(), help="folder of a model")
    parser.add_argument("--dtype", default="f32", help="storage type of the weights")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--node-modules", type=Path, help="folder of transformers.js")
    options = parser.parse_args()
    if DRIVER not in os.environ:
        print(f"{DRIVER} is not set: the server may use another adapter than the browser")
    with chromium("--enable-unsafe-webgpu") as browser, tempfile.TemporaryDirectory() as out:
        contestants = [
            server(options.model, options.dtype),
            browser_engine(browser, options.model, options.dtype, Path(out, "export")),
        ]
        if options.node_modules:
            peer = options.model, options.dtype, options.node_modules, Path(out, "onnx")
            try:
                contestants.append(transformers_js(browser, *peer))
            except Error as error:
                print(f"transformers.js does not run {options.dtype}: {error.message}")
        vocab_size = BenchModel.from_folder(options.model).config.vocab_size
        sizes = options.prompt, options.tokens, vocab_size
        turns = list(take_turns(contestants, options.turns, *sizes))
    print("\n".join(table(turns, [each.name for each in contestants])))


if __name__ == "__main__":
    main()
