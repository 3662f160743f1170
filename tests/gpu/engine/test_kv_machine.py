"""The block manager under operations in any order, beside a model that knows the text in every cell
of every block: no block leaks, is freed twice or is read with another text in it."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpu.engine.decoding import Draws
from gpu.engine.kv_manager import KvManager
from gpu.engine.sequence import Sequence
from gpu.info import RunnerLimits
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.copies import BlockCopy, HostLoad, HostStore, KvCopy
from gpu.kv.prefix_cache import BlockHashes, Token
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.speculative.drafting import NgramDrafting
from gpu.step import FROM_GPU, Row, StepResult
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import byte_tokenizer, sampled
from tests.gpu.kv.block_checks import Text, cached_texts, check_matches, check_owners, ids_of

CONTEXT = 80
MAX_ROWS = 24
MOST_RUNS = 5
KEY = b"acts"
"""Extra key of the tokens that an intervention acts on."""


@dataclass(frozen=True)
class Start:
    """A run to start: its prompt is the text number `text` without its last `cut` tokens, and
    `tail`; it ends `early` tokens before the context does. `kind` says whether it drafts, and
    whether an intervention acts on it."""

    text: int
    cut: int
    tail: list[int]
    early: int
    kind: int


number = st.integers(0, 1 << 16)
"""A choice among what there is at that moment."""
few = st.integers(1, MAX_ROWS)
"""A small number. Small draws are frequent, so they stand for long texts and large steps."""
starts = st.builds(Start, number, number, st.lists(st.integers(1, 3), max_size=20), few, few)


@cache
def tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return byte_tokenizer(Path(folder))


def script(ids: list[int]) -> int:
    """Return the next token of a text: of few kinds, so that texts meet and repeat themselves."""
    return 1 + sum(ids[-5:]) % 3


class Cells:
    """Device memory, and blocks in host memory by place. Reading checks that every key in reach is
    one of the row's own text."""

    def __init__(self, windows: tuple[int | None, ...]) -> None:
        self.texts: dict[tuple[int, int], Text] = {}
        self.host: dict[int, dict[int, Text]] = {}
        self._groups: dict[tuple[int, int], int] = {}  # of each cell that was written
        self._host_groups: dict[int, int] = {}
        self._windows = windows

    def apply(self, copies: Iterable[KvCopy]) -> None:
        """Copy blocks in order, as the device is told."""
        for copy in copies:
            match copy:
                case BlockCopy(source, destination):
                    self._fill(destination, self._held(source))
                    self._note(destination, self._groups[source, 0])
                case HostStore(block, place):
                    self.host[place] = self._held(block)
                    self._host_groups[place] = self._groups[block, BLOCK_TOKENS - 1]
                case HostLoad(place, block):
                    self._fill(block, self.host[place])
                    self._note(block, self._host_groups[place])

    def in_host(self) -> set[tuple[int, Text]]:
        """Return group and whole text up to the end of each block in host memory."""
        last = BLOCK_TOKENS - 1
        return {(self._host_groups[place], cells[last]) for place, cells in self.host.items()}

    def _note(self, block: int, group: int) -> None:
        """Note that a block holds keys of a group's layers."""
        self._groups |= {(block, cell): group for cell in range(BLOCK_TOKENS)}

    def _held(self, block: int) -> dict[int, Text]:
        cells = range(BLOCK_TOKENS)
        return {cell: self.texts[block, cell] for cell in cells if (block, cell) in self.texts}

    def _fill(self, block: int, held: dict[int, Text]) -> None:
        for cell in range(BLOCK_TOKENS):
            self.texts.pop((block, cell), None)
            if cell in held:
                self.texts[block, cell] = held[cell]

    def write(self, tables: list[list[int]], position: int, token: Token) -> Text:
        """Write a token in each group; return the text up to it, as the cells before it say."""
        last = (tables[0][(position - 1) // BLOCK_TOKENS], (position - 1) % BLOCK_TOKENS)
        before = self.texts[last] if position else ()
        for group, (table, window) in enumerate(zip(tables, self._windows, strict=True)):
            at = [(block, cell) for block in table for cell in range(BLOCK_TOKENS)]
            for p in range(0 if window is None else max(0, position + 1 - window), position):
                assert self.texts.get(at[p]) == before[: p + 1], f"position {p} holds another text"
                assert self._groups[at[p]] == group, f"position {p} holds another group's keys"
            self.texts[at[position]] = (*before, token)
            self._groups[at[position]] = group
        return (*before, token)


class BlockMachine(RuleBasedStateMachine):
    """Runs start, are read, preempted, resumed and cancelled, and texts are computed outside of
    them, in any order that the scheduler allows."""

    @initialize(
        n_spare=st.integers(0, 4),
        windows=st.sampled_from(((None,), (None,), (20,), (40,), (None, 20), (None, 20, 40))),
        cached=number,
        n_host_blocks=st.sampled_from((0, 3, 12)),
        first=st.lists(starts, min_size=2, max_size=MOST_RUNS),
    )
    def open(
        self,
        n_spare: int,
        windows: tuple[int | None, ...],
        cached: int,
        n_host_blocks: int,
        first: list[Start],
    ) -> None:
        n_blocks = len(windows) * (CONTEXT // BLOCK_TOKENS + n_spare)
        limits = RunnerLimits(
            slots=MOST_RUNS, context=CONTEXT, max_rows=MAX_ROWS, max_samples=8, n_blocks=n_blocks,
            block_tokens=BLOCK_TOKENS, block_bytes=1, max_captured_rows=MAX_ROWS, windows=windows,
            n_host_blocks=n_host_blocks,
        )  # fmt: skip
        self.kv = KvManager(limits, prefix_cache=cached % 8 != 0)
        self.cells = Cells(windows)
        self.tables: dict[Sequence, list[list[int]]] = {}
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.acts: dict[Sequence, int] = {}  # position from which an intervention acts
        self.last: dict[Sequence, int] = {}  # last token that the device sampled
        self.in_flight: deque[tuple[Sequence, list[int]]] = deque()
        self.texts: list[list[int]] = [[1] * 40, [1 + i % 3 for i in range(CONTEXT - 1)]]
        for one in first:
            self._start(one)

    # ---- runs ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.running) + len(self.waiting) < MOST_RUNS)
    @rule(one=starts)
    def start(self, one: Start) -> None:
        """Start a run whose prompt branches off an earlier text."""
        self._start(one)

    @precondition(lambda self: any(s.decoding.settled for s in self.waiting))
    @rule(which=number)
    def resume(self, which: int) -> None:
        able = [sequence for sequence in self.waiting if sequence.decoding.settled]
        self._admit(able[which % len(able)])

    @precondition(lambda self: self.running)
    @rule(picks=st.lists(st.tuples(number, few), min_size=1), preempts=st.booleans(), ahead=few)
    def step(self, picks: list[tuple[int, int]], preempts: bool, ahead: int) -> None:
        """Do a step of some runs, and leave the samples of the last ones in flight."""
        rows = {self.running[which % len(self.running)]: n for which, n in picks}
        self._step({run: MAX_ROWS + 1 - n for run, n in rows.items()}, preempts)
        self._read_all_but(ahead % 4)

    @precondition(lambda self: self.running)
    @rule(n_fewer=few, n_rows=few, preempts=st.booleans(), ahead=few)
    def advance(self, n_fewer: int, n_rows: int, preempts: bool, ahead: int) -> None:
        """Do some steps of all runs."""
        for _ in range(MAX_ROWS - n_fewer + 1):
            self._step(dict.fromkeys(self.running, n_rows), preempts)
            self._read_all_but(ahead % 4)

    @precondition(lambda self: self.running or self.waiting)
    @rule(which=number, kind=st.integers(0, 3))
    def disturb(self, which: int, kind: int) -> None:
        """Cancel any run, or preempt one."""
        runs = [*self.running, *self.waiting]
        sequence = runs[which % len(runs)]
        if kind == 3:
            sequence.cancel()
            self._end(sequence)
        elif sequence in self.running:
            self._preempt(sequence)

    # ---- outside of runs --------------------------------------------------------------------

    @precondition(lambda self: self.cells.texts)
    @rule(text=number, kept=few, first=number, n_computed=number)
    def recompute(self, text: int, kept: int, first: int, n_computed: int) -> None:
        """Compute rows of a text in borrowed blocks, and keep some of them."""
        ids = [*self.texts[text % len(self.texts)][:-kept], 1]
        first %= len(ids)
        self._apply_changes()
        n_free = self.kv.n_free
        borrowed = self.kv.borrow(MOST_RUNS, ids, first, BlockHashes())
        if borrowed is None:
            assert self.kv.most_blocks(len(ids)) > n_free
            assert self.kv.n_free == n_free
            return
        assert borrowed.n_reused <= first
        self.cells.apply(borrowed.copies)
        check_owners(self.kv, self.running, self.waiting, borrowed.owned)
        n = borrowed.n_reused + n_computed % (len(ids) - borrowed.n_reused + 1)
        for at in range(borrowed.n_reused, n):
            text_so_far = self.cells.write(borrowed.tables, at, ids[at])
            assert list(text_so_far) == ids[: at + 1]
        self.kv.give_back(borrowed, n)

    @precondition(lambda self: self.cells.texts)
    @rule(text=number, most=few, acts=few)
    def look_up(self, text: int, most: int, acts: int) -> None:
        """Find the longest cached prefix of a text, with an intervention and without."""
        self.kv.state()  # enters what runs computed
        self._apply_changes()
        ids = self.texts[text % len(self.texts)]
        tokens = tuple(ids) if acts % 3 else tuple((id, KEY) for id in ids)
        most = min(2 * most, len(ids))
        check_matches(self.kv.pool, self.cells.texts, tokens, most, self.cells.in_host())

    # ---- always ------------------------------------------------------------------------------

    @invariant()
    def every_block_is_free_or_owned(self) -> None:
        if hasattr(self, "kv"):
            self._apply_changes()
            check_owners(self.kv, self.running, self.waiting)
            cached_texts(self.kv.pool, self.cells.texts)

    def teardown(self) -> None:
        """End all runs: every block is free then."""
        if not hasattr(self, "kv"):
            return
        for sequence in [*self.running, *self.waiting]:
            sequence.cancel()
            self._end(sequence)
        self.every_block_is_free_or_owned()
        n_blocks = self.kv.pool.n_blocks
        assert self.kv.n_free == n_blocks
        assert sorted(self.kv.pool.allocate(n_blocks) or []) == list(range(n_blocks))

    # ---- inside ------------------------------------------------------------------------------

    def _start(self, one: Start) -> None:
        text = self.texts[one.text % len(self.texts)]
        prompt = [*text[: len(text) - one.cut % len(text)], *one.tail][: CONTEXT - 1]
        params = SamplingParams(max_tokens=CONTEXT - 3 * one.early, seed=0)
        sequence = Sequence(Request(prompt, params), tokenizer(), (), CONTEXT)
        if one.kind % 3 == 0:
            sequence.decoding.drafting = NgramDrafting(lambda n: None)
        self.acts[sequence] = one.kind if one.kind % 4 == 0 else CONTEXT
        sequence.block_hashes = BlockHashes(lambda at: self._key(sequence, at))
        self.waiting.append(sequence)
        self._admit(sequence)

    def _admit(self, sequence: Sequence) -> None:
        sequence.resume()
        if self.kv.admit(sequence):
            self.waiting.remove(sequence)
            self.running.append(sequence)
            assert sequence.prefill.n_done < sequence.prefill.n_known, (
                "no row is left to sample from"
            )
        else:
            assert self.running, "the only run does not start"

    def _step(self, rows: dict[Sequence, int], preempts: bool) -> None:
        """Give the next rows of some runs blocks, and compute them."""
        wanted = {sequence: self._rows_wanted(sequence, n) for sequence, n in rows.items()}
        wanted = {sequence: n for sequence, n in wanted.items() if n}
        for sequence, n in list(wanted.items()):
            others = [other for other in self.running if other is not sequence]
            while sequence in self.running and not self._cover(sequence, n):
                if not (preempts and others):
                    del wanted[sequence]
                    break
                self._preempt(others.pop())
        self._apply_changes()
        for sequence, n in wanted.items():
            if sequence in self.running:
                self._compute(sequence, n)

    def _read_all_but(self, n_ahead: int) -> None:
        """Read the samples of the oldest rows."""
        while len(self.in_flight) > n_ahead:
            sequence, ids = self.in_flight.popleft()
            if not sequence.finished:
                samples = [sampled(id) for id in ids]
                sequence.samples_read(Draws(samples, list(range(len(ids))), StepResult(())))
                if sequence.finished:
                    self._end(sequence)

    def _rows_wanted(self, sequence: Sequence, n: int) -> int:
        """Return how many rows a run can have in the next step; with drafts if it has some."""
        if sequence.finished:
            return 0
        if sequence.prefilling:
            if sequence.prefill.n_done == sequence.prefill.n_matched:
                self.kv.match_again(sequence)
            return min(n, sequence.prefill.n_left)
        return 1 + sequence.drafts_wanted(n % 4, 0) if sequence.wants_decode else 0

    def _cover(self, sequence: Sequence, n: int) -> bool:
        first = sequence.next_position
        n_free, n_before = self.kv.n_free, len(sequence.tables[0].blocks)
        room = self.kv.room(sequence)
        if self.kv.cover(sequence, first + n - 1, n):
            n_after = max(n_before, blocks_for(first + n))
            assert [len(table.blocks) for table in sequence.tables] == [n_after] * len(
                sequence.tables
            )
            return True
        assert self.kv.n_free >= n_free, "blocks were taken although they are too few"
        assert room < first + n
        return False

    def _compute(self, sequence: Sequence, n: int) -> None:
        """Compute the next rows of a run; those of drafts are sampled one by one."""
        if sequence.prefilling:
            texts = [self._write(sequence, row) for row in sequence.prefill_rows(n)][-1:]
            if sequence.prefilling:
                return
            sequence.sample(0)
        else:
            rows = sequence.decode_rows(sequence.decoding.take_drafts(n - 1, 0))
            texts = [self._write(sequence, row) for row in rows]
            for i in range(n):
                sequence.sample(i, i, verifies=n > 1)
        ids = [script(ids_of(text)) for text in texts]
        self.last[sequence] = ids[-1]
        self.in_flight.append((sequence, ids))

    def _write(self, sequence: Sequence, row: Row) -> Text:
        """Write the key of a row where the device's table says."""
        id = self.last[sequence] if row.token == FROM_GPU else row.token
        key = self._key(sequence, row.position)
        token: Any = (id, key) if key else id
        text = self.cells.write(self.tables[sequence], row.position, token)
        assert ids_of(text)[: len(sequence.ids)] == sequence.ids[: len(text)]
        return text

    def _key(self, sequence: Sequence, position: int) -> bytes:
        return KEY if position >= self.acts[sequence] else b""

    def _release(self, sequence: Sequence) -> None:
        """Take the blocks of a run. All that it computed can be found, if it still had it all."""
        n, ids = sequence.n_computed, list(sequence.ids)
        whole = not any(table.n_freed for table in sequence.tables)
        self.kv.release(sequence)
        self._apply_changes()
        if whole:
            found = self.kv.pool.match_prefix(ids, n, sequence.block_hashes)
            assert found.n_tokens == n, "what was computed is not found"

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.preempt()
        self.running.remove(sequence)
        self.waiting.append(sequence)

    def _end(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.remove(sequence)
        self.texts.append(sequence.ids)
        for at in range(len(sequence.prompt), len(sequence.ids)):
            assert sequence.ids[at] == script(sequence.ids[:at]), "another text was written"

    def _apply_changes(self) -> None:
        """Copy blocks and update tables, in the order in which the device is told."""
        self.cells.apply(self.kv.copies)
        self.kv.copies.clear()
        for sequence in self.kv.changed_tables:
            self.tables[sequence] = [list(table.blocks) for table in sequence.tables]
        self.kv.changed_tables.clear()


UNTIMED = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True
)
QUICK = settings(
    UNTIMED, max_examples=120, stateful_step_count=50, derandomize=True, phases=[Phase.generate]
)
"""Always the same operations, and the first that fail as they are: shrinking them takes minutes."""
THOROUGH = settings(UNTIMED, max_examples=800, stateful_step_count=100)


@pytest.mark.ci
def test_no_block_leaks_or_is_read_with_another_text_in_it() -> None:
    run_state_machine_as_test(BlockMachine, settings=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_block_leaks_in_any_order_of_operations() -> None:
    run_state_machine_as_test(BlockMachine, settings=THOROUGH)
