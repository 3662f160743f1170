"""`python -m gpu.bench`: parse the arguments, run the contestants interleaved, print the report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from gpu.bench import __doc__ as purpose
from gpu.bench import context, quality
from gpu.bench.arguments import count, count_of_two, counts, file_to_append
from gpu.bench.contestants import Contestant, RunnerContestant, in_turns
from gpu.bench.floor import Floor
from gpu.bench.peers import PEERS, PeerMissing, add_peer_options
from gpu.bench.report import Report
from gpu.bench.subject import BenchModel
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.errors import EngineError
from gpu.kv.formats import KV_DTYPES
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.tuning.autotune import load_tuning
from gpu.webgpu.device import Device


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        with ExitStack() as stack:
            report = measure(args, stack)
            result = report.as_json()
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join([*report.lines(result), ""]))
    line = json.dumps(result)
    if args.append:
        with args.append.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    print(line)
    return 0


def measure(args: argparse.Namespace, stack: ExitStack) -> Report:
    """Load and run everything that `args` name; `stack` closes the peers."""
    subject = (
        BenchModel.from_shape(args.shape) if args.shape else BenchModel.from_folder(args.model)
    )
    n_tokens = min(args.tokens, subject.config.context // 2)
    n_prompt = min(args.prompt, subject.config.context - n_tokens)
    longest = max(n_prompt + n_tokens, *(n + context.STEPS for n in args.context), 0)
    device = Device.open(args.adapter)
    if args.probe:
        device = load_tuning(device)
    runner = subject.runner(device, args.dtype, longest, args.kv_dtype)
    report = Report(
        subject.name,
        args.dtype,
        runner.pools.dtype,
        n_prompt,
        n_tokens,
        RunnerContestant("tokenglass", runner),
        [],
    )
    report.others = _others(args, runner)
    pythons = dict(args.peer_python)
    for name in args.peer:
        try:
            peer = PEERS[name](subject, args.dtype, n_prompt + n_tokens, pythons.get(name))
        except PeerMissing as missing:
            report.missing[name] = str(missing)
            continue
        stack.callback(peer.close)
        report.others = [*report.others, peer]
        report.peer_devices[name] = peer.device
    prompt = np.random.default_rng(0).integers(0, subject.config.vocab_size, n_prompt).tolist()
    in_turns([report.own, *report.others], prompt, n_tokens, args.repeat)
    if args.context:
        report.contexts = context.measure(runner, args.context, args.repeat)
    if args.kl:
        exact = subject.runner(device, "f32", min(longest, args.kl))
        report.quality = quality.compare(exact, runner, quality.own_texts(exact, args.kl))
    return report


def _others(args: argparse.Namespace, runner: WgpuRunner) -> list[Contestant]:
    found: list[Contestant] = []
    if args.capture:
        found.append(RunnerContestant("captured", runner, capture=True))
    if args.floor:
        found.append(Floor(runner))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu.bench", description=(purpose or "").split("\n")[0]
    )
    add: Callable[..., Any] = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", type=Path, help="a model folder")
    what.add_argument(
        "--shape", choices=LLAMA_SHAPES, help="random weights, shaped as a known model"
    )
    add("--dtype", choices=tuple(FORMATS), default="f16")
    add("--kv-dtype", choices=KV_DTYPES, help="format of the KV cache (default: f16)")
    add("--adapter", help="index or part of its name, see `tokenglass devices`")
    add(
        "--probe",
        action="store_true",
        help="use the kernel tuning stored for the adapter; a software device is measured now if "
        "there is none",
    )
    add("--prompt", type=count, default=128, help="prompt tokens")
    add("--tokens", type=count, default=64, help="decode steps")
    add("--repeat", type=count, default=5)
    add("--floor", action="store_true", help="also measure the bare dispatches")
    add("--capture", action="store_true", help="also measure captured plans")
    add(
        "--context",
        type=counts,
        default=[],
        help="also decode at these contexts: 128,1024,…",
    )
    add(
        "--kl",
        type=count_of_two,
        nargs="?",
        const=quality.N_TOKENS,
        metavar="TOKENS",
        help="also compare the logits with those of f32 weights, on this many tokens of text that "
        f"the model writes itself (default: {quality.N_TOKENS})",
    )
    add_peer_options(parser, PEERS)
    add(
        "--append",
        type=file_to_append,
        metavar="FILE",
        help="also append the JSON line to this file",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
