"""A runner without a model: the next token is a fixed function of the sequence's ids, so that a
test knows what any interleaving must give. Those ids are read from the blocks that the slot's table
names, as attention would. It checks what a real device could not: that every position of a sequence
is written in order, and once unless the last one is written again as it was, and that all cells
before it hold the same sequence."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from gpu.config import ModelConfig, RopeConfig
from gpu.info import DeviceInfo, MemoryInfo, RunnerLimits
from gpu.interventions.active import ActiveInterventions
from gpu.kv.copies import TokenMove
from gpu.step import (
    FROM_GPU,
    Candidate,
    Floats,
    InspectionRequest,
    InspectionResult,
    NonFinite,
    Row,
    Sample,
    Sampled,
    Step,
    StepResult,
)
from gpu.text.tokenizer import Tokenizer

CONFIG = ModelConfig(
    model_type="llama", n_layers=1, n_heads=1, n_kv_heads=1, head_dim=4, hidden_size=4,
    intermediate_size=4, vocab_size=256, context=64, norm_eps=1e-5, tie_embeddings=True,
    attention_bias=False, mlp_bias=False, rope=RopeConfig(), eos_ids=(0,), bos_id=None,
    torch_dtype=None,
)  # fmt: skip

LIMITS = RunnerLimits(
    slots=2, context=64, max_rows=16, max_samples=8, n_blocks=8, block_tokens=16, block_bytes=1,
    max_captured_rows=16,
)  # fmt: skip

Script = Callable[[list[int]], int]


class Moved(NamedTuple):
    """Cell of a token that was moved: the position that its key is for, and its id."""

    position: int
    id: int


Cell = tuple[int, ...] | Moved


def arithmetic(ids: list[int]) -> int:
    """Return a token that is never 0 and depends on every id so far."""
    return 1 + (sum((i + 1) * id for i, id in enumerate(ids)) % 255)


class ScriptedRunner:
    """Runner that computes `script` of the ids. A step takes `delay` seconds; step `fail_at` fails.
    `limits`: those that differ from `LIMITS`."""

    def __init__(
        self,
        script: Script = arithmetic,
        *,
        n_slots: int = 2,
        delay: float = 0.0,
        fail_at: int | None = None,
        **limits: Any,
    ) -> None:
        self.config = CONFIG
        limits.setdefault("max_captured_rows", limits.get("max_rows", LIMITS.max_rows))
        self.limits = replace(LIMITS, slots=n_slots, **limits)
        self.device = DeviceInfo("script", "none", "none", "test", True)
        self.memory = MemoryInfo(0, 0, 0)
        self.dispatches_per_token = 1
        self.in_flight = 3
        self.loras = ()
        self.conversion = ""
        self.activations = "f32"
        self.stages = ()
        self.steps: list[Step] = []
        self.closed = False
        self.warmed = self.warmed_interventions = 0
        self.script = script
        self._delay = delay
        self._fail_at = fail_at
        self._go = threading.Event()
        self._go.set()
        self._n_until_held = 0
        self._pending: deque[StepResult] = deque()
        self.copied: list[tuple[int, int]] = []
        # position of a slot's next row, and of the first draft that may be fed again; None: any
        self._next: dict[int, int | None] = {}
        self._drafted: dict[int, int] = {}
        self.tables: dict[int, list[list[int]]] = {}  # of each slot, by group
        self.interventions_set: list[
            tuple[int, int, bytes]
        ] = []  # steps before it, slot, what was set
        self.n_inspected = 0
        self._chosen: dict[int, int] = {}
        # tokens seen by a slot's penalties, and how often its run wrote each
        self.texts: dict[int, tuple[set[int], Counter[int]]] = {}
        self.allowed: dict[int, set[int]] = {}  # tokens that a slot's grammar allows next
        self.greenlists: dict[int, set[int]] = {}  # green tokens of a slot
        # (block, cell): ids up to this one, as keys and values depend on all of them; of a token
        # that was moved there, its position and id
        self.cells: dict[tuple[int, int], Cell] = {}
        self.n_moved = 0
        self.host: dict[int, dict[int, Cell]] = {}  # cells of the blocks by place
        self.n_loaded = 0

    @contextmanager
    def held(self, after: int = 0) -> Iterator[None]:
        """Within the block no step ends but the next `after`: what is asked of the engine there
        comes before its runs go on, however late the caller's thread is. The engine stands still
        meanwhile, so await no answer of it."""
        self._n_until_held = after
        self._go.clear()
        try:
            yield
        finally:
            self._go.set()

    def set_text(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int) -> None:
        ids = tokens.tolist()
        assert all(id < self.config.vocab_size for id in ids)
        self.texts[slot] = (set(ids), Counter(ids[len(ids) - n_written :]))

    def set_grammar_bitmask(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        self.allowed[slot] = ids_of(bitmask)

    def set_greenlist(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        self.greenlists[slot] = ids_of(bitmask)

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int = 0) -> None:
        self.set_text(slot, tokens, n_written)
        self._drafted.pop(slot, None)
        self._next[slot] = None
        self.tables[slot] = [[] for _ in self.limits.windows]

    def set_interventions(self, slot: int, active: ActiveInterventions | None) -> None:
        self.interventions_set.append((len(self.steps), slot, active.digest if active else b""))

    def set_blocks(self, slot: int, blocks: list[int], group: int = 0) -> None:
        tables = self.tables.setdefault(slot, [[] for _ in self.limits.windows])
        before = tables[group]
        if self.n_moved and before[: len(blocks)] != blocks[: len(before)]:  # its tokens moved
            self._next[slot] = None
            self._drafted.pop(slot, None)
        tables[group] = list(blocks)

    def copy_block(self, source: int, destination: int) -> None:
        self.copied.append((source, destination))
        self._fill(destination, self._held(source))

    def store_block(self, block: int, place: int) -> None:
        assert place < self.limits.n_host_blocks
        self.host[place] = self._held(block)

    def load_block(self, place: int, block: int) -> None:
        self.n_loaded += 1
        self._fill(block, self.host[place])

    def shift_kv(self, moves: Sequence[TokenMove], group: int = 0) -> None:
        found = {move.destination: self.cells[divmod(move.source, 16)] for move in moves}
        assert len(found) == len(moves), "two tokens are moved to one place"
        assert found.keys().isdisjoint(m.source for m in moves), "a source is overwritten"
        for move in moves:
            held = found[move.destination]
            position = held.position if isinstance(held, Moved) else len(held) - 1
            id = held.id if isinstance(held, Moved) else held[-1]
            self.cells[divmod(move.destination, 16)] = Moved(position + move.shift, id)
        self.n_moved += len(moves)

    def _held(self, block: int) -> dict[int, Cell]:
        """Return the cells of a block that were written."""
        return {c: self.cells[block, c] for c in range(16) if (block, c) in self.cells}

    def _fill(self, block: int, cells: dict[int, Cell]) -> None:
        for cell in range(16):
            self.cells.pop((block, cell), None)
            if cell in cells:
                self.cells[block, cell] = cells[cell]

    def submit(self, step: Step) -> None:
        assert len(self._pending) < self.in_flight
        if self._fail_at is not None and len(self.steps) >= self._fail_at:
            raise RuntimeError("scripted failure")
        assert len(step.rows) <= self.limits.max_rows
        assert len(step.samples) <= self.limits.max_samples
        self.steps.append(step)
        after: list[list[int]] = []
        for row in step.rows:
            if row.slot != self.limits.inspection_slot:  # where any row may be computed again
                after_last = self._after_moved(row.slot, row.position)
                first = self._drafted.get(row.slot, after_last)
                in_order = after_last is None or first <= row.position <= after_last
                assert in_order or self._repeats_last(row), f"{row} is out of order"
                self._next[row.slot] = row.position + 1
            token = self._chosen[row.slot] if row.token == FROM_GPU else row.token
            after.append(self._feed(row.slot, row.position, token))
        samples = []
        for sample in step.samples:
            id = self.script(after[sample.row])
            if sample.n_allowed:
                allowed = self.allowed[sample.slot]
                assert len(allowed) == sample.n_allowed, "another number of tokens is allowed"
                id = id if id in allowed else max(allowed)
            if sample.repetition_penalty != 1 or sample.frequency_penalty != 0:
                seen, written = self.texts[sample.slot]
                drafts, ids = step.drafts_before(sample), after[sample.row]
                assert seen.union(drafts) == set(ids), "the penalty is for other tokens"
                counts = Counter(ids[max(0, len(ids) - sample.index) :])
                assert written + Counter(drafts) == counts, "other tokens are counted"
            self._note(step, sample, id)
            samples.append(sampled(id))
        self._pending.append(StepResult(tuple(samples)))

    def _repeats_last(self, row: Row) -> bool:
        """Return whether a row is the last one of its slot again, as it was."""
        cell = (self.tables[row.slot][0][row.position // 16], row.position % 16)
        held = self.cells.get(cell)
        same = isinstance(held, tuple) and not isinstance(held, Moved) and held[-1] == row.token
        return same and row.position + 1 == self._next[row.slot]

    def _note(self, step: Step, sample: Sample, id: int) -> None:
        """Note what was chosen. Of rows that verify drafts, all after the first may be rejected."""
        if sample.verifies:
            self._chosen.pop(sample.slot, None)
            self._drafted[sample.slot] = step.rows[sample.row - sample.n_drafts].position + 1
        else:
            self._drafted.pop(sample.slot, None)
            self._chosen[sample.slot] = id
            seen, written = self.texts.setdefault(sample.slot, (set(), Counter()))
            seen.add(id)
            written[id] += 1

    def _feed(self, slot: int, position: int, token: int) -> list[int]:
        """Write a token into its cell of each group; return all ids up to it, as the blocks of the
        slot's first group hold them."""
        tables = self.tables[slot]
        assert position < 16 * len(tables[0]), "no block for this position"
        before = self._text(tables[0], position - 1) if position else ()
        ids = (*before, token)
        assert len(ids) == position + 1, f"position {position} after {len(ids) - 1} ids"
        for group, blocks in enumerate(tables):
            self._expect_before(slot, group, position, before)
            self.cells[blocks[position // 16], position % 16] = ids
        return list(ids)

    def _expect_before(self, slot: int, group: int, position: int, before: tuple[int, ...]) -> None:
        """Check that the cells that a row reads in the layers of a group hold the text `before`."""
        window, blocks = self.limits.windows[group], self.tables[slot][group]
        for p in range(0 if window is None else max(0, position + 1 - window), position):
            cell = (blocks[p // 16], p % 16)
            held = self.cells.get(cell)
            if isinstance(held, Moved) and held == Moved(p, before[p]):
                held = self.cells[cell] = before[: p + 1]
            assert held == before[: p + 1], f"position {p} of slot {slot} holds another text"

    def _text(self, blocks: list[int], position: int) -> tuple[int, ...]:
        """Return the ids up to `position`. A token that was moved there gets those before it."""
        cell = (blocks[position // 16], position % 16)
        held = self.cells[cell]
        if isinstance(held, Moved):
            assert held.position == position, f"a key for {held.position} is at {position}"
            before = self._text(blocks, position - 1) if position else ()
            held = self.cells[cell] = (*before, held.id)
        return held

    def _after_moved(self, slot: int, position: int) -> int | None:
        """Return the position of a slot's next row, behind the tokens up to `position` that were
        moved there."""
        at, blocks = self._next[slot], self.tables[slot][0]
        while at is not None and at < position:
            if not isinstance(self.cells.get((blocks[at // 16], at % 16)), Moved):
                break
            at += 1
        return at

    def collect(self) -> StepResult:
        if not self._go.is_set():
            self._n_until_held -= 1
            assert self._n_until_held >= 0 or self._go.wait(60), "the test did not let it go on"
        time.sleep(self._delay)
        return self._pending.popleft()

    def run_checked(self, step: Step, like: Step) -> tuple[StepResult, NonFinite | None]:
        """Compute rows of `like` again as they were."""
        assert not self._pending, "collect the steps in flight first"
        assert all(sample.verifies for sample in step.samples)
        assert {(row.slot, row.position) for row in step.rows} <= {
            (row.slot, row.position) for row in like.rows
        }
        for row in reversed(step.rows):
            self._next[row.slot] = row.position
            self._drafted.pop(row.slot, None)
        self.submit(step)
        return self.collect(), None

    def logits(self, step: Step) -> Floats:
        """Return 1 for the scripted token after the ids in the slot's blocks, 0 for all others."""
        assert not self._pending, "collect the steps in flight first"
        after = [self._feed(row.slot, row.position, row.token) for row in step.rows]
        logits = np.zeros((len(step.samples), self.config.vocab_size), np.float32)
        for i, sample in enumerate(step.samples):
            logits[i, self.script(after[sample.row])] = 1
        return logits

    def inspect(self, step: Step, request: InspectionRequest) -> InspectionResult:
        """Answer with uniform attention; every state holds the scripted token and the row's id."""
        request.validate(step, self.limits.context)
        time.sleep(self._delay)
        self.n_inspected += 1
        attention = lens = states = None
        n_layers, n_heads = self.config.n_layers, self.config.n_heads
        lines = self.logits(step)
        if request.keys is not None:
            first, n = request.keys
            keys = np.arange(first, first + n)
            seen = np.array([keys <= row.position for row in step.rows])
            shares = seen / np.array([[row.position + 1] for row in step.rows])
            shape = (len(step.rows), n_layers, n_heads, len(keys))
            attention = np.broadcast_to(shares[:, None, None], shape).astype(np.float32)
        if request.lens:
            lens = np.repeat(lines[:1], n_layers + 1, axis=0)
        if request.states:
            ids = np.array([row.token for row in step.rows], np.float32)
            shape = (len(step.rows), n_layers + 1, self.config.hidden_size)
            states = np.broadcast_to(ids[:, None, None], shape).copy()
        last_hidden = None
        if request.last_hidden:
            ids = np.array([row.token for row in step.rows], np.float32)
            last_hidden = np.repeat(ids[:, None], self.config.hidden_size, axis=1)
        return InspectionResult(attention, lens, states, None, last_hidden)

    def warm_up(self, *, interventions: bool = False) -> Iterator[None]:
        for _ in range(3):
            self.warmed += 1
            self.warmed_interventions += interventions
            yield

    def close(self) -> None:
        self.closed = True


def ids_of(bitmask: npt.NDArray[np.uint32]) -> set[int]:
    """Return the ids whose bits are set."""
    return set(np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")).tolist())


def sampled(id: int) -> Sampled:
    return Sampled(id, -1.0, 0.5, 0, 1, 0.25, (1.0, 0.0, 0.0, 0.0), (Candidate(id, 0.5, 1.0, ""),))


def expected(prompt: list[int], n: int, script: Script = arithmetic) -> list[int]:
    """Return the ids that a run must write."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(script(ids))
    return ids[len(prompt) :]


def byte_tokenizer(folder: Path) -> Tokenizer:
    """Write to `folder` and load a tokenizer in which byte b is token b and 0 is EOS."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    byte_of = {c: b for b, c in _byte_alphabet().items()}
    vocab = {c: byte_of[c] for c in alphabet}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


def _byte_alphabet() -> dict[int, str]:
    """Return GPT-2's printable characters for bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(moved)}
