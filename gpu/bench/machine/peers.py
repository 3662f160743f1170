"""Other engines on the same random weights, where they are installed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

import numpy as np

from gpu.bench.contestants import RunnerContestant, in_turns, speedup
from gpu.bench.machine.context import Case, Context, Outcome, left_out, rounded
from gpu.bench.peers import PEERS, PeerMissing
from gpu.bench.subject import BenchModel

SHAPE, DTYPE = "smol135", "f16"
N_PROMPT, N_TOKENS, REPEAT = 128, 16, 3
PACKAGES = {
    "torch": ("torch",),
    "transformers": ("torch", "transformers"),
    "torch-compiled": ("torch", "transformers"),
    "llama.cpp": ("llama_cpp",),
    "onnxruntime": ("onnx", "onnxruntime"),
}
"""Modules that a peer needs; looked for before the files for it are written."""
INSTALLED_BY = {"llama_cpp": "llama-cpp-python"}


def cases(context: Context) -> Iterator[Case]:
    for name in PEERS:
        yield name, partial(measure, context, name)


def measure(context: Context, name: str) -> Outcome:
    """Return tokens/s of a peer and of Tokenglass, taken in turns."""
    missing = [INSTALLED_BY.get(m, m) for m in PACKAGES[name] if find_spec(m) is None]
    if missing:
        return left_out(f"not installed (pip install {' '.join(missing)})")
    subject = BenchModel.from_shape(SHAPE)
    context.say("loading")
    try:
        peer = PEERS[name](subject, DTYPE, N_PROMPT + N_TOKENS, None)
    except PeerMissing as error:
        return left_out(str(error))
    own = RunnerContestant("own", subject.runner(context.device, DTYPE, N_PROMPT + N_TOKENS))
    prompt = np.random.default_rng(0).integers(0, subject.config.vocab_size, N_PROMPT).tolist()
    context.say("running")
    try:
        in_turns([own, peer], prompt, N_TOKENS, REPEAT)
    finally:
        peer.close()
    figures = {}
    for kind in ("prefill_tok_s", "decode_tok_s"):
        figures[kind] = rounded(peer.figures.median(kind) or 0.0, 4)
        figures[f"own_{kind}"] = rounded(own.figures.median(kind) or 0.0, 4)
        figures[f"own_over_{kind}"] = rounded(speedup(own.figures, peer.figures, kind))
    return Outcome(figures, "ok", f"on {peer.device}")
