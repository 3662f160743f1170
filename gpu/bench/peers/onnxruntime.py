"""onnxruntime's WebGPU provider, on an ONNX graph of the same weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu.bench.peers import onnx_file
from gpu.bench.peers.peer import SCRIPTS, ChildPeer
from gpu.bench.subject import BenchModel


def start(subject: BenchModel, dtype: str, context: int, python: str | None) -> ChildPeer:
    """Start the peer; refuses a silent fallback to the CPU."""
    folder = tempfile.TemporaryDirectory(prefix="tokenglass-onnx-")
    path = Path(folder.name) / "model.onnx"
    onnx_file.write(subject, dtype, path, context)
    arguments = [str(path), "WebGpuExecutionProvider"]
    return ChildPeer("onnxruntime", SCRIPTS / "run_onnxruntime.py", arguments, python, folder)
