"""Measures a model on a device: `python -m gpu.bench --model DIR [--peer torch]`.

Prefill and decode run through the same runner and in-flight depth as the engine uses, without
sampling filters or text. Repetitions of everything compared are interleaved, figures are medians;
on a shared machine trust the ratios, not the absolute times. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu.blocks import blocks_for
from gpu.buffers import Memory
from gpu.config import ModelConfig
from gpu.device import Device
from gpu.errors import EngineError
from gpu.step import FROM_GPU, Row, Runner, Sample, Step, StepResult
from gpu.wgpu_runner import WgpuRunner

COPY_BYTES = 64 << 20
COPY_REPEATS = 5


@dataclass(slots=True)
class Figures:
    """Of one contestant, one entry for each repetition."""

    prefill_tok_s: list[float] = field(default_factory=list)
    decode_tok_s: list[float] = field(default_factory=list)
    encode_ms: list[float] = field(default_factory=list)
    gpu_ms: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)

    def median(self, name: str) -> float:
        values = getattr(self, name)
        return statistics.median(values) if values else float("nan")


class Contestant:
    """A runner with a name, measured by `prefill` and `decode` in turn."""

    def __init__(self, name: str, runner: Runner, capture: bool = False) -> None:
        self.name = name
        self.runner = runner
        self.capture = capture
        self.figures = Figures()

    def run(self, prompt: list[int], n_tokens: int) -> None:
        """One repetition: the prompt in pieces, then `n_tokens` decode steps."""
        runner = self.runner
        runner.begin_slot(0, np.array(prompt, np.uint32))
        runner.set_blocks(0, list(range(blocks_for(len(prompt) + n_tokens))))
        began = time.perf_counter()
        self._pipeline(self._prefill_steps(prompt))
        self.figures.prefill_tok_s.append(len(prompt) / (time.perf_counter() - began))
        began = time.perf_counter()
        results = self._pipeline(
            [self._decode_step(len(prompt), i) for i in range(1, n_tokens + 1)]
        )
        self.figures.decode_tok_s.append(n_tokens / (time.perf_counter() - began))
        for name in ("encode_ms", "gpu_ms", "wait_ms", "read_ms"):
            values = [v for r in results if (v := getattr(r, name)) is not None]
            if values:
                getattr(self.figures, name).append(statistics.median(values))

    def _pipeline(self, steps: list[Step]) -> list[StepResult]:
        """Submit and collect as the engine does: `in_flight` deep."""
        runner, results = self.runner, []
        for i, step in enumerate(steps):
            runner.submit(step)
            if i + 1 >= runner.in_flight:
                results.append(runner.collect())
        while len(results) < len(steps):
            results.append(runner.collect())
        return results

    def _prefill_steps(self, prompt: list[int]) -> list[Step]:
        limits = self.runner.limits
        size = limits.max_captured_rows if self.capture else limits.max_rows
        steps = []
        for first in range(0, len(prompt), size):
            ids = prompt[first : first + size]
            rows = tuple(Row(0, first + i, id) for i, id in enumerate(ids))
            last = first + size >= len(prompt)
            samples = (_greedy(len(rows) - 1, 0),) if last else ()
            steps.append(Step(rows, samples, self.capture))
        return steps

    def _decode_step(self, n_prompt: int, index: int) -> Step:
        row = Row(0, n_prompt + index - 1, FROM_GPU)
        return Step((row,), (_greedy(0, index),), self.capture)


def _greedy(row: int, index: int) -> Sample:
    return Sample(row, 0, 0, index, 0.0, 0, 1.0, 0.0, 1.0)


def copy_bandwidth(device: Device) -> float:
    """Bytes per second of a large buffer-to-buffer copy, read and written bytes both counted."""
    gpu, memory = device.wgpu, Memory(device)
    n = min(COPY_BYTES, device.max_binding_bytes) // 4 * 4
    source, target = (memory.zeros(name, (n // 4,)).buffer for name in ("source", "target"))
    times = []
    for _ in range(COPY_REPEATS):
        encoder = gpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, 0, target, 0, n)
        commands = encoder.finish()
        began = time.perf_counter()
        gpu.queue.submit([commands])
        gpu.queue.read_buffer(target, 0, 4)  # waits for the copy
        times.append(time.perf_counter() - began)
    return 2 * n / min(times)


def decode_bytes(runner: WgpuRunner, context: int) -> int:
    """Bytes a decode step must read: every matrix once (of an untied embedding one row), and the
    keys and values of `context` tokens."""
    model = runner.model
    weights = sum(m.n_bytes for m in model.matrices())
    if not runner.config.tie_embeddings:
        weights -= (
            model.embedding.n_bytes * (runner.config.vocab_size - 1) // runner.config.vocab_size
        )
    per_token = runner.limits.block_bytes // runner.limits.block_tokens
    return weights + context * per_token


def report(
    contestants: list[Contestant], n_prompt: int, n_tokens: int, dtype: str, model: str
) -> dict[str, Any]:
    """Print the table and return the JSON object."""
    own = contestants[0]
    runner, figures = own.runner, own.figures
    assert isinstance(runner, WgpuRunner)
    bandwidth = copy_bandwidth(runner.gpu)
    n_bytes = decode_bytes(runner, n_prompt + n_tokens // 2)
    gpu_ms = figures.median("gpu_ms")
    step_ms = 1e3 / figures.median("decode_tok_s")
    n_dispatches = runner.dispatches_per_token
    result = {
        "model": model,
        "dtype": dtype,
        "device": f"{runner.device.name}, {runner.device.driver}, {runner.device.backend}",
        "prompt": n_prompt,
        "tokens": n_tokens,
        "prefill_tok_s": round(figures.median("prefill_tok_s"), 1),
        "decode_tok_s": round(figures.median("decode_tok_s"), 1),
        "step_ms": round(step_ms, 3),
        "encode_ms": round(figures.median("encode_ms"), 3),
        "host_us_per_dispatch": round(figures.median("encode_ms") * 1e3 / n_dispatches, 2),
        "gpu_ms": round(gpu_ms, 3),
        "wait_ms": round(figures.median("wait_ms"), 3),
        "readback_ms": round(figures.median("read_ms"), 3),
        "dispatches_per_token": n_dispatches,
        "dispatches_per_layer": _dispatches_per_layer(runner),
        "bytes_per_token": n_bytes,
        "copy_gb_s": round(bandwidth / 1e9, 2),
        "bandwidth_share": round(n_bytes / (step_ms / 1e3) / bandwidth, 3),
        "peers": {
            c.name: round(figures.median("decode_tok_s") / c.figures.median("decode_tok_s"), 2)
            for c in contestants[1:]
        },
        "peers_prefill": {
            c.name: round(figures.median("prefill_tok_s") / c.figures.median("prefill_tok_s"), 2)
            for c in contestants[1:]
        },
    }
    print(f"{result['device']}\n{model}, {dtype}, prompt {n_prompt}, {n_tokens} tokens\n")
    print(f"{'':14}{'prefill tok/s':>14}{'decode tok/s':>14}")
    for c in contestants:
        print(
            f"{c.name:14}{c.figures.median('prefill_tok_s'):14.1f}"
            f"{c.figures.median('decode_tok_s'):14.1f}"
        )
    print(
        f"\ndecode step {step_ms:.2f} ms: encoding {result['encode_ms']} ms "
        f"({result['host_us_per_dispatch']} µs a dispatch), "
        f"GPU {result['gpu_ms']} ms, blocked on the GPU {result['wait_ms']} ms, "
        f"readback {result['readback_ms']} ms\n"
        f"{n_dispatches} dispatches per token ({result['dispatches_per_layer']} a layer), "
        f"{n_bytes / 1e6:.1f} MB per token at {result['bandwidth_share']:.0%} of the "
        f"{result['copy_gb_s']} GB/s a copy reaches\n"
    )
    return result


def _dispatches_per_layer(runner: WgpuRunner) -> int:
    plan = runner.plan_for(1, 1, capture=False).plan
    return sum(d.label.startswith("layer00.") for d in plan.dispatches)


def _peer(name: str, folder: Path, dtype: str) -> Callable[[], Runner]:
    if name != "torch":
        raise EngineError(f"peer {name!r} is not known; known: torch")

    def load() -> Runner:
        from gpu.torch_runner import TorchRunner

        return TorchRunner.load(folder, dtype=dtype)

    return load


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--dtype", choices=("f16", "f32"), default="f16")
    parser.add_argument("--adapter", help="index or part of the name, see `tokenglass devices`")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=64, help="decode steps")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peer", action="append", default=[], help="also measure: torch")
    parser.add_argument("--capture", action="store_true", help="also measure captured plans")
    args = parser.parse_args(argv)
    try:
        contestants = _contestants(args)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    context = contestants[0].runner.limits.context
    n_tokens = min(args.tokens, context // 2)
    n_prompt = min(args.prompt, context - n_tokens)
    vocab = ModelConfig.from_folder(args.model).vocab_size
    prompt = np.random.default_rng(0).integers(0, vocab, n_prompt).tolist()
    for c in contestants:
        c.run(prompt, n_tokens)  # records and compiles
        c.figures = Figures()
    for _ in range(args.repeat):
        for c in contestants:
            c.run(prompt, n_tokens)
    result = report(contestants, n_prompt, n_tokens, args.dtype, args.model.resolve().name)
    print(json.dumps(result))
    return 0


def _contestants(args: argparse.Namespace) -> list[Contestant]:
    runner = WgpuRunner.load(args.model, dtype=args.dtype, adapter=args.adapter, n_slots=1)
    found = [Contestant("tokenglass", runner)]
    if args.capture:
        found.append(Contestant("captured", runner, capture=True))
    found += [Contestant(name, _peer(name, args.model, args.dtype)()) for name in args.peer]
    return found


if __name__ == "__main__":
    sys.exit(main())
