"""What a storage type of the weights costs: its logits against those of float32 weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu.bench.contestants import greedy
from gpu.blocks import blocks_for
from gpu.divergence import mean_kl, same_top
from gpu.step import Floats, Row, Runner, Step
from gpu.step_buffer import MAX_SAMPLES


@dataclass(frozen=True, slots=True)
class Quality:
    """`kl`: mean over positions of KL(f32 ‖ this) in nats; `same_top`: share of positions with the
    same most likely token."""

    kl: float
    same_top: float

    def __str__(self) -> str:
        return f"mean KL {self.kl:.2e} nats, the same first choice at {self.same_top:.1%}"


def compare(reference: Runner, runner: Runner, prompt: Sequence[int]) -> Quality:
    """Both models on the same tokens."""
    want, got = all_logits(reference, prompt), all_logits(runner, prompt)
    return Quality(float(mean_kl(want, got)), float(same_top(want, got)))


def all_logits(runner: Runner, prompt: Sequence[int]) -> Floats:
    """float32 (len(prompt), vocab_size): after every token of the prompt."""
    runner.begin_slot(0, np.array(prompt, np.uint32))
    runner.set_blocks(0, list(range(blocks_for(len(prompt)))))
    parts = []
    for first in range(0, len(prompt), MAX_SAMPLES):
        ids = prompt[first : first + MAX_SAMPLES]
        rows = tuple(Row(0, first + i, id) for i, id in enumerate(ids))
        samples = tuple(greedy(i, first + i) for i in range(len(ids)))
        parts.append(runner.logits(Step(rows, samples)))
    return np.concatenate(parts)
