"""Runs steps in PyTorch on the CPU: for machines without a GPU driver, and as a reference in tests.

Steps run in order on one thread of their own, as the queue of a GPU would run them.
"""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpu.architectures import expect_torch_runs
from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Progress, weight_progress
from gpu.errors import ModelError
from gpu.info import DeviceInfo, MemoryInfo, RunnerLimits
from gpu.interventions.active import NONE_ACTIVE, ActiveInterventions
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, block_bytes, fit_kv_cache
from gpu.kv.copies import TokenMove
from gpu.load_options import LoadOptions
from gpu.lora.adapter import Lora, open_loras
from gpu.pytorch.interventions import (
    NO_INTERVENTIONS,
    InterventionHooks,
    RowInterventions,
    TorchLora,
)
from gpu.pytorch.llama import KV_TYPES, OWN_KV, Batch, SlotRows, TorchLlama
from gpu.pytorch.statistics import NO_WATCHER, InspectionWatcher, StatsWatcher, Watcher
from gpu.reference.sampler import Greenlist, sample_token
from gpu.reference.watermark import selfhash_greenlist
from gpu.step import (
    FROM_GPU,
    Floats,
    InspectionRequest,
    InspectionResult,
    LayerActivations,
    Row,
    Sample,
    Sampled,
    Selfhash,
    Step,
    StepResult,
)

MAX_ROWS = 128


class TorchRunner:
    """A model on the CPU, a `gpu.runner.Runner`. `gpu_ms` is None; the times of a captured step are
    CPU times."""

    in_flight = 2
    dispatches_per_token = 0
    activations = "f32"
    stages = ()

    def __init__(
        self,
        model: TorchLlama,
        shape: KvShape,
        kv_dtype: str,
        options: LoadOptions,
        loras: Sequence[Lora] = (),
    ) -> None:
        self.config = model.config
        self.model = model
        n_bytes = block_bytes(model.config, kv_dtype)
        self.limits = RunnerLimits(
            slots=options.slots,
            context=shape.context,
            max_rows=MAX_ROWS,
            max_samples=MAX_ROWS,
            n_blocks=shape.n_blocks,
            block_tokens=BLOCK_TOKENS,
            block_bytes=n_bytes,
            max_captured_rows=MAX_ROWS,
            windows=(model.config.largest_window,),
            n_host_blocks=options.kv_offload_bytes // n_bytes,
        )
        self.device = DeviceInfo(
            name=f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)",
            driver=f"PyTorch {torch.__version__}",
            backend="torch",
            kind="CPU",
            software=True,
        )
        kv_bytes = model.keys.nbytes + model.values.nbytes
        self.memory = MemoryInfo(weights=model.n_weight_bytes, kv_cache=kv_bytes, work=0)
        n_tables = options.slots + 1  # the last is `RunnerLimits.inspection_slot`
        self._tables = [torch.zeros(0, dtype=torch.int64) for _ in range(n_tables)]
        self._texts: list[list[int]] = [[] for _ in range(n_tables)]
        self._allowed: dict[int, npt.NDArray[np.bool_]] = {}
        self._greenlists: dict[int, Greenlist] = {}
        self._last = np.zeros(n_tables, np.int64)
        self._stored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # KV blocks by place
        self._active: dict[int, ActiveInterventions] = {}
        self.loras = tuple(lora.info for lora in loras)
        self.conversion = model.conversion
        self._loras = [TorchLora.of(lora) for lora in loras]
        self._thread = ThreadPoolExecutor(1, "torch")
        self._pending: deque[Future[StepResult]] = deque()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        options: LoadOptions,
        *,
        progress: Progress = lambda fraction, message: None,
    ) -> TorchRunner:
        """Load a model folder with weights rounded to `options.dtype` and keys and values to
        `options.kv_dtype` (f32 or f16); computing stays float32. Raises ModelError, and DeviceError
        if the context does not fit."""
        dtype = options.dtype
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        kv_dtype = options.kv_dtype or FORMATS[dtype].kv
        if kv_dtype not in KV_TYPES:
            raise ModelError(
                f"the torch backend stores keys and values as {' or '.join(KV_TYPES)}, not "
                f"{kv_dtype!r}; choose one of these, or the wgpu backend"
            )
        config, checkpoint = open_model(folder)
        expect_torch_runs(config.model_type)
        loras = open_loras(options.loras, config, checkpoint)
        shape = fit_kv_cache(
            config,
            kv_dtype,
            options.slots,
            context=options.context,
            kv_memory_bytes=options.kv_memory_bytes,
        )
        on_weights = weight_progress(progress, checkpoint, config.tie_embeddings)
        model = TorchLlama(
            config, checkpoint, dtype, kv_dtype, shape.n_blocks, shape.context, on_weights
        )
        return cls(model, shape, kv_dtype, options, loras)

    # ---- the runner protocol ----------------------------------------------------------------

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int = 0) -> None:
        self._thread.submit(self._begin_slot, slot, tokens.tolist())

    def set_text(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int) -> None:
        self._thread.submit(self._texts.__setitem__, slot, tokens.tolist())

    def set_grammar_bitmask(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        self._thread.submit(self._allowed.__setitem__, slot, self._bits(bitmask))

    def set_greenlist(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        self._thread.submit(self._greenlists.__setitem__, slot, self._bits(bitmask))

    def set_selfhash(self, slot: int, selfhash: Selfhash) -> None:
        green = partial(selfhash_greenlist, selfhash=selfhash)
        self._thread.submit(self._greenlists.__setitem__, slot, green)

    def _bits(self, bitmask: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        n = self.config.vocab_size
        return np.unpackbits(bitmask.view(np.uint8), count=n, bitorder="little").astype(bool)

    def set_blocks(self, slot: int, blocks: list[int], group: int = 0) -> None:
        self._thread.submit(self._tables.__setitem__, slot, torch.tensor(blocks, dtype=torch.int64))

    def copy_block(self, source: int, destination: int) -> None:
        self._thread.submit(self.model.copy_block, source, destination)

    def store_block(self, block: int, place: int) -> None:
        self._thread.submit(self._store_block, block, place)

    def load_block(self, place: int, block: int) -> None:
        self._thread.submit(self._load_block, place, block)

    def shift_kv(self, moves: Sequence[TokenMove], group: int = 0) -> None:
        self._thread.submit(self.model.shift_kv, moves)

    def set_rope(self, *, rotates: bool, n_positions: int) -> None:
        self._thread.submit(self.model.set_rope, rotates)

    def set_interventions(self, slot: int, active: ActiveInterventions | None) -> None:
        active = active or NONE_ACTIVE
        active.validate(self.config)
        self._thread.submit(self._active.__setitem__, slot, active)

    def submit(self, step: Step) -> None:
        self._pending.append(self._thread.submit(self._run, step))

    def collect(self) -> StepResult:
        began = time.perf_counter()
        result = self._pending.popleft().result()
        return replace(result, wait_ms=(time.perf_counter() - began) * 1e3)

    def run_checked(self, step: Step, like: Step) -> tuple[StepResult, None]:
        """Run the rows again, as always: there are no ops to look at."""
        self.submit(step)
        return self.collect(), None

    def logits(self, step: Step) -> Floats:
        return self._thread.submit(self._logits, step).result()

    def inspect(self, step: Step, request: InspectionRequest) -> InspectionResult:
        request.validate(step, self.limits.context)
        return self._thread.submit(self._inspect, step, request).result()

    def unembed(self, states: Floats) -> Floats:
        logits: Floats = self._thread.submit(self._unembed, states).result()
        return logits

    def embedding_rows(self, first: int, n: int) -> Floats:
        rows: Floats = self.model.embedding[first : first + n].numpy()
        return rows

    def profile(self, step: Step, repeat: int) -> None:
        """Return None: there are no dispatches to time."""

    def list_plan(self, n_rows: int, context: int) -> None:
        """Return None: there is no plan."""

    def weight_digest(self, number: int) -> None:
        """Return None: there is no device to read."""

    def peaks(self) -> None:
        """Return None: there is no device to measure."""

    def warm_up(self, *, interventions: bool = False) -> Iterator[None]:
        """Yield nothing: there is nothing to compile."""
        return iter(())

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    # ---- on the thread ----------------------------------------------------------------------

    def _begin_slot(self, slot: int, tokens: list[int]) -> None:
        self._texts[slot] = tokens
        self._active.pop(slot, None)

    def _store_block(self, block: int, place: int) -> None:
        self._stored[place] = self.model.block(block)

    def _load_block(self, place: int, block: int) -> None:
        self.model.set_block(block, self._stored[place])

    def _run(self, step: Step) -> StepResult:
        statistics = StatsWatcher(self.config.expert_layers) if step.capture else None
        logits = self._logits(step, statistics or NO_WATCHER)
        pairs = zip(logits, step.samples, strict=True)
        samples = tuple(self._choose(row, sample, step) for row, sample in pairs)
        if statistics is None:
            return StepResult(samples)
        statistics.mark()
        return StepResult(samples, statistics.captured())

    def _logits(self, step: Step, watcher: Watcher = NO_WATCHER) -> Floats:
        sampled = torch.tensor([sample.row for sample in step.samples], dtype=torch.int64)
        logits: Floats = self.model.logits(self._batch(step), sampled, watcher).numpy()
        return logits

    def _inspect(self, step: Step, request: InspectionRequest) -> InspectionResult:
        watcher = InspectionWatcher(request.keys, request.layer[0] if request.layer else None)
        self._logits(step, watcher)
        lens = self.model.unembed(watcher.states[step.samples[0].row]) if request.lens else None
        last = self.model.final_norm(watcher.states[:, -1]) if request.last_hidden else None
        return InspectionResult(
            attention=watcher.attention.numpy() if request.keys is not None else None,
            lens=lens.numpy() if lens is not None else None,
            states=watcher.states.numpy() if request.states else None,
            routes=watcher.routes if request.routes else None,
            last_hidden=last.numpy() if last is not None else None,
            layer=self._layer(step.rows[0], watcher, *request.layer) if request.layer else None,
        )

    def _layer(self, row: Row, watcher: InspectionWatcher, i: int, head: int) -> LayerActivations:
        """Return the activations of the one row in layer i, with the keys that `head` reads."""
        config, layer, kept = self.config, self.model.layers[i], watcher.kept
        window = config.sliding_window_of(i)
        first = max(0, row.position + 1 - window) if window else 0
        kv_head = head * config.n_kv_heads // config.n_heads
        absent = {
            "attn_norm": layer.pre_attention is None,
            "mlp_norm": layer.pre_mlp is None,
            **dict.fromkeys(("gate", "up", "ffn_hidden"), config.moe_of(i) is not None),
        }
        fields: dict[str, Any] = {
            name: None if absent.get(name) else kept[name][0].numpy()
            for name in (*absent, "resid_pre", "resid_mid", "resid_post", "rot_q", "v", "attn_out")
        }
        heads = {name: kept[name].view(-1, config.head_dim).numpy() for name in ("q", "k")}
        cached = {name: kept[name][first:, kv_head].numpy() for name in ("keys", "values")}
        return LayerActivations(
            **{**fields, **heads, **cached},
            first_key=first,
            head_out=self.model.head_out(i, kept["attn_out"][0]).numpy(),
            has_post_norms=layer.post_attention is not None,
        )

    def _unembed(self, states: Floats) -> Floats:
        logits: Floats = self.model.unembed(torch.from_numpy(states)).numpy()
        return logits

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
        return Batch(torch.tensor(ids), positions, slots, self._hooks(step), step.kv or OWN_KV)

    def _hooks(self, step: Step) -> InterventionHooks:
        if not (step.interventions or step.loras or step.masked):
            return NO_INTERVENTIONS
        rows = [self._active.get(row.slot, NONE_ACTIVE) for row in step.rows]
        return RowInterventions(rows, self._loras if step.loras else ())

    def _choose(self, logits: Floats, sample: Sample, step: Step) -> Sampled:
        context = [*self._texts[sample.slot], *step.drafts_before(sample)]
        allowed = self._allowed[sample.slot] if sample.n_allowed else None
        green = self._greenlists[sample.slot] if sample.watermark_bias else None
        sampled = sample_token(logits, context, sample, allowed, green)
        if not sample.verifies:
            self._last[sample.slot] = sampled.id
            self._texts[sample.slot].append(sampled.id)
        return sampled
