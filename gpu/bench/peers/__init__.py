"""Other engines on the same weights and the same device, each behind `Peer`."""

from __future__ import annotations

from collections.abc import Callable

from gpu.bench.peers import llama_cpp, onnxruntime, torch, transformers
from gpu.bench.peers.options import add_peer_options
from gpu.bench.peers.peer import ChildPeer, Peer, PeerMissing
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

StartServing = Callable[[BenchModel, str, int, int, str | None], ChildPeer]
"""start(subject, dtype, context, most streams, Python to run it with or None) -> a peer with
`streams`. Raises PeerMissing as `Start`."""

SERVING_PEERS: dict[str, StartServing] = {
    "llama.cpp": llama_cpp.batched,
    "llama-server": llama_cpp.own_server,
    "llama-cpp-python": llama_cpp.python_server,
    "transformers": transformers.continuous_batching,
}

__all__ = ["PEERS", "SERVING_PEERS", "Peer", "PeerMissing", "add_peer_options"]
