"""Hugging Face transformers in PyTorch, on CUDA if available, else on the CPU: eager, with a
compiled decode step, and with continuous batching."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from gpu.bench.peers import hf_folder
from gpu.bench.peers.peer import SCRIPTS, ChildPeer
from gpu.bench.subject import BenchModel


def _start(
    mode: str, name: str, subject: BenchModel, dtype: str, context: int, python: str | None
) -> ChildPeer:
    arguments = [mode, dtype, str(context)]
    return _start_script(name, "run_transformers.py", subject, dtype, arguments, python)


eager = partial(_start, "eager", "transformers")
compiled = partial(_start, "compiled", "torch-compiled")


def continuous_batching(
    subject: BenchModel, dtype: str, context: int, n_streams: int, python: str | None
) -> ChildPeer:
    """Start with pages for `n_streams` requests of `context` tokens."""
    arguments = [dtype, str(context), str(n_streams)]
    return _start_script(
        "transformers", "run_continuous_batching.py", subject, dtype, arguments, python
    )


def _start_script(
    name: str,
    script: str,
    subject: BenchModel,
    dtype: str,
    arguments: list[str],
    python: str | None,
) -> ChildPeer:
    folder = tempfile.TemporaryDirectory(prefix="tokenglass-transformers-")
    hf_folder.write(subject, dtype, Path(folder.name))
    return ChildPeer(name, SCRIPTS / script, [folder.name, *arguments], python, folder)
