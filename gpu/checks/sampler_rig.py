"""Runs the sampling shaders alone, repeatedly from one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu import ops
from gpu.checks.rig import POISON, Array, Rig, plain_rows
from gpu.ops import Batch
from gpu.ops.sampling import N_BINS, RESULT_WORDS, bin_groups
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.runners.results import parse_samples
from gpu.step import MAX_TIMES_WRITTEN, Row, Sample, Sampled, Selfhash
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder

N_SLOTS = MAX_SAMPLES + 1
"""One slot more than a step uses: its context and its choice must not change."""
UNCHOSEN = 0xDEAD


Green = npt.NDArray[np.bool_] | Selfhash | None
"""Greenlist of a sample (vocab_size,), what decides it, or None without a watermark."""


class Text(NamedTuple):
    """Context of a slot, of which its run wrote the last `n_written` ids."""

    ids: Sequence[int]
    n_written: int


def settings(**changes: Any) -> Sample:
    """Settings of one draw, as the device stores them; by default nothing is filtered."""
    stored: dict[str, Any] = {
        k: float(np.float32(v)) if isinstance(v, float) else v for k, v in changes.items()
    }
    return replace(Sample(row=0, slot=0, seed=0, index=0), **stored)


def _favoured(green: Green) -> list[int] | None:
    """Return the tokens of a greenlist; none yet if the device finds it."""
    if green is None:
        return None
    return [] if isinstance(green, Selfhash) else np.flatnonzero(green).tolist()


class SamplerRig:
    """The sampler for vocabularies of one size, recorded for every number of samples."""

    def __init__(self, rig: Rig, vocab_size: int) -> None:
        self.rig, self.vocab_size = rig, vocab_size
        memory = rig.memory
        self._logits = memory.zeros("logits", (MAX_SAMPLES, padded(vocab_size)))
        self._keys = ops.SortKeys.make(memory, MAX_SAMPLES, vocab_size)
        self._texts = ops.SlotTexts.make(memory, N_SLOTS, vocab_size)
        self._allowed = memory.zeros("allowed", self._texts.seen.shape, "u32")
        self._greenlist = memory.zeros("greenlist", self._texts.seen.shape, "u32")
        self._chosen = memory.zeros("chosen", (N_SLOTS,), "u32")
        self._results = memory.zeros("results", (MAX_SAMPLES, RESULT_WORDS), "u32")

    def choose(
        self,
        logits: Array,
        samples: Sequence[Sample],
        contexts: Sequence[Sequence[int]] = (),
        allowed: Sequence[Sequence[int]] = (),
        green: Sequence[Green] = (),
    ) -> tuple[Sampled, ...]:
        """Return the device's choices for up to 8 rows of float32 logits (n, vocab_size), each in a
        slot of its own with a context of `contexts`, of which the run wrote as many ids as the
        sample's index says, and a grammar that allows the ids `allowed`; none: it has no grammar.
        `green`: the greenlists of those with a watermark, or what decides them. Also checks the
        buffers afterwards."""
        allowed = [*allowed, *([()] * (len(samples) - len(allowed)))]
        samples = [replace(s, slot=i, n_allowed=len(allowed[i])) for i, s in enumerate(samples)]
        self._write_bits(self._allowed, [ids or None for ids in allowed])
        green = [*green, *([None] * (len(samples) - len(green)))]
        samples = [self._set_green(s, each) for s, each in zip(samples, green, strict=True)]
        marked = [_favoured(each) for each in green]
        self._write_bits(self._greenlist, marked)
        texts = [
            Text(context, min(sample.index, len(context)))
            for context, sample in zip(contexts, samples, strict=False)
        ]
        sampled = self._sample(logits, plain_rows(1), samples, texts)
        self._check_left([s.id for s in sampled], texts)
        return sampled

    def verify(
        self, logits: Array, sample: Sample, context: Sequence[int], drafts: Sequence[int]
    ) -> tuple[Sampled, ...]:
        """Return the device's choices for a token and the `drafts` after it, all in slot 0 with
        this context: logits (1 + n_drafts, vocab_size). They leave no trace."""
        rows = [Row(0, 10 + i, id) for i, id in enumerate((self.vocab_size - 1, *drafts))]
        samples = [
            replace(sample, row=i, index=sample.index + i, n_drafts=i, verifies=True)
            for i in range(len(rows))
        ]
        texts = [Text(context, min(sample.index, len(context)))]
        sampled = self._sample(logits, rows, samples, texts)
        self._check_left([], texts)
        return sampled

    def _sample(
        self,
        logits: Array,
        rows: list[Row],
        samples: list[Sample],
        texts: Sequence[Text],
    ) -> tuple[Sampled, ...]:
        n, memory = len(samples), self.rig.memory
        self._upload(logits, texts)
        for sample in samples:
            self._texts.set_biases(memory, sample.slot, sample.logit_bias)
        batch = self.rig.batch(rows, samples)
        before = memory.read(self._results)
        # Two plans: the second sorts fewer tokens into bins again, among ids that the first left
        # there in any order.
        selfhash = self._selfhash if any(sample.n_hashed for sample in samples) else None
        self.rig.run(lambda rec: self._record_sample(rec, batch, selfhash))
        self.rig.run(lambda rec: self._record_watermark(rec, batch, selfhash))
        results = memory.read(self._results)
        same = np.array_equal(results[n:], before[n:])
        self.rig.expect("the sampler wrote past the step's samples", same)
        left = memory.read(self._logits)[:n, : self.vocab_size].view(np.uint32)
        same = np.array_equal(left, logits.view(np.uint32))
        self.rig.expect("the sampler changed the raw logits", same)
        return parse_samples(results.tobytes(), n)

    def _set_green(self, sample: Sample, green: Green) -> Sample:
        """Write what decides the greenlist of a sample, if that is not given; return the sample."""
        if not isinstance(green, Selfhash):
            return sample
        self._selfhash.set(self.rig.memory, sample.slot, green)
        return replace(sample, n_hashed=len(green.products))

    @cached_property
    def _selfhash(self) -> ops.SelfhashTensors:
        tensors = ops.SelfhashTensors.make(self.rig.memory, MAX_SAMPLES, N_SLOTS, self.vocab_size)
        self.rig.poison(tensors.ranked)
        return tensors

    def greenlist(self, slot: int) -> npt.NDArray[np.bool_]:
        """Greenlist of a slot, (vocab_size,)."""
        bits = self.rig.memory.read(self._greenlist)[slot].view(np.uint8)
        return np.unpackbits(bits, count=self.vocab_size, bitorder="little").astype(bool)

    def keys(self) -> Array:
        """Result of the first half of the sampler, (MAX_SAMPLES, keys and summaries)."""
        return self.rig.memory.read(self._keys.keys)

    def bins(self, row: int) -> tuple[Array, Array, Array]:
        """Return the bins of a row: counts and masses (groups, 2, bins), spans (bins, 4), ids."""
        assert self._keys.bins is not None
        words = self.rig.memory.read(self._keys.bins)[row]
        n = 2 * N_BINS * bin_groups(self.vocab_size, self.rig.device.policy)
        counts, spans, ids = np.split(words, [n, n + 4 * N_BINS])
        return counts.reshape(-1, 2, N_BINS), spans.reshape(-1, 4), ids

    def record(self, rec: Recorder, batch: Batch) -> None:
        """Record both halves of the sampler, and what follows for rows with a watermark."""
        self._record_sample(rec, batch)
        self._record_watermark(rec, batch)

    def _record_sample(
        self, rec: Recorder, batch: Batch, selfhash: ops.SelfhashTensors | None = None
    ) -> None:
        vocab = self.vocab_size
        ops.logit_sort_keys(
            rec, batch, "sample.keys", vocab, self._logits, self._texts, self._allowed, self._keys
        )
        ops.sample(
            rec, batch, "sample", vocab, self._logits, self._keys, self._texts, self._chosen,
            self._results, ranked=selfhash.ranked if selfhash else None,
        )  # fmt: skip

    def _record_watermark(
        self, rec: Recorder, batch: Batch, selfhash: ops.SelfhashTensors | None = None
    ) -> None:
        vocab = self.vocab_size
        if selfhash:
            ops.selfhash_greenlist(rec, batch, "selfhash", vocab, selfhash, self._greenlist)
        ops.watermark_keys(
            rec, batch, "watermark", vocab, self._greenlist, self._results, self._keys
        )
        ops.sample(
            rec, batch, "watermark.sample", vocab, self._logits, self._keys, self._texts,
            self._chosen, self._results, watermarked=True,
        )  # fmt: skip

    def _upload(self, logits: Array, texts: Sequence[Text]) -> None:
        memory = self.rig.memory
        whole = np.full(self._logits.shape, np.nan, np.float32)
        whole[: len(logits), : self.vocab_size] = logits
        memory.write(self._logits, whole)
        memory.write(self._texts.biases, np.full(self._texts.biases.shape, POISON, np.uint32))
        memory.write(self._texts.seen, np.zeros(self._texts.seen.shape, np.uint32))
        memory.write(self._texts.counts, np.zeros(self._texts.counts.shape, np.uint32))
        for slot, text in enumerate(texts):
            ids = np.array(text.ids, np.uint32)
            self._texts.set_text(memory, slot, ids, text.n_written)
        memory.write(self._chosen, np.full(N_SLOTS, UNCHOSEN, np.uint32))
        for tensor in (self._keys.keys, self._keys.bins):
            if tensor is not None:
                self.rig.poison(tensor)
        self.rig.poison(self._results)

    def _write_bits(self, tensor: Tensor, sets: Sequence[Sequence[int] | None]) -> None:
        """Write sets of tokens to the slots, and any bits to those without one."""
        bits = np.random.default_rng(0).integers(0, 2**32, tensor.shape, np.uint32)
        for slot, ids in enumerate(sets):
            bits[slot] = bits[slot] if ids is None else self._bits(ids)
        self.rig.memory.write(tensor, bits)

    def _bits(self, ids: Sequence[int]) -> Array:
        bits = np.zeros(self._allowed.shape[1] * 32, np.uint8)
        bits[list(ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def _check_left(self, ids: Sequence[int], texts: Sequence[Text]) -> None:
        """Raise WrongResult unless the buffers are as the next step needs them: it reads the choice
        `ids` of each slot, and the next penalty counts it."""
        memory, expect = self.rig.memory, self.rig.expect
        chosen = memory.read(self._chosen).tolist()
        same = chosen == [*ids, *[UNCHOSEN] * (N_SLOTS - len(ids))]
        expect("the next step would read another choice", same)
        seen = np.zeros((N_SLOTS, 32 * self._texts.seen.shape[1]), np.uint8)
        counts = np.zeros((N_SLOTS, 2 * self._texts.counts.shape[1]), np.int64)
        for slot, text in enumerate(texts):
            seen[slot, list(text.ids)] = 1
            for id in text.ids[len(text.ids) - text.n_written :]:
                counts[slot, id] += 1
        for slot, id in enumerate(ids):
            seen[slot, id] = 1
            counts[slot, id] += 1
        bits = np.packbits(seen, axis=1, bitorder="little").view(np.uint32)
        packed = np.minimum(counts, MAX_TIMES_WRITTEN).astype(np.uint16).view(np.uint32)
        same = np.array_equal(memory.read(self._texts.seen), bits)
        expect("the seen tokens are wrong", same)
        same = np.array_equal(memory.read(self._texts.counts), packed)
        expect("the counts of written tokens are wrong", same)
