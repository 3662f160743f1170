"""llama.cpp through llama-cpp-python, on a GGUF file of the same weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu.bench.peers import gguf_file
from gpu.bench.peers.peer import ChildPeer
from gpu.bench.subject import BenchModel


def start(subject: BenchModel, dtype: str, context: int, python: str | None) -> ChildPeer:
    """Start with all layers on its GPU backend if it was built with one; `device` names it."""
    folder = tempfile.TemporaryDirectory(prefix="tokenglass-gguf-")
    path = Path(folder.name) / "model.gguf"
    gguf_file.write(subject, dtype, path)
    script = Path(__file__).parent / "scripts" / "run_llama_cpp.py"
    return ChildPeer("llama.cpp", script, [str(path), str(context)], python, folder)
