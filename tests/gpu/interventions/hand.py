"""Engine advanced by hand, one step at a time, whose blocks are checked against a model that sees
every cell."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpu.engine.draft_model import DraftModel
from gpu.engine.kv_copies import submit_copies
from gpu.engine.scheduler import Scheduler
from gpu.engine.sequence import Sequence
from gpu.engine.step_builder import Scheduled
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.prefix_cache import BlockHashes
from gpu.kv.prefix_match import host_key
from gpu.request import Request
from gpu.runner import Runner
from gpu.sampling_params import SamplingParams
from gpu.speculative.drafting import NgramDrafting
from gpu.step import Row, Sample, Step
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, expected
from tests.gpu.kv.block_checks import check_matches, check_owners


class ManualEngine:
    """Runs over a scripted runner; every text is checked at its end. `ngrams`: draft what followed
    the same tokens earlier; `draft`: a draft model's runner."""

    def __init__(
        self,
        runner: ScriptedRunner,
        tokenizer: Tokenizer,
        *,
        prefix_cache: bool = True,
        ngrams: bool = False,
        draft: Runner | None = None,
    ) -> None:
        self.runner = runner
        self.draft_model = DraftModel(draft, runner.config.vocab_size) if draft else None
        drafting: Any = NgramDrafting if ngrams else None
        self.scheduler = Scheduler(
            runner.limits,
            prefix_cache=prefix_cache,
            make_drafting=self.draft_model.drafting if self.draft_model else drafting,
        )
        self.in_flight: deque[Scheduled] = deque()
        self.texts: list[list[int]] = [[1] * 40]
        self._tokenizer = tokenizer

    def start(
        self, prompt: list[int], n: int, *, frequency_penalty: float = 0.0, **fields: Any
    ) -> Sequence:
        """Start a run. `ScriptedRunner` checks before each penalised sample what it counts."""
        params = SamplingParams(max_tokens=n, seed=0, frequency_penalty=frequency_penalty)
        request = Request(prompt, params, **fields)
        sequence = Sequence(request, self._tokenizer, (), self.runner.limits.context)
        self.scheduler.add(sequence)
        return sequence

    def advance(self) -> bool:
        """Admit runs and submit a step; return False if there was none."""
        for sequence in self.scheduler.admit():
            ids = np.array(sequence.ids, np.uint32)
            self.runner.begin_slot(sequence.slot, ids, sequence.text.n_counted)
        self.settle()
        if self.draft_model is not None:
            self.draft_model.advance(self.scheduler)
        scheduled = self.scheduler.next_step()
        self.settle()
        if scheduled is None:
            return False
        for slot, tokens, n_written in scheduled.slot_texts:
            self.runner.set_text(slot, np.array(tokens, np.uint32), n_written)
        self.runner.submit(scheduled.step)
        self.in_flight.append(scheduled)
        return True

    def settle(self) -> None:
        kv = self.scheduler.kv
        submit_copies(self.runner, kv.copies)
        kv.copies.clear()
        for sequence in kv.changed_tables:
            for group, table in enumerate(sequence.tables):
                self.runner.set_blocks(sequence.slot, table.blocks, group)
        kv.changed_tables.clear()

    def collect(self) -> None:
        scheduled, result = self.in_flight.popleft(), self.runner.collect()
        for sequence in scheduled.read(result):
            self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        self.scheduler.release(sequence)
        self.texts.append(sequence.ids)
        written = sequence.ids[len(sequence.prompt) :]
        assert written == expected(sequence.prompt, len(written), self.runner.script)

    def cancel(self, sequence: Sequence) -> None:
        sequence.cancel()
        self.release(sequence)

    def resize(self, sequence: Sequence, n: int) -> None:
        """Change max_tokens."""
        sequence.update({"max_tokens": n}, None)
        if sequence.finished:
            self.release(sequence)

    def run(self, prompt: list[int], n: int, **fields: Any) -> Sequence:
        """Advance all runs until these have ended."""
        sequence = self.start(prompt, n, **fields)
        self.finish(sequence)
        return sequence

    def finish(self, *sequences: Sequence) -> None:
        self.until(lambda: all(sequence.finished for sequence in sequences))
        while self.in_flight:
            self.collect()

    def until(self, condition: Callable[[], bool]) -> None:
        """Submit ahead and read, as the engine does."""
        while not condition():
            if len(self.in_flight) == self.runner.in_flight or not self.advance():
                self.collect()

    def recompute(self, ids: list[int], first: int, keep: bool) -> None:
        """Compute ids from `first` on in borrowed blocks, if they can be had."""
        while self.in_flight:
            self.collect()
        borrowed = self.scheduler.borrow(ids, first)
        if borrowed is None:
            assert self.scheduler.kv.most_blocks(len(ids)) > self.scheduler.kv.pool.n_free
            return
        assert borrowed.n_reused <= first
        submit_copies(self.runner, borrowed.copies)
        for group, blocks in enumerate(borrowed.tables):
            self.runner.set_blocks(borrowed.slot, blocks, group)
        self.check_owners(borrowed.owned)
        for i in range(borrowed.n_reused, len(ids)):
            sample = Sample(0, borrowed.slot, 0, 0, 0.0, 0, 1.0, 0.0, 1.0)
            logits = self.runner.logits(Step((Row(borrowed.slot, i, ids[i]),), (sample,)))
            assert int(logits[0].argmax()) == self.runner.script(ids[: i + 1])
        self.scheduler.give_back(borrowed, len(ids) if keep else 0)

    # ---- the model ---------------------------------------------------------------------------

    def check_owners(self, borrowed: Iterable[list[int]] = ()) -> None:
        scheduler = self.scheduler
        check_owners(scheduler.kv, scheduler.active, scheduler.waiting, borrowed)

    def texts_in_host(self) -> set[tuple[int, tuple[int, ...]]]:
        """Return group and whole text up to the end of each block in host memory."""
        host = self.scheduler.kv.pool.host
        texts = {cells[BLOCK_TOKENS - 1] for cells in self.runner.host.values()}
        assert len(host) == len(self.runner.host) <= host.n_places
        found, places = set(), set()
        for text in texts:
            block_hash = BlockHashes().hash_of(list(text), len(text) // BLOCK_TOKENS)
            for group in range(len(self.runner.limits.windows)):
                if (key := host_key(group, block_hash)) in host:
                    assert self.runner.host[host.place(key)][BLOCK_TOKENS - 1] == text
                    found.add((group, text))
                    places.add(host.place(key))
        assert len(places) == len(host), "a block in host memory has no name"
        return found

    def check(self, draw: random.Random) -> None:
        self.check_owners()
        text = branch(draw, self.texts)
        pool, most = self.scheduler.kv.pool, draw.randint(0, len(text))
        check_matches(pool, self.runner.cells, tuple(text), most, self.texts_in_host())


def branch(draw: random.Random, texts: list[list[int]]) -> list[int]:
    """Return a prefix of an earlier text and a few tokens of few kinds."""
    text = draw.choice(texts)
    kept = text[: draw.randint(0, min(40, len(text)))]
    return kept + [draw.randint(1, 2) for _ in range(draw.randint(1, 12))]
