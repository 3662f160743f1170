"""Hugging Face transformers in PyTorch, on CUDA if available, else on the CPU: eager, and with a
compiled decode step."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from gpu.bench.peers import hf_folder
from gpu.bench.peers.peer import ChildPeer
from gpu.bench.subject import BenchModel


def _start(
    mode: str, name: str, subject: BenchModel, dtype: str, context: int, python: str | None
) -> ChildPeer:
    folder = tempfile.TemporaryDirectory(prefix="tokenglass-transformers-")
    hf_folder.write(subject, dtype, Path(folder.name))
    script = Path(__file__).parent / "scripts" / "run_transformers.py"
    return ChildPeer(name, script, [folder.name, mode, dtype, str(context)], python, folder)


eager = partial(_start, "eager", "transformers")
compiled = partial(_start, "compiled", "torch-compiled")
