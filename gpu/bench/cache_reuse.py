"""`python -m gpu.bench.cache_reuse`: an agent's transcript read with neither, prefix cache
and cache reuse: tokens computed, time, and the divergence of what the model would say.

The transcript has 12 steps: a system prompt and a request, then at each step what the model thinks,
the call of a tool and its result. As agents do to save room, results older than three steps are
replaced by a short note. So the first changed chunk of a prompt is in its middle, and all after it
is the same text at other positions.

Each prompt is read, and the logits after it and after each token of the next step are compared with
those of reading everything.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu.bench.arguments import count
from gpu.bench.prompt_reader import PromptReader
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import EngineError, ModelError
from gpu.kv.can_shift import why_not_shiftable
from gpu.kv.formats import KV_DTYPES
from gpu.load_options import LoadOptions
from gpu.reference.divergence import Divergence
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Floats
from gpu.text.tokenizer import Tokenizer
from gpu.tuning.autotune import load_tuning
from gpu.webgpu.device import Device

N_STEPS = 12
KEPT_RESULTS = 3
"""Results of tools that a prompt has in full."""

SYSTEM = (
    "You help a fox find her lantern. You may look into places and ask the animals. Say what you "
    "think, then call one tool. Stop when the lantern is found.\n"
)
REQUEST = "Please find my lantern. I had it in the evening, and now it is gone.\n"
NOTE = "Seen: (left out)\n"
PLACES = (
    ("the old barn", "There is hay on the floor and a broken chair. A mouse sleeps in a boot."),
    ("the river bank", "The water is low. Three flat stones lie in a row, and they are wet."),
    ("the oak tree", "An owl sits on a branch. She says that she saw a light last night."),
    ("the mill", "The wheel turns slowly. The miller has gone to town with his cart."),
    ("the bridge", "A rope hangs from the rail. Somebody has tied a blue ribbon to it."),
    ("the garden", "The gate is open. There are small feet in the mud beside the beans."),
    ("the well", "The bucket is at the bottom. It is too dark to see what is in it."),
    ("the hill", "From the top one can see the village, the river and the long road."),
    ("the cave", "It is cold inside. A bear has left some honey on a leaf by the wall."),
    ("the meadow", "The grass is high. A rabbit says that the hedgehog carried a light."),
    ("the hedge", "The hedgehog is at home. He says that he found a lantern on the path."),
    ("the path", "The lantern lies under a leaf. It is dry, and there is oil in it."),
)


@dataclass(frozen=True, slots=True)
class AgentPrompt:
    """Prompt of one step, and what the model writes then."""

    ids: list[int]
    reply: list[int]


@dataclass(frozen=True, slots=True)
class ReuseResult:
    """Totals of the transcript read in one way: prompt tokens computed, and moved from elsewhere in
    the cache; milliseconds; divergence from reading everything, None for that itself."""

    reuse: str
    prompt_tokens: int
    computed: int
    moved: int
    ms: float
    divergence: Divergence | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def transcript(tokenizer: Tokenizer) -> list[AgentPrompt]:
    """Return the prompts of all steps."""
    found = []
    for n in range(N_STEPS):
        text = SYSTEM + REQUEST + "".join(_step(i, n) for i in range(n))
        found.append(AgentPrompt(tokenizer.encode(text), tokenizer.encode(_words(n), bos=False)))
    return found


def _step(i: int, now: int) -> str:
    """Return step `i` as step `now` sees it."""
    result = f"Seen: {PLACES[i][1]}\n" if now - i <= KEPT_RESULTS else NOTE
    return _words(i) + result


def _words(i: int) -> str:
    place = PLACES[i][0]
    return f"I think that the lantern may be at {place}. I will look there.\nlook({place})\n"


def read(reader: PromptReader, prompt: AgentPrompt) -> tuple[Floats, ReuseResult]:
    """Return the logits after the prompt and after each token of its reply but the last,
    (len(reply), vocab_size), and the figures of the prompt alone."""
    n_before, began = reader.computed, time.perf_counter()
    sequence = reader.begin(prompt.ids)
    logits = [reader.last_logits(sequence)]
    ms = 1e3 * (time.perf_counter() - began)
    moved = sum(chunk.end - chunk.first for chunk in sequence.prefill.moved)
    figures = ReuseResult("", len(prompt.ids), reader.computed - n_before, moved, ms, None)
    for i, id in enumerate(prompt.reply[:-1]):
        logits.append(reader.next_logits(sequence, id, len(prompt.ids) + i))
    reader.end(sequence)
    return np.concatenate(logits), figures


def measure(runner: WgpuRunner, tokenizer: Tokenizer, least: int, repeat: int) -> list[ReuseResult]:
    """Read the transcript in every way, in turns; times are the medians of `repeat` turns."""
    prompts = transcript(tokenizer)
    ways = {"neither": (False, 0), "prefix": (True, 0), "chunks": (True, least)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, ReuseResult] = {}
    reference: list[Floats] = []
    for _ in range(repeat + 1):  # the first turn compiles
        for name, (prefix_cache, cache_reuse) in ways.items():
            reader = PromptReader(
                runner, tokenizer, prefix_cache=prefix_cache, cache_reuse=cache_reuse
            )
            logits, figures = zip(*(read(reader, prompt) for prompt in prompts), strict=True)
            reference = reference or list(logits)
            apart = Divergence.of(np.concatenate(reference), np.concatenate(logits))
            times[name].append(sum(one.ms for one in figures))
            found[name] = ReuseResult(
                name,
                sum(one.prompt_tokens for one in figures),
                sum(one.computed for one in figures),
                sum(one.moved for one in figures),
                float(np.median(times[name][1:] or times[name])),
                apart if name != "neither" else None,
            )
    return list(found.values())


def lines(results: list[ReuseResult]) -> Iterator[str]:
    """Yield the table as Markdown."""
    yield "| reuse | prompt tokens | computed | moved | ms | mean KL, nats | same first choice |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for one in results:
        apart = ("–", "–")
        if one.divergence is not None:
            apart = (f"{one.divergence.kl:.1e}", f"{one.divergence.same_top:.1%}")
        cells = [one.reuse, f"{one.prompt_tokens:,}", f"{one.computed:,}", f"{one.moved:,}"]
        yield f"| {' | '.join([*cells, f'{one.ms:.0f}', *apart])} |"


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        config = ModelConfig.from_folder(args.model)
        if (why := why_not_shiftable(config)) is not None:
            raise ModelError(why)
        device = load_tuning(Device.open(args.adapter))
        options = LoadOptions(dtype=args.dtype, kv_dtype=args.kv_dtype, slots=2)
        runner = WgpuRunner(device, config, Checkpoint.open(args.model), options)
        results = measure(runner, Tokenizer.load(args.model), args.least, args.repeat)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.model}, {args.dtype}, KV {runner.pools.dtype}, {device.info.driver}\n")
    print("\n".join(lines(results)))
    print(json.dumps([result.as_json() for result in results]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu.bench.cache_reuse", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--dtype", choices=tuple(FORMATS), default="f16")
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, help="storage of keys and values")
    parser.add_argument("--adapter", help="index or part of its name, see `tokenglass devices`")
    parser.add_argument("--least", type=int, default=16, help="`cache_reuse`: tokens of a chunk")
    parser.add_argument("--repeat", type=count, default=5)
    return parser


if __name__ == "__main__":
    sys.exit(main())
