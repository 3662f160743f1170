"""`python -m gpu.bench.serving`: parse the arguments, load the engine, print the tables."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from gpu.bench.arguments import count, count_of_two, counts, file_to_append
from gpu.bench.peers import SERVING_PEERS, PeerMissing, add_peer_options
from gpu.bench.peers.peer import ChildPeer
from gpu.bench.serving import __doc__ as purpose
from gpu.bench.serving.streams import (
    Load,
    LongPromptResult,
    Streaming,
    StreamsResult,
    random_prompt,
)
from gpu.bench.subject import BenchModel
from gpu.bench.table import long_prompt_table, peer_lines, serving_table
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.engine.engine import Engine
from gpu.errors import EngineError, InvalidRequest
from gpu.kv.blocks import block_bytes, blocks_for
from gpu.load_options import SPEC_TYPES, LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.text.token_table import TokenizerLike
from gpu.tuning.autotune import load_tuning
from gpu.webgpu.device import Device

WARM_UP_TOKENS = 8
UNBOUNDED = 1e9
"""Slowdown by a prompt's chunk that no chunk reaches."""


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        result = measure(args)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(result)))
    print(json.dumps(result))
    if args.append:
        with args.append.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure what `args` name, as JSON."""
    subject = (
        BenchModel.from_shape(args.shape) if args.shape else BenchModel.from_folder(args.model)
    )
    options = _options(subject, args)
    spec_types = list(dict.fromkeys(("none", args.spec_type)))
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for spec_type in spec_types:
            with_drafts = replace(options, spec_type=spec_type)
            engines[spec_type] = open_engine(subject, with_drafts, args.adapter)
            stack.callback(engines[spec_type].close)
        peers, missing = _peers(subject, args, stack)
        info = engines["none"].info.device
        measured = {name: Load(engine) for name, engine in engines.items()} | peers
        found = streams(measured, subject.config.vocab_size, args, missing)
        result = {
            "kind": "serving",
            "model": subject.name,
            "dtype": args.dtype,
            "device": f"{info.name}, {info.driver}, {info.backend}",
            "prompt": args.prompt,
            "tokens": args.tokens,
            "streams": found["none"],
            "with_drafts": {name: found[name] for name in spec_types[1:]},
            "peers": {
                peer.name: {"device": peer.device, "streams": found[name]}
                for name, peer in peers.items()
                if name in found
            },
            "missing": missing,
        }
    if args.long:
        result["long_prompt"] = [
            _long_prompt(
                subject, replace(options, max_prefill_slowdown=slowdown), args, chunks
            ).as_json()
            for chunks, slowdown in (
                ("short", options.max_prefill_slowdown),
                ("longest", UNBOUNDED),
            )
        ]
    return result


def _options(subject: BenchModel, args: argparse.Namespace) -> LoadOptions:
    n_streams = max([*args.streams, args.beside + 1])
    context = max(args.prompt + args.tokens, args.long + 1, 16 + args.long_tokens)
    return LoadOptions(
        dtype=args.dtype,
        context=context,
        slots=n_streams,
        queue=0,
        prefix_cache=False,
        kv_memory_bytes=n_streams
        * blocks_for(context)
        * block_bytes(subject.config, FORMATS[args.dtype].kv),
    )


def _peers(
    subject: BenchModel, args: argparse.Namespace, stack: ExitStack
) -> tuple[dict[str, ChildPeer], dict[str, str]]:
    """Return the peers that run here, which `stack` closes, and why the others do not."""
    pythons = dict(args.peer_python)
    found: dict[str, ChildPeer] = {}
    missing: dict[str, str] = {}
    context = args.prompt + args.tokens
    for name in dict.fromkeys(args.peer):
        start = SERVING_PEERS[name]
        try:
            peer = start(subject, args.dtype, context, max(args.streams), pythons.get(name))
        except PeerMissing as reason:
            missing[name] = str(reason)
            continue
        stack.callback(peer.close)
        found[name] = peer
    return found, missing


def open_engine(subject: BenchModel, options: LoadOptions, adapter: str | None) -> Engine:
    """Return an engine without a tokenizer."""
    return Engine(
        lambda: WgpuRunner(
            load_tuning(Device.open(adapter)), subject.config, subject.checkpoint, options
        ),
        cast(TokenizerLike, NoText()),
        options,
    )


class NoText:
    """Stand-in for a tokenizer where prompts are ids: the text of every token is empty."""

    eos_ids = ()
    n_stripped_spaces = 0

    def encode(self, text: str) -> list[int]:
        raise InvalidRequest("this engine has no tokenizer; give ids")

    def piece(self, id: int) -> str:
        return ""

    def token_bytes(self, id: int) -> bytes:
        return b""


def streams(
    measured: Mapping[str, Streaming],
    vocab_size: int,
    args: argparse.Namespace,
    missing: dict[str, str],
) -> dict[str, list[Any]]:
    """Return for each engine and number of streams the median of `args.repeat` measurements, in
    turns, after a warm-up that compiles. An engine that fails is in `missing` instead, with the
    reason."""
    rng = np.random.default_rng(0)
    found: dict[str, dict[int, list[StreamsResult]]] = {
        name: {n: [] for n in args.streams} for name in measured
    }
    for turn in range(-1, args.repeat):
        for n in args.streams:
            prompts = [random_prompt(rng, vocab_size, args.prompt) for _ in range(n)]
            for name in list(found):
                try:
                    times = measured[name].streams(
                        prompts, WARM_UP_TOKENS if turn < 0 else args.tokens
                    )
                except PeerMissing as reason:
                    missing[name] = str(reason)
                    del found[name]
                    continue
                if turn >= 0:
                    found[name][n].append(StreamsResult.of(times))
    return {
        name: [_median(results).as_json() for results in by_number.values()]
        for name, by_number in found.items()
    }


def _median(results: list[StreamsResult]) -> StreamsResult:
    """Return the measurement of median speed, with the median of the processor's times."""
    middle = sorted(results, key=lambda result: result.tok_s)[len(results) // 2]
    return replace(middle, cpu_ms=statistics.median(result.cpu_ms for result in results))


def lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield the tables as Markdown."""
    yield f"{result['model']}, {result['dtype']}, {result['device']}"
    yield ""
    yield from serving_table([result])
    yield from peer_lines([result])
    if "long_prompt" in result:
        yield ""
        yield from long_prompt_table([result])


def _long_prompt(
    subject: BenchModel, options: LoadOptions, args: argparse.Namespace, chunks: str
) -> LongPromptResult:
    engine = open_engine(subject, options, args.adapter)
    try:
        load = Load(engine)
        load.long_prompt(chunks, args.beside, args.long, args.long_tokens)  # compiles
        return load.long_prompt(chunks, args.beside, args.long, args.long_tokens)
    finally:
        engine.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu.bench.serving", description=(purpose or "").split("\n\n")[0]
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", type=Path, help="a model folder")
    what.add_argument(
        "--shape", choices=LLAMA_SHAPES, help="random weights, shaped as a known model"
    )
    parser.add_argument("--dtype", choices=tuple(FORMATS), default="f16")
    parser.add_argument("--adapter", help="index or part of its name, see `tokenglass devices`")
    parser.add_argument("--streams", type=counts, default=[1, 2, 4, 8, 16], help="1,2,4,…")
    parser.add_argument("--prompt", type=count, default=32, help="prompt tokens")
    parser.add_argument(
        "--tokens", type=count_of_two, default=64, help="tokens that a stream writes"
    )
    parser.add_argument("--repeat", type=count, default=3)
    parser.add_argument(
        "--spec-type", choices=SPEC_TYPES, default="none", help="measure with drafts too"
    )
    add_peer_options(parser, SERVING_PEERS)
    parser.add_argument(
        "--append", type=file_to_append, metavar="FILE", help="add the line of JSON here"
    )
    parser.add_argument("--long", type=int, default=0, help="tokens of a long prompt")
    parser.add_argument("--beside", type=count, default=1, help="streams that it arrives beside")
    parser.add_argument("--long-tokens", type=int, default=400, help="tokens that these write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
