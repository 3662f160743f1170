"""Prompts read through a scheduler that is driven by hand: an engine gives no logits of what its
cache holds, and these are what approximate caches are measured by."""

from __future__ import annotations

import numpy as np

from gpu.bench.contestants import greedy
from gpu.engine.kv_copies import submit_copies
from gpu.engine.scheduler import Scheduler
from gpu.engine.sequence import Sequence
from gpu.engine.step_builder import Scheduled
from gpu.request import Request
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.step import Floats, Row, Step
from gpu.text.tokenizer import Tokenizer


class PromptReader:
    """Reads prompts one after the other, with a cache of its own. `computed`: rows so far."""

    def __init__(
        self, runner: WgpuRunner, tokenizer: Tokenizer, *, prefix_cache: bool, cache_reuse: int = 0
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._scheduler = Scheduler(runner.limits, prefix_cache=prefix_cache)
        self._cache_reuse = cache_reuse
        self.computed = 0

    def begin(self, ids: list[int], n_keep: int | None = None) -> Sequence:
        """Start a prompt; `n_keep` as in `Request`."""
        params = SamplingParams(max_tokens=1, seed=0, temperature=0)
        sequence = Sequence(
            Request(ids, params, n_keep=n_keep),
            self._tokenizer,
            (),
            self._runner.limits.context,
            cache_reuse=self._cache_reuse,
        )
        self._scheduler.add(sequence)
        self._scheduler.admit()
        self._runner.begin_slot(sequence.slot, np.array(ids, np.uint32))
        return sequence

    def last_logits(self, sequence: Sequence) -> Floats:
        """Read the whole prompt; return the logits after it, (1, vocab_size)."""
        while not (scheduled := self._next_step()).step.samples:
            self._runner.submit(scheduled.step)
            self._runner.collect()
        return self._runner.logits(scheduled.step)

    def next_logits(self, sequence: Sequence, id: int, position: int) -> Floats:
        """Return the logits after one more token, which does not enter the cache for others."""
        assert self._scheduler.kv.cover(sequence, position), "the cache is too small"
        self._apply()
        row = Row(sequence.slot, position, id)
        return self._runner.logits(Step((row,), (greedy(0, position),)))

    def all_logits(self, ids: list[int], n_keep: int | None = None) -> Floats:
        """Return the logits after every token of a prompt, (len(ids), vocab_size)."""
        sequence, parts, n = self.begin(ids, n_keep), [], 0
        while n < len(ids):
            rows = self._next_step().step.rows
            for at in range(0, len(rows), self._runner.limits.max_samples):
                part = rows[at : at + self._runner.limits.max_samples]
                samples = tuple(greedy(i, row.position) for i, row in enumerate(part))
                parts.append(self._runner.logits(Step(part, samples)))
            n += len(rows)
        self.end(sequence)
        return np.concatenate(parts)

    def end(self, sequence: Sequence) -> None:
        """Free a prompt's blocks; what it computed stays cached."""
        self._scheduler.release(sequence)

    def _next_step(self) -> Scheduled:
        scheduled = self._scheduler.next_step()
        assert scheduled is not None, "a prompt that was begun has a next step"
        self._apply()
        self.computed += len(scheduled.step.rows)
        return scheduled

    def _apply(self) -> None:
        kv = self._scheduler.kv
        submit_copies(self._runner, kv.copies)
        kv.copies.clear()
        for sequence in kv.changed_tables:
            for group, table in enumerate(sequence.tables):
                self._runner.set_blocks(sequence.slot, table.blocks, group)
        kv.changed_tables.clear()
