"""`python -m gpu.bench.context_shift`: perplexity and time of a text of ten contexts, read in three
ways.

    truncation  when the context is full, its oldest quarter is left out and the rest is read again:
                what a chat does that drops its oldest turns
    slide       the first four tokens stay, the oldest quarter of the others leaves the cache, and
                the rest moves (`gpu.kv.context_shift`)
    no sinks    the same, but nothing stays at the beginning

Every token is predicted from what the context holds then. The text is the model's own (see
`gpu.bench.quality`), or a file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpu.bench.prompt_reader import PromptReader
from gpu.bench.quality import own_texts
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import EngineError, ModelError
from gpu.kv.can_shift import why_not_shiftable
from gpu.kv.context_shift import ATTENTION_SINKS, ContextShift
from gpu.kv.formats import KV_DTYPES
from gpu.load_options import LoadOptions
from gpu.reference.divergence import mean_loss
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Floats
from gpu.text.tokenizer import Tokenizer
from gpu.tuning.autotune import load_tuning
from gpu.webgpu.device import Device

CONTEXTS = 10


@dataclass(frozen=True, slots=True)
class ContextShiftResult:
    """A text read in one way: its perplexity after the first context, tokens computed, and
    milliseconds."""

    way: str
    perplexity: float
    computed: int
    ms: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(runner: WgpuRunner, tokenizer: Tokenizer, ids: list[int]) -> list[ContextShiftResult]:
    """Read `ids` in every way; the same tokens are counted, those after the first context."""
    found = []
    for way, n_keep in (("truncation", None), ("slide", ATTENTION_SINKS), ("no sinks", 0)):
        reader = PromptReader(runner, tokenizer, prefix_cache=False)
        began = time.perf_counter()
        context = runner.limits.context
        if n_keep is None:
            logits = _read_truncated(reader, ids, context)
        else:
            logits = reader.all_logits(ids, n_keep=n_keep)
        ms = 1e3 * (time.perf_counter() - began)
        loss = mean_loss(logits[context - 1 : -1], ids[context:])
        found.append(ContextShiftResult(way, math.exp(loss), reader.computed, ms))
    return found


def _read_truncated(reader: PromptReader, ids: list[int], context: int) -> Floats:
    """Return the logits after every token, each read after what a context without its oldest
    quarters holds."""
    step = ContextShift(context, 0).n_drop
    parts = [reader.all_logits(ids[:context])]
    for first in range(step, len(ids) - context + step, step):
        window = ids[first : first + context]
        parts.append(reader.all_logits(window)[context - step :])
    return np.concatenate(parts)[: len(ids)]


def lines(results: list[ContextShiftResult]) -> Iterator[str]:
    """Yield the table as Markdown."""
    yield "| when the context is full | perplexity | tokens computed | ms |"
    yield "| --- | ---: | ---: | ---: |"
    for one in results:
        yield f"| {one.way} | {one.perplexity:.3f} | {one.computed:,} | {one.ms:.0f} |"


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        config = ModelConfig.from_folder(args.model)
        if (why := why_not_shiftable(config)) is not None:
            raise ModelError(why)
        device, checkpoint = load_tuning(Device.open(args.adapter)), Checkpoint.open(args.model)
        options = LoadOptions(dtype=args.dtype, kv_dtype=args.kv_dtype, slots=2)
        tokenizer = Tokenizer.load(args.model)
        n = CONTEXTS * args.context
        if args.text:
            ids = tokenizer.encode(args.text.read_text("utf-8"))[:n]
        else:
            writer = WgpuRunner(device, config, checkpoint, options)
            ids = [id for text in own_texts(writer, n) for id in text]
        runner = WgpuRunner(device, config, checkpoint, replace(options, context=args.context))
        results = measure(runner, tokenizer, ids)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.model}, {args.dtype}, KV {runner.pools.dtype}, {device.info.driver}")
    print(f"{len(ids):,} tokens, context {args.context}\n")
    print("\n".join(lines(results)))
    print(json.dumps([result.as_json() for result in results]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu.bench.context_shift", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--context", type=int, default=256, help="tokens of the context")
    parser.add_argument("--text", type=Path, help="a text file; default: the model writes one")
    parser.add_argument("--dtype", choices=tuple(FORMATS), default="f16")
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, help="storage of keys and values")
    parser.add_argument("--adapter", help="index or part of its name, see `tokenglass devices`")
    return parser


if __name__ == "__main__":
    sys.exit(main())
