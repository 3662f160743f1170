"""The same engine in PyTorch on the CPU (`--backend torch`), eager."""

from __future__ import annotations

from gpu.bench.contestants import RunnerContestant
from gpu.bench.peers.peer import Peer, PeerMissing
from gpu.bench.subject import BenchModel
from gpu.checkpoint.packing import FORMATS
from gpu.kv.blocks import block_bytes, blocks_for, fit_kv_cache
from gpu.load_options import LoadOptions
from gpu.runner import Runner


class TorchPeer(RunnerContestant):
    """PyTorch in this process, through the engine's own runner protocol."""

    def __init__(self, runner: Runner) -> None:
        super().__init__("torch", runner)
        self.device = f"{runner.device.name}, {runner.device.driver}"

    def close(self) -> None:
        self.runner.close()


def start(subject: BenchModel, dtype: str, context: int, python: str | None) -> Peer:
    """Start with weights rounded to `dtype` and arithmetic in float32."""
    try:
        from gpu.pytorch.llama import TorchLlama
        from gpu.pytorch.runner import TorchRunner
    except ModuleNotFoundError:
        raise PeerMissing("not installed (pip install torch)") from None
    config, kv = subject.config, FORMATS[dtype].kv
    budget = blocks_for(context) * block_bytes(config, kv)
    shape = fit_kv_cache(config, kv, 1, context=context, kv_memory_bytes=budget)
    model = TorchLlama(config, subject.checkpoint, dtype, kv, shape.n_blocks, shape.context)
    return TorchPeer(TorchRunner(model, shape, kv, LoadOptions(slots=1)))
