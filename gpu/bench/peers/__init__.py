"""Other engines on the same weights and the same device, each behind `Peer`."""

from __future__ import annotations

from collections.abc import Callable

from gpu.bench.peers import llama_cpp, onnxruntime, torch, transformers
from gpu.bench.peers.peer import Peer, PeerMissing
from gpu.bench.subject import BenchModel

Start = Callable[[BenchModel, str, int, str | None], Peer]
"""start(subject, dtype, context, Python to run it with or None) -> a peer that is ready.

Raises PeerMissing, with what to install, if it cannot run here.
"""

PEERS: dict[str, Start] = {
    "torch": torch.start,
    "transformers": transformers.eager,
    "torch-compiled": transformers.compiled,
    "llama.cpp": llama_cpp.start,
    "onnxruntime": onnxruntime.start,
}

__all__ = ["PEERS", "Peer", "PeerMissing"]
