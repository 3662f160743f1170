"""Carries out steps in PyTorch on the CPU: the engine of last resort, and an oracle in tests.

Steps run in order on one thread of their own, as the queue of a GPU would run them.
"""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint, Progress, loading
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, block_bytes, fit
from gpu.lora.adapter import Lora, open_loras
from gpu.pytorch.llama import KV_TYPES, Batch, SlotRows, TorchLlama, expect_supported
from gpu.pytorch.reach import UNTOUCHED, RowReach, TorchLora, Untouched
from gpu.pytorch.statistics import UNWATCHED, Kept, Statistics, Watcher
from gpu.reach import NOTHING, Reach
from gpu.reference.sampler import choose
from gpu.runner import DeviceInfo, Memory, RunnerLimits
from gpu.step import FROM_GPU, Floats, Inspected, Look, Sample, Sampled, Step, StepResult

MAX_ROWS = 128


class TorchRunner:
    """A model on the CPU. Implements `gpu.runner.Runner`; `gpu_ms` is None, as there is no GPU, and
    the times of a captured step are CPU time."""

    in_flight = 2
    dispatches_per_token = 0
    products = "float"

    def __init__(
        self,
        model: TorchLlama,
        shape: KvShape,
        kv_dtype: str,
        n_slots: int,
        loras: Sequence[Lora] = (),
    ) -> None:
        self.config = model.config
        self.model = model
        self.limits = RunnerLimits(
            n_slots=n_slots,
            context=shape.context,
            max_rows=MAX_ROWS,
            max_samples=MAX_ROWS,
            n_blocks=shape.n_blocks,
            block_tokens=BLOCK_TOKENS,
            block_bytes=block_bytes(model.config, kv_dtype),
            max_captured_rows=MAX_ROWS,
        )
        self.device = DeviceInfo(
            name=f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)",
            driver=f"PyTorch {torch.__version__}",
            backend="torch",
            kind="CPU",
            software=True,
        )
        kv_bytes = model.keys.nbytes + model.values.nbytes
        self.memory = Memory(weights=model.n_weight_bytes, kv_cache=kv_bytes, work=0)
        n_tables = n_slots + 1  # the last is `RunnerLimits.inspection_slot`
        self._tables = [torch.zeros(0, dtype=torch.int64) for _ in range(n_tables)]
        self._seen = np.zeros((n_tables, model.config.vocab_size), bool)
        self._last = np.zeros(n_tables, np.int64)
        self._reaches: dict[int, Reach] = {}
        self.loras = tuple(lora.info for lora in loras)
        self.conversion = model.conversion
        self._loras = [TorchLora.of(lora) for lora in loras]
        self._thread = ThreadPoolExecutor(1, "torch")
        self._pending: deque[Future[StepResult]] = deque()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        dtype: str = "f32",
        kv_dtype: str | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
        n_slots: int = 4,
        loras: Mapping[str, str | Path] | None = None,
        progress: Progress = lambda fraction, message: None,
    ) -> TorchRunner:
        """Load a model folder. `dtype`, of `gpu.checkpoint.packing.FORMATS`, says how far weights
        are rounded, `kv_dtype` (f32 or f16; None: as goes with `dtype`) how far keys and values;
        computing stays float32; `loras`: folders of adapters by their names. Raises ModelError, and
        DeviceError when `context` does not fit."""
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        kv_dtype = kv_dtype or FORMATS[dtype].kv
        if kv_dtype not in KV_TYPES:
            raise ModelError(
                f"the torch backend keeps keys and values as {' or '.join(KV_TYPES)}, not "
                f"{kv_dtype!r}; choose one of these, or the wgpu backend"
            )
        config = ModelConfig.from_folder(folder)
        expect_supported(config)
        checkpoint = Checkpoint.open(folder)
        opened = open_loras(loras or {}, config, checkpoint)
        shape = fit(config, kv_dtype, n_slots, context=context, budget_bytes=kv_bytes)
        on_weights = loading(progress, checkpoint, config.tie_embeddings)
        model = TorchLlama(
            config, checkpoint, dtype, kv_dtype, shape.n_blocks, shape.context, on_weights
        )
        return cls(model, shape, kv_dtype, n_slots, opened)

    # ---- the runner protocol ----------------------------------------------------------------

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32]) -> None:
        self._thread.submit(self._begin_slot, slot, tokens.astype(np.int64))

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        self._thread.submit(self._tables.__setitem__, slot, torch.tensor(blocks, dtype=torch.int64))

    def copy_block(self, source: int, destination: int) -> None:
        self._thread.submit(self.model.copy_block, source, destination)

    def set_reach(self, slot: int, reach: Reach | None) -> None:
        reach = reach or NOTHING
        reach.expect(self.config)
        self._thread.submit(self._reaches.__setitem__, slot, reach)

    def submit(self, step: Step) -> None:
        self._pending.append(self._thread.submit(self._run, step))

    def collect(self) -> StepResult:
        began = time.perf_counter()
        result = self._pending.popleft().result()
        return replace(result, wait_ms=(time.perf_counter() - began) * 1e3)

    def logits(self, step: Step) -> Floats:
        return self._thread.submit(self._logits, step).result()

    def inspect(self, step: Step, look: Look) -> Inspected:
        look.expect(step, self.limits.context)
        return self._thread.submit(self._inspect, step, look).result()

    def profile(self, step: Step, repeat: int) -> None:
        """There are no dispatches to time."""

    def list_plan(self, n_rows: int, context: int) -> None:
        """There is no plan."""

    def peaks(self) -> None:
        """There is no device to measure."""

    def warm_up(self, *, reach: bool = False) -> Iterator[None]:
        """Nothing is compiled here."""
        return iter(())

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    # ---- on the thread ----------------------------------------------------------------------

    def _begin_slot(self, slot: int, tokens: npt.NDArray[np.int64]) -> None:
        self._seen[slot] = False
        self._seen[slot, tokens] = True
        self._reaches.pop(slot, None)

    def _run(self, step: Step) -> StepResult:
        statistics = Statistics(self.config.expert_layers) if step.capture else None
        logits = self._logits(step, statistics or UNWATCHED)
        samples = tuple(self._choose(row, s) for row, s in zip(logits, step.samples, strict=True))
        if statistics is None:
            return StepResult(samples)
        statistics.mark()
        return StepResult(samples, statistics.captured())

    def _logits(self, step: Step, watcher: Watcher = UNWATCHED) -> Floats:
        sampled = torch.tensor([sample.row for sample in step.samples], dtype=torch.int64)
        logits: Floats = self.model.logits(self._batch(step), sampled, watcher).numpy()
        return logits

    def _inspect(self, step: Step, look: Look) -> Inspected:
        kept = Kept(look.keys)
        self._logits(step, kept)
        lens = self.model.read_out(kept.states[step.samples[0].row]) if look.lens else None
        return Inspected(
            attention=kept.attention.numpy() if look.keys is not None else None,
            lens=lens.numpy() if lens is not None else None,
            states=kept.states.numpy() if look.states else None,
            routes=kept.routes if look.routes else None,
        )

    def _batch(self, step: Step) -> Batch:
        ids = [self._last[r.slot] if r.token == FROM_GPU else r.token for r in step.rows]
        positions = torch.tensor([row.position for row in step.rows])
        places: dict[int, list[int]] = {}
        for i, row in enumerate(step.rows):
            places.setdefault(row.slot, []).append(i)
        slots = [
            SlotRows(torch.tensor(which), positions[which], self._tables[slot])
            for slot, which in places.items()
        ]
        reach = self._reach(step)
        return Batch(torch.tensor(ids), positions, slots, reach)

    def _reach(self, step: Step) -> Untouched:
        if not step.reach and not step.loras:
            return UNTOUCHED
        rows = [self._reaches.get(row.slot, NOTHING) for row in step.rows]
        return RowReach(rows, self._loras if step.loras else ())

    def _choose(self, logits: Floats, sample: Sample) -> Sampled:
        sampled = choose(logits, np.flatnonzero(self._seen[sample.slot]), sample)
        self._last[sample.slot] = sampled.id
        self._seen[sample.slot, sampled.id] = True
        return sampled
