"""Draft model: a small model on the same device that proposes the next tokens of the large one.

It prefills the texts of the runs into a KV cache of its own, between the steps of the large model,
and then decodes greedily. Each draft is the input of the next draft step without leaving the
device; the host reads all drafts of a round at once. Before every use the tokens in the cache are
compared with the sequence: those up to the first difference are kept, and the rest is computed
again. So the scheduler need not report rejected drafts, cancels, preemptions and slots that changed
hands. When a sequence leaves its slot, its blocks enter the draft model's own prefix cache. Blocks
behind a sliding window are not freed: a draft model that has one drafts until its cache is full.

It knows neither interventions nor adapters. They change which drafts are accepted, never the text.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from gpu.engine.row_costs import RowCosts
from gpu.engine.scheduler import Scheduler
from gpu.engine.sequence import Sequence
from gpu.kv.block_pool import BlockPool
from gpu.kv.block_table import BlockTable
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.prefix_cache import BlockHashes
from gpu.runner import Runner
from gpu.speculative.draft_length import Cost
from gpu.speculative.drafting import ModelDrafting
from gpu.step import FROM_GPU, Row, Sample, Step

MOST_BEHIND = 8
"""Tokens that a text may be ahead of the draft model for it to draft: it reads them with the first
draft step. More are read before."""

LEAST_READ = 16
"""Rows of a step that reads a text, if there are so many: more than a run writes meanwhile."""

READING_MS = 20.0
"""Time of a step that reads a text while nobody writes."""

READING_SHARE = 0.5
"""Time of one while somebody does, relative to a step of the large model."""

FORGET = 0.998
"""See `RowCosts`."""

DRAFT, READ = "draft", "read"


@dataclass(slots=True)
class DraftText:
    """One sequence in the draft model: its text is the first `n_known` tokens of the sequence, then
    `drafts`; the KV cache holds the first `n_computed` of these."""

    slot: int
    blocks: list[int]
    n_computed: int
    n_known: int
    drafts: list[int] = field(default_factory=list)
    block_hashes: BlockHashes = field(default_factory=BlockHashes)
    goes_on: bool = True
    """Whether more of the text can be read: until it has a token that the draft model does not know
    or more than its context, or no block is free."""

    def agree_with(self, ids: list[int]) -> None:
        """Cut the text back to what it has in common with `ids`, the sequence now, whose first
        `n_known` tokens cannot have changed. The last of `ids` is always computed again: its logits
        are the next draft."""
        following = zip(self.drafts, ids[self.n_known :], strict=False)
        n_accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], following))
        self.n_computed = min(self.n_computed, self.n_known + n_accepted, len(ids) - 1)
        self.n_known, self.drafts = len(ids), []


class DraftModel:
    """Draft model of an engine, on the engine's thread. `vocab_size`: that of the large model; a
    draft ends before an id that it does not have."""

    def __init__(
        self, runner: Runner, vocab_size: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.runner = runner
        self._vocab_size = vocab_size
        self._clock = clock
        self._pool = BlockPool(runner.limits.n_blocks)
        self._texts: dict[Sequence, DraftText] = {}
        self._costs = RowCosts(FORGET)
        self._known_shapes: set[tuple[str, int]] = set()
        self._n_drafting = 1

    def drafting(self, cost: Cost) -> ModelDrafting:
        """Return the drafting of a new sequence. `cost`: of the large model's steps."""
        return ModelDrafting(cost, self._drafting_ms)

    @property
    def n_free_blocks(self) -> int:
        """KV blocks that no text has."""
        return self._pool.n_free

    def warm_up(self) -> Iterator[None]:
        """Compile in advance, see `Runner.warm_up`."""
        return self.runner.warm_up()

    def advance(self, scheduler: Scheduler) -> None:
        """Read on, and propose tokens for the next step. To be called before each is made."""
        active = scheduler.active
        n_decoding = sum(not sequence.prefilling for sequence in active)
        self.read(active, scheduler.decode_cost(n_decoding) if n_decoding else None)
        self.propose(scheduler.to_draft())

    def read(self, active: Iterable[Sequence], step_ms: float | None) -> None:
        """Prefill a piece of the text that is furthest behind, among those that are too far behind
        to draft and whose drafts are expected to pay.

        active   the sequences that have a slot; the tables of others are given up
        step_ms  time of the large model's step; None: it is unknown, or nobody writes
        """
        drafted = {
            sequence: sequence.decoding.drafting
            for sequence in active
            if isinstance(sequence.decoding.drafting, ModelDrafting) and not sequence.finished
        }
        self._n_drafting = max(1, len(drafted))
        self._give_up(drafted)
        for sequence in drafted:
            if sequence not in self._texts:
                self._begin(sequence)
        behind = [
            sequence
            for sequence, text in self._texts.items()
            if text.goes_on and self._behind(sequence) > MOST_BEHIND and drafted[sequence].pays
        ]
        if behind:
            self._read_piece(max(behind, key=self._behind), step_ms)
        for sequence, drafting in drafted.items():
            ready = self._texts[sequence].goes_on and self._behind(sequence) <= MOST_BEHIND
            drafting.can_draft = ready

    def propose(self, counts: dict[Sequence, int]) -> None:
        """Draft `counts[sequence]` tokens for each sequence. None may have samples in flight."""
        began = self._clock()
        counts = self._fitting({s: n for s, n in counts.items() if self._prepare(s, n)})
        if not counts:
            return
        drafts: dict[Sequence, list[int]] = {sequence: [] for sequence in counts}
        pending: deque[list[Sequence]] = deque()
        for i in range(max(counts.values())):
            drafting = [s for s, n in counts.items() if n > i]
            if len(pending) == self.runner.in_flight:
                self._collect(pending, drafts)
            self.runner.submit(self._draft_step(drafting, i))
            pending.append(drafting)
        while pending:
            self._collect(pending, drafts)
        ms = (self._clock() - began) * 1e3
        self._learn(DRAFT, len(counts), ms / max(counts.values()))
        for sequence, ids in drafts.items():
            self._set_proposed(sequence, ids, ms / len(drafts))

    def close(self) -> None:
        self.runner.close()

    # ---- inside -----------------------------------------------------------------------------

    def _drafting_ms(self, n: int) -> float | None:
        """Return the expected time of `n` drafts of a sequence: its share of the steps that it
        takes with the others."""
        step = self._costs.expected(DRAFT, self._n_drafting)
        return None if step is None else n * step / self._n_drafting

    def _behind(self, sequence: Sequence) -> int:
        """Return how many tokens of the text were not read."""
        return len(sequence.ids) - self._texts[sequence].n_computed

    def _begin(self, sequence: Sequence) -> None:
        """Give a sequence a table that begins with what is known of its text."""
        hashes, ids = BlockHashes(salt=sequence.block_hashes.salt), sequence.ids
        match = self._pool.match_prefix(ids, len(ids) - 1, hashes).without_part()
        (blocks,) = self._pool.attach(match)
        text = DraftText(sequence.slot, blocks, match.n_tokens, len(ids))
        text.block_hashes = hashes
        self._texts[sequence] = text
        tokens, n_counted = np.array(ids, np.uint32), sequence.text.n_counted
        known = tokens < self.runner.config.vocab_size  # of others, nothing is drafted after them
        n_known = int(known[len(ids) - n_counted :].sum())
        self.runner.begin_slot(text.slot, tokens[known], n_known)
        self.runner.set_blocks(text.slot, text.blocks)

    def _give_up(self, running: Container[Sequence]) -> None:
        """Free the tables of sequences that are not `running`, or run in another slot."""
        for sequence, text in list(self._texts.items()):
            if sequence in running and sequence.slot == text.slot:
                continue
            text.agree_with(sequence.ids)
            n_full = text.n_computed // BLOCK_TOKENS * BLOCK_TOKENS
            self._pool.insert(sequence.ids, n_full, BlockTable(text.blocks), text.block_hashes)
            self._pool.free(text.blocks)
            del self._texts[sequence]

    def _can_read(self, text: DraftText, ids: list[int], end: int, n_more: int = 0) -> bool:
        """Give a text blocks for its tokens up to `end` and `n_more` after them; return False if
        they do not fit, or the draft model does not know one of the tokens."""
        known = all(id < self.runner.config.vocab_size for id in ids[text.n_computed : end])
        text.goes_on = known and self._cover(text, end + n_more)
        return text.goes_on

    def _cover(self, text: DraftText, n_tokens: int) -> bool:
        """Give a text blocks for `n_tokens` tokens; return False if there are too few."""
        if n_tokens > self.runner.limits.context:
            return False
        missing = blocks_for(n_tokens) - len(text.blocks)
        if missing > 0:
            taken = self._pool.allocate(missing)
            if taken is None:
                return False
            text.blocks += taken
            self.runner.set_blocks(text.slot, text.blocks)
        return True

    def _read_piece(self, sequence: Sequence, step_ms: float | None) -> None:
        """Read the next piece of a text, but never its last token: its logits are the first
        draft."""
        text, ids = self._texts[sequence], sequence.ids
        text.agree_with(ids)
        limit = READING_MS if step_ms is None else READING_SHARE * step_ms
        most = min(len(ids) - 1 - text.n_computed, self.runner.limits.max_rows)
        n = min(most, max(LEAST_READ, self._costs.rows_within(READ, limit, most)))
        end = text.n_computed + n
        if not self._can_read(text, ids, end):
            return
        began = self._clock()
        self.runner.submit(Step(_rows(text, ids, end)))
        self.runner.collect()
        self._learn(READ, n, (self._clock() - began) * 1e3)
        text.n_computed = end

    def _prepare(self, sequence: Sequence, n: int) -> bool:
        """Make a text ready for `n` drafts; return False if it cannot have them."""
        text, ids = self._texts[sequence], sequence.ids
        text.agree_with(ids)
        if not self._can_read(text, ids, len(ids), n):
            return False
        if sequence.text.params.has_penalty:
            self.runner.set_text(text.slot, np.array(ids, np.uint32), sequence.text.n_counted)
        return True

    def _fitting(self, counts: dict[Sequence, int]) -> dict[Sequence, int]:
        """Return the first of these sequences whose unread tokens fit into one step."""
        n_rows, fitting = 0, {}
        for sequence, n in counts.items():
            n_rows += self._behind(sequence)
            if n_rows > self.runner.limits.max_rows:
                break
            fitting[sequence] = n
        return fitting

    def _draft_step(self, sequences: list[Sequence], i: int) -> Step:
        """Return the step that samples draft `i` of each sequence."""
        rows: list[Row] = []
        samples: list[Sample] = []
        for sequence in sequences:
            text = self._texts[sequence]
            if i == 0:
                rows += _rows(text, sequence.ids, text.n_known)
            else:
                rows.append(Row(text.slot, text.n_known + i - 1, FROM_GPU))
            text.n_computed = text.n_known + i
            samples.append(_most_likely(sequence, len(rows) - 1, i))
        return Step(tuple(rows), tuple(samples))

    def _collect(self, pending: deque[list[Sequence]], drafts: dict[Sequence, list[int]]) -> None:
        """Read the oldest draft step."""
        result = self.runner.collect()
        for sequence, sampled in zip(pending.popleft(), result.samples, strict=True):
            drafts[sequence].append(sampled.id)

    def _set_proposed(self, sequence: Sequence, ids: list[int], ms: float) -> None:
        text = self._texts[sequence]
        text.drafts = ids
        known = list(takewhile(lambda id: id < self._vocab_size, ids))
        assert isinstance(sequence.decoding.drafting, ModelDrafting)
        sequence.decoding.drafting.set_proposed(known, ms)

    def _learn(self, kind: str, n: int, ms: float) -> None:
        """Record the time of a step. The first of a shape does not count: it compiles."""
        shape = (kind, n.bit_length())
        if shape in self._known_shapes:
            self._costs.learn(kind, n, ms)
        self._known_shapes.add(shape)


def _most_likely(sequence: Sequence, row: int, i: int) -> Sample:
    """Return the greedy draw of draft `i` after rows[row], with the penalties of its run."""
    index = sequence.decoding.n_submitted + i
    sample = Sample.of(sequence.text.params, row=row, slot=sequence.slot, index=index)
    return replace(sample, temperature=0.0)


def _rows(text: DraftText, ids: list[int], end: int) -> tuple[Row, ...]:
    """Return the rows that read the text up to `end`."""
    return tuple(Row(text.slot, i, ids[i]) for i in range(text.n_computed, end))
