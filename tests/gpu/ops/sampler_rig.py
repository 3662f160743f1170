"""Runs the sampling shaders alone, repeatedly from one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu import ops
from gpu.ops import Batch
from gpu.ops.sampling import RESULT_WORDS
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.runners.results import parse_samples
from gpu.step import Row, Sample, Sampled
from gpu.webgpu.buffers import padded
from gpu.webgpu.plan import Recorder
from tests.gpu.ops.rig import Array, Rig, plain_rows

N_SLOTS = MAX_SAMPLES + 1
"""One slot more than a step uses: its context and its choice must not change."""
UNCHOSEN = 0xDEAD


def settings(**changes: Any) -> Sample:
    """Settings of one draw, as the device stores them; by default nothing is filtered."""
    stored = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in changes.items()}
    return replace(Sample(row=0, slot=0, seed=0, index=0), **stored)


class SamplerRig:
    """The sampler for vocabularies of one size, recorded for every number of samples."""

    def __init__(self, rig: Rig, vocab_size: int) -> None:
        self.rig, self.vocab_size = rig, vocab_size
        memory = rig.memory
        self._logits = memory.zeros("logits", (MAX_SAMPLES, padded(vocab_size)))
        self._keys = ops.sort_keys_tensor(memory, MAX_SAMPLES, vocab_size)
        self._seen = memory.zeros("seen", (N_SLOTS, -(-vocab_size // 32)), "u32")
        self._allowed = memory.zeros("allowed", self._seen.shape, "u32")
        self._chosen = memory.zeros("chosen", (N_SLOTS,), "u32")
        self._results = memory.zeros("results", (MAX_SAMPLES, RESULT_WORDS), "u32")

    def choose(
        self,
        logits: Array,
        samples: Sequence[Sample],
        seen: Sequence[Sequence[int]] = (),
        allowed: Sequence[Sequence[int]] = (),
    ) -> tuple[Sampled, ...]:
        """Return the device's choices for up to 8 rows of float32 logits (n, vocab_size), each in a
        slot of its own whose context has the ids `seen` and whose grammar allows the ids `allowed`;
        none: it has no grammar. Also checks the buffers afterwards."""
        allowed = [*allowed, *([()] * (len(samples) - len(allowed)))]
        samples = [replace(s, slot=i, n_allowed=len(allowed[i])) for i, s in enumerate(samples)]
        # Slots without a grammar have any bits.
        bits = np.random.default_rng(0).integers(0, 2**32, self._allowed.shape, np.uint32)
        for i, ids in enumerate(allowed):
            bits[i] = self._bits(ids) if ids else bits[i]
        self.rig.memory.write(self._allowed, bits)
        sampled = self._sample(logits, plain_rows(1), samples, seen)
        self._check_left([s.id for s in sampled], seen)
        return sampled

    def verify(
        self, logits: Array, sample: Sample, seen: Sequence[int], drafts: Sequence[int]
    ) -> tuple[Sampled, ...]:
        """Return the device's choices for a token and the `drafts` after it, all in slot 0, whose
        context has the ids `seen`: logits (1 + n_drafts, vocab_size). They leave no trace."""
        rows = [Row(0, 10 + i, id) for i, id in enumerate((self.vocab_size - 1, *drafts))]
        samples = [
            replace(sample, row=i, index=sample.index + i, n_drafts=i, verifies=True)
            for i in range(len(rows))
        ]
        sampled = self._sample(logits, rows, samples, [seen])
        self._check_left([], [seen])
        return sampled

    def _sample(
        self,
        logits: Array,
        rows: list[Row],
        samples: list[Sample],
        seen: Sequence[Sequence[int]],
    ) -> tuple[Sampled, ...]:
        n, memory = len(samples), self.rig.memory
        self._upload(logits, [*seen, *([()] * (N_SLOTS - len(seen)))])
        batch = self.rig.batch(rows, samples)
        self.rig.run(lambda rec: self.record(rec, batch))
        results = memory.read(self._results)
        assert np.isnan(results.view(np.float32)[n:]).all(), "wrote past the step's samples"
        sampled = parse_samples(results.tobytes(), n)
        left = memory.read(self._logits)[:n, : self.vocab_size].view(np.uint32)
        assert np.array_equal(left, logits.view(np.uint32)), "the raw logits changed"
        return sampled

    def keys(self) -> Array:
        """Result of the first half of the sampler, (MAX_SAMPLES, keys and summaries)."""
        return self.rig.memory.read(self._keys)

    def record(self, rec: Recorder, batch: Batch) -> None:
        """Record both halves of the sampler."""
        vocab = self.vocab_size
        ops.logit_sort_keys(
            rec, batch, "sample.keys", vocab, self._logits, self._seen, self._allowed, self._keys
        )
        ops.sample(
            rec, batch, "sample", vocab, self._logits, self._keys, self._seen, self._chosen,
            self._results,
        )  # fmt: skip

    def _upload(self, logits: Array, seen: Sequence[Sequence[int]]) -> None:
        memory = self.rig.memory
        whole = np.full(self._logits.shape, np.nan, np.float32)
        whole[: len(logits), : self.vocab_size] = logits
        memory.write(self._logits, whole)
        memory.write(self._seen, np.concatenate([self._bits(ids) for ids in seen]))
        memory.write(self._chosen, np.full(N_SLOTS, UNCHOSEN, np.uint32))
        self.rig.poison(self._keys)
        self.rig.poison(self._results)

    def _bits(self, ids: Sequence[int]) -> Array:
        bits = np.zeros(self._seen.shape[1] * 32, np.uint8)
        bits[list(ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def _check_left(self, ids: Sequence[int], seen: Sequence[Sequence[int]]) -> None:
        """The next step reads the choice `ids` of each slot; the next penalty counts it."""
        seen = [*seen, *([()] * (N_SLOTS - len(seen)))]
        chosen = self.rig.memory.read(self._chosen).tolist()
        assert chosen == [*ids, *[UNCHOSEN] * (N_SLOTS - len(ids))]
        wanted = [self._bits([*before, *ids[i : i + 1]]) for i, before in enumerate(seen)]
        assert np.array_equal(self.rig.memory.read(self._seen), np.stack(wanted))
