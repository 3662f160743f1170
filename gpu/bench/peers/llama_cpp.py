"""llama.cpp through llama-cpp-python or as its own server, on a GGUF file of the same weights."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from gpu.bench.peers import gguf_file
from gpu.bench.peers.peer import SCRIPTS, ChildPeer
from gpu.bench.subject import BenchModel


def start(subject: BenchModel, dtype: str, context: int, python: str | None) -> ChildPeer:
    """Start with all layers on its GPU backend if it was built with one; `device` names it."""
    return batched(subject, dtype, context, 1, python)


def batched(
    subject: BenchModel, dtype: str, context: int, n_streams: int, python: str | None
) -> ChildPeer:
    """Start the library with up to `n_streams` sequences in a step."""
    arguments = [str(context), str(n_streams)]
    return _start_script("llama.cpp", "run_llama_cpp.py", subject, dtype, arguments, python)


def _serve(
    server: str,
    name: str,
    subject: BenchModel,
    dtype: str,
    context: int,
    n_streams: int,
    python: str | None,
) -> ChildPeer:
    arguments = [server, str(context), str(n_streams)]
    return _start_script(name, "run_llama_cpp_server.py", subject, dtype, arguments, python)


own_server = partial(_serve, "llama-server", "llama-server")
python_server = partial(_serve, "llama-cpp-python", "llama-cpp-python's server")


def _start_script(
    name: str,
    script: str,
    subject: BenchModel,
    dtype: str,
    arguments: list[str],
    python: str | None,
) -> ChildPeer:
    folder = tempfile.TemporaryDirectory(prefix="tokenglass-gguf-")
    path = Path(folder.name) / "model.gguf"
    gguf_file.write(subject, dtype, path)
    return ChildPeer(name, SCRIPTS / script, [str(path), *arguments], python, folder)
