"""A runner without a model: the next token is a fixed function of the sequence's ids, so that a
test knows what any interleaving must give. It checks what a real device could not: that every
position of a sequence is written exactly once, in order, into a block its slot owns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig, RopeConfig
from gpu.step import (
    FROM_GPU,
    Candidate,
    DeviceInfo,
    Floats,
    Memory,
    RunnerLimits,
    Sampled,
    Step,
    StepResult,
)

CONFIG = ModelConfig(
    model_type="llama", n_layers=1, n_heads=1, n_kv_heads=1, head_dim=4, hidden_size=4,
    intermediate_size=4, vocab_size=256, context=64, rms_norm_eps=1e-5, tie_embeddings=True,
    attention_bias=False, mlp_bias=False, rope=RopeConfig(), eos_ids=(0,), bos_id=None,
    torch_dtype=None,
)  # fmt: skip

Script = Callable[[list[int]], int]


def arithmetic(ids: list[int]) -> int:
    """Never 0, depends on every id so far."""
    return 1 + (sum((i + 1) * id for i, id in enumerate(ids)) % 255)


class ScriptedRunner:
    def __init__(
        self,
        script: Script = arithmetic,
        *,
        n_slots: int = 2,
        context: int = 64,
        n_blocks: int = 8,
        max_rows: int = 16,
        delay: float = 0.0,
        fail_at: int | None = None,
    ) -> None:
        self.config = CONFIG
        self.limits = RunnerLimits(
            n_slots=n_slots, context=context, max_rows=max_rows, max_samples=8, n_blocks=n_blocks,
            block_tokens=16, block_bytes=1, max_captured_rows=max_rows,
        )  # fmt: skip
        self.device = DeviceInfo("script", "none", "none", "test", True)
        self.memory = Memory(0, 0, 0)
        self.dispatches_per_token = 1
        self.in_flight = 3
        self.steps: list[Step] = []
        self.closed = False
        self.warmed = 0
        self._script = script
        self._delay = delay
        self._fail_at = fail_at
        self._pending: deque[StepResult] = deque()
        self._ids: dict[int, list[int]] = {}
        self._blocks: dict[int, list[int]] = {}
        self._chosen: dict[int, int] = {}
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}
        self._kept: list[list[int]] = []  # keeps ids of lists unique

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32]) -> None:
        self._ids[slot] = []
        self._kept.append(self._ids[slot])
        self._blocks[slot] = []

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        self._blocks[slot] = list(blocks)

    def submit(self, step: Step) -> None:
        assert len(self._pending) < self.in_flight
        if self._fail_at is not None and len(self.steps) >= self._fail_at:
            raise RuntimeError("scripted failure")
        self.steps.append(step)
        after: list[list[int]] = []
        for row in step.rows:
            ids = self._ids[row.slot]
            assert row.position == len(ids), f"position {row.position} after {len(ids)} ids"
            assert row.position < 16 * len(self._blocks[row.slot]), "no block for this position"
            self._write(row.slot, row.position)
            ids.append(self._chosen[row.slot] if row.token == FROM_GPU else row.token)
            after.append(list(ids))
        sampled = []
        for sample in step.samples:
            id = self._script(after[sample.row])
            self._chosen[sample.slot] = id
            sampled.append(_sampled(id))
        self._pending.append(StepResult(tuple(sampled)))

    def _write(self, slot: int, position: int) -> None:
        """Occupy the cell of a position; all earlier ones must still be this sequence's."""
        blocks, owner = self._blocks[slot], id(self._ids[slot])
        self._cells[blocks[position // 16], position % 16] = (owner, position)
        for p in range(position):
            held = self._cells.get((blocks[p // 16], p % 16))
            assert held == (owner, p), f"position {p} of slot {slot} was overwritten"

    def collect(self) -> StepResult:
        time.sleep(self._delay)
        return self._pending.popleft()

    def logits(self, step: Step) -> Floats:
        return np.zeros((len(step.samples), self.config.vocab_size), np.float32)

    def warm_up(self) -> Iterator[None]:
        for _ in range(3):
            self.warmed += 1
            yield

    def close(self) -> None:
        self.closed = True


def _sampled(id: int) -> Sampled:
    return Sampled(id, -1.0, 0.5, 0, 1, 0.25, (1.0, 0.0, 0.0, 0.0), (Candidate(id, 0.5, 1.0, ""),))


def expected(prompt: list[int], n: int, script: Script = arithmetic) -> list[int]:
    """What a run must write."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(script(ids))
    return ids[len(prompt) :]
