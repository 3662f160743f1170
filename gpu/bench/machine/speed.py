"""Speed of whole models with random weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from gpu.bench.contestants import Figures, RunnerContestant
from gpu.bench.machine.context import GIB, Case, Context, Outcome, left_out, rounded
from gpu.bench.machine.results import TIME_IS_UP
from gpu.bench.subject import BenchModel
from gpu.bench.work import kv_bytes, weight_bytes
from gpu.checkpoint.packing import row_words

ORDER = (
    ("smol135", "f16"), ("llama1b", "f16"), ("smol135", "q4"), ("llama1b", "q4"),
    ("llama8b", "q4"), ("smol135", "q8"), ("llama1b", "q8"),
)  # fmt: skip
N_PROMPT = {False: 512, True: 128}
"""Tokens of the prompt, whether the device is software."""
N_TOKENS = {False: 64, True: 16}
N_PROBE = 32
"""Tokens of the prompt that is run first, to guess how long the others take."""
REPEAT = 3
SPARE_BYTES = 512 << 20
"""Memory that a model needs in addition to its weights: activations, cache, staging."""
LOAD_S = {"f16": 1.5e-9, "q8": 1.5e-8, "q4": 1.5e-8}
"""Guess of the seconds to make, pack and upload a weight, before one has been measured."""


def cases(context: Context) -> Iterator[Case]:
    per_weight = dict(LOAD_S)
    for shape, dtype in ORDER:
        yield f"{shape} {dtype}", partial(measure, context, shape, dtype, per_weight)


def measure(context: Context, shape: str, dtype: str, per_weight: dict[str, float]) -> Outcome:
    """Return tokens/s and the figures of a decode step. `per_weight`: measured seconds to load a
    weight, by dtype, updated here."""
    subject, software = BenchModel.from_shape(shape), context.device.info.software
    n_weights = subject.checkpoint.parameters()
    n_bytes = 4 * n_weights * row_words(dtype, 1024) // 1024
    if context.free is not None and n_bytes + SPARE_BYTES > context.free:
        return left_out(
            f"it needs {n_bytes / GIB:.1f} GiB for its weights, and {context.free / GIB:.1f} GiB "
            "are free"
        )
    n_prompt, n_tokens = N_PROMPT[software], N_TOKENS[software]
    step_s = context.seconds_for(n_bytes, 2.0 * n_weights)
    prompt_s = context.seconds_for(n_bytes, 2.0 * n_weights * n_prompt)
    need = per_weight[dtype] * n_weights + 2 * (prompt_s + n_tokens * step_s)
    if need > context.seconds_left:
        return Outcome({}, "pending", f"{TIME_IS_UP}: it needs about {need:.0f} s")
    began = time.perf_counter()
    runner = subject.runner(
        context.device, dtype, n_prompt + n_tokens, on_weights=lambda n: context.say("loading")
    )
    took = time.perf_counter() - began
    if n_weights > 100_000_000:
        per_weight[dtype] = took / n_weights
    contestant = RunnerContestant(shape, runner)
    prompt = np.random.default_rng(0).integers(0, subject.config.vocab_size, n_prompt).tolist()
    context.say("first run")
    need = _probe(contestant, prompt, n_tokens)
    if need > context.seconds_left:
        return Outcome({}, "pending", f"{TIME_IS_UP}: it needs about {need:.0f} s more")
    context.say("warming up")
    contestant.run(prompt, n_tokens)
    contestant.figures = Figures()
    for i in range(REPEAT):
        if i and context.seconds_left < 0:
            break
        context.say(f"run {i + 1}")
        contestant.run(prompt, n_tokens)
    read = weight_bytes(runner) + kv_bytes(runner, n_prompt + n_tokens // 2)
    return Outcome(_figures(contestant.figures, took, read, n_prompt, context.bytes_per_s))


def _probe(contestant: RunnerContestant, prompt: list[int], n_tokens: int) -> float:
    """Return the seconds that the runs will take at most, guessed from a short one."""
    for _ in range(2):  # the first one compiles
        contestant.run(prompt[:N_PROBE], 2)
    figures = contestant.figures
    run = len(prompt) / figures.prefill_tok_s[-1] + n_tokens / figures.decode_tok_s[-1]
    return (REPEAT + 1) * run / 2


def _figures(
    found: Figures, load_s: float, n_bytes: int, n_prompt: int, bandwidth: float
) -> dict[str, float]:
    decode = found.median("decode_tok_s") or 0.0
    figures = {
        "prompt": float(n_prompt),
        "prefill_tok_s": rounded(found.median("prefill_tok_s") or 0.0, 4),
        "decode_tok_s": rounded(decode, 4),
        "gb_s": rounded(n_bytes * decode / 1e9),
        "of_bandwidth": rounded(n_bytes * decode / bandwidth, 2),
        "load_s": rounded(load_s, 2),
    }
    for name in ("encode_ms", "gpu_ms", "wait_ms", "read_ms", "gpu_gap_share"):
        if (value := found.median(name)) is not None:
            figures[name] = rounded(value)
    return figures
