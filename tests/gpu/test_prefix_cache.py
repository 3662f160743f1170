"""KV blocks by what they hold and who owns them, held to a model that looks at every cell."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from gpu.block_pool import BlockPool
from gpu.blocks import BLOCK_TOKENS, blocks_for
from gpu.errors import InvalidRequest
from gpu.prefix_cache import Chain, Match, PrefixCache
from gpu.sampling import SamplingParams
from gpu.scheduler import Scheduled, Scheduler
from gpu.sequence import Sequence
from gpu.step import Row, Sample, Step
from gpu.tokenizer import Tokenizer
from tests.gpu.scripted_runner import ScriptedRunner, byte_tokenizer, expected

TEXT = [1 + i % 7 for i in range(100)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


# ---- names and matches -----------------------------------------------------------------------


def filled(texts: dict[int, list[int]]) -> PrefixCache:
    """Blocks 0, 1, … of each text, numbered from its key on."""
    cache = PrefixCache()
    for block, ids in texts.items():
        chain = Chain()
        for i in range(blocks_for(len(ids))):
            n = min(BLOCK_TOKENS, len(ids) - i * BLOCK_TOKENS)
            cache.enter(block + i, ids, i * BLOCK_TOKENS, n, chain)
    return cache


@pytest.mark.parametrize(
    ("most", "match"),
    [
        (0, Match()),
        (1, Match((), 10, 1)),
        (15, Match((), 10, 15)),
        (16, Match((10,), None, 16)),
        (17, Match((10,), 11, 17)),
        (40, Match((10, 11), 12, 40)),
        (41, Match((10, 11), 12, 40)),
        (99, Match((10, 11), 12, 40)),
    ],
)
def test_finds_full_blocks_and_then_the_beginning_of_one(most: int, match: Match) -> None:
    assert filled({10: TEXT[:40]}).find(TEXT, most, Chain()) == match


def test_a_text_that_parts_inside_a_block_finds_the_longest_of_them() -> None:
    cache = filled({0: TEXT[:32], 2: [*TEXT[:20], 99, 98]})
    assert cache.find([*TEXT[:20], 50], 21, Chain()).n_tokens == 20
    assert cache.find([*TEXT[:20], 99, 50], 22, Chain()) == Match((0,), 3, 21)
    assert cache.find([*TEXT[:24], 50], 25, Chain()) == Match((0,), 1, 24)


def test_the_same_tokens_after_another_text_are_not_the_same() -> None:
    """Keys and values depend on all that came before."""
    other = [9] * BLOCK_TOKENS + TEXT[BLOCK_TOKENS:32]
    cache = filled({0: TEXT[:32]})
    assert cache.find(other, 32, Chain()) == Match()
    names = [Chain().name(ids, 2) for ids in (TEXT, other)]
    assert names[0] != names[1]
    assert Chain().name(TEXT[16:], 1) != Chain().name(TEXT, 2)


def test_a_chain_names_a_growing_text_as_a_new_one_would() -> None:
    chain, ids = Chain(), TEXT[:20]
    first = chain.name(ids, 1)
    ids += TEXT[20:]
    assert chain.name(ids, 6) == Chain().name(TEXT, 6)
    assert chain.name(ids, 1) == first


def test_a_block_that_holds_more_takes_the_place_of_one_that_holds_less() -> None:
    cache = filled({0: TEXT[:8]})
    assert cache.enter(1, TEXT, 0, 5, Chain()) == []
    assert 1 not in cache
    assert cache.enter(2, TEXT, 0, 12, Chain()) == [0]
    assert cache.find(TEXT, 99, Chain()) == Match((), 2, 12)
    assert cache.forget(2)
    assert not cache.forget(2)
    assert cache.find(TEXT, 99, Chain()) == Match()


# ---- owners and eviction ---------------------------------------------------------------------


def kept(pool: BlockPool, ids: list[int]) -> list[int]:
    """Give back blocks that hold `ids`."""
    blocks = pool.take(blocks_for(len(ids)))
    assert blocks is not None
    pool.enter(ids, len(ids), blocks, Chain())
    pool.give_back(blocks)
    return blocks


def test_blank_blocks_go_first_then_the_least_recently_used_from_its_end() -> None:
    pool = BlockPool(7)
    old, new = kept(pool, [1] * 48), kept(pool, [2] * 48)
    taken = pool.take(1)
    assert taken is not None
    assert taken[0] not in (*old, *new)
    assert pool.n_evicted == 0
    found = pool.find([1] * 48, 20, Chain())
    pool.share(found)
    pool.give_back(list(found.blocks))
    assert found == Match((old[0],), old[1], 20)
    assert pool.take(6) == [old[2], new[2], new[1], new[0], old[1], old[0]]
    assert pool.n_evicted == 6
    assert pool.find([1] * 48, 48, Chain()) == pool.find([2] * 48, 48, Chain()) == Match()


def test_a_free_block_that_another_outdoes_is_blank() -> None:
    pool = BlockPool(3)
    kept(pool, [9] * 16)
    short = kept(pool, TEXT[:5])
    kept(pool, TEXT[:9])
    assert pool.take(1) == short
    assert pool.n_evicted == 0


def test_shared_blocks_are_free_when_the_last_owner_gives_them_back() -> None:
    pool = BlockPool(3)
    kept(pool, TEXT[:32])
    found = pool.find(TEXT, 32, Chain())
    assert pool.n_unowned(found.blocks) == 2
    pool.share(found)
    pool.share(found)
    assert pool.n_unowned(found.blocks) == 0
    for _ in range(2):
        assert pool.take(2) is None
        pool.give_back(list(found.blocks))
    assert pool.take(3) is not None
    with pytest.raises(AssertionError, match="no owner"):
        pool.give_back([0, 0])


# ---- whole runs, by hand ---------------------------------------------------------------------


class Hand:
    """Does what the engine's thread does, one thing at a time; every run's text is checked."""

    def __init__(
        self, runner: ScriptedRunner, tokenizer: Tokenizer, *, prefix_cache: bool = True
    ) -> None:
        self.runner = runner
        self.scheduler = Scheduler(runner.limits, prefix_cache=prefix_cache)
        self.in_flight: deque[Scheduled] = deque()
        self.texts: list[list[int]] = [[1] * 40]
        self._tokenizer = tokenizer

    def start(self, prompt: list[int], n: int) -> Sequence:
        params = SamplingParams(max_tokens=n, seed=0)
        sequence = Sequence(prompt, params, self._tokenizer, (), self.runner.limits.context)
        self.scheduler.add(sequence)
        return sequence

    def advance(self) -> bool:
        """Admit, and submit a step; False: there was none."""
        for sequence in self.scheduler.admit():
            self.runner.begin_slot(sequence.slot, np.array(sequence.prompt, np.uint32))
        self.settle()
        scheduled = self.scheduler.next_step()
        self.settle()
        if scheduled is None:
            return False
        self.runner.submit(scheduled.step)
        self.in_flight.append(scheduled)
        return True

    def settle(self) -> None:
        kv = self.scheduler.kv
        for source, destination in kv.copies:
            self.runner.copy_block(source, destination)
        kv.copies.clear()
        for sequence in kv.grown:
            self.runner.set_blocks(sequence.slot, sequence.blocks)
        kv.grown.clear()

    def collect(self) -> None:
        scheduled, result = self.in_flight.popleft(), self.runner.collect()
        pairs = zip(scheduled.samplers, scheduled.rows, result.samples, strict=True)
        for sequence, row, sampled in pairs:
            if not sequence.finished:
                sequence.wrote(sampled, row, result)
                if sequence.finished:
                    self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        self.scheduler.release(sequence)
        self.texts.append(sequence.ids)
        written = sequence.ids[len(sequence.prompt) :]
        assert written == expected(sequence.prompt, len(written))

    def cancel(self, sequence: Sequence) -> None:
        sequence.cancel()
        self.release(sequence)

    def resize(self, sequence: Sequence, n: int) -> None:
        """Another max_tokens, unless it is refused."""
        try:
            self.scheduler.check_max_tokens(sequence, n)
        except InvalidRequest:
            return
        sequence.update({"max_tokens": n}, None)
        if sequence.finished:
            self.release(sequence)

    def run(self, prompt: list[int], n: int) -> Sequence:
        """To the end, with all others."""
        sequence = self.start(prompt, n)
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

    def look(self, ids: list[int], first: int, keep: bool) -> None:
        """Compute ids from `first` on in borrowed blocks, if they can be had."""
        while self.in_flight:
            self.collect()
        borrowed = self.scheduler.borrow(ids, first)
        if borrowed is None:
            assert blocks_for(len(ids)) > self.scheduler.kv.pool.n_free
            return
        assert borrowed.n_reused <= first
        for source, destination in borrowed.copies:
            self.runner.copy_block(source, destination)
        self.runner.set_blocks(borrowed.slot, borrowed.blocks)
        self.check_owners([borrowed.blocks])
        for i in range(borrowed.n_reused, len(ids)):
            sample = Sample(0, borrowed.slot, 0, 0, 0.0, 0, 1.0, 0.0, 1.0)
            logits = self.runner.logits(Step((Row(borrowed.slot, i, ids[i]),), (sample,)))
            assert int(logits[0].argmax()) == expected(ids[: i + 1], 1)[0]
        self.scheduler.return_(borrowed, len(ids) if keep else 0)

    # ---- the model ---------------------------------------------------------------------------

    def check_owners(self, borrowed: Iterable[list[int]] = ()) -> None:
        """Every table counts once for each of its blocks; what may be written has one owner; what
        was promised is free."""
        kv = self.scheduler.kv
        tables = [sequence.blocks for sequence in self.scheduler.active]
        named = [block for table in (*tables, *borrowed) for block in table]
        assert kv.pool.owners == [named.count(block) for block in range(kv.pool.n_blocks)]
        assert kv.pool.n_free == kv.pool.owners.count(0)
        if not borrowed:
            missing = [max(0, s.max_blocks - len(s.blocks)) for s in self.scheduler.active]
            assert sum(missing) <= kv.pool.n_free
        for sequence in self.scheduler.active:
            for block in sequence.blocks[sequence.n_computed // BLOCK_TOKENS :]:
                assert kv.pool.owners[block] == 1, f"block {block} is written and shared"

    def found(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Block: position of its first token, and the whole text that its cells hold."""
        found = {}
        for block in range(self.runner.limits.n_blocks):
            if (held := self.scheduler.kv.pool.held(block)) is not None:
                text = self.runner.cells[block, len(held.ids) - 1]
                assert text[held.first :] == held.ids
                assert held.parent == Chain().name(list(text), held.first // BLOCK_TOKENS)
                found[block] = held.first, text
        return found

    def check_matches(self, text: list[int], most: int) -> None:
        """The longest beginning, by looking at every block that is found."""
        found = self.found()
        n_full = 0
        full = {text for first, text in found.values() if len(text) == first + BLOCK_TOKENS}
        while (n_full + 1) * BLOCK_TOKENS <= most and (
            tuple(text[: (n_full + 1) * BLOCK_TOKENS]) in full
        ):
            n_full += 1
        start = n_full * BLOCK_TOKENS
        longest = start
        for first, held in found.values():
            if first == start and held[:start] == tuple(text[:start]):
                n = start
                while n < min(most, len(held), start + BLOCK_TOKENS) and held[n] == text[n]:
                    n += 1
                longest = max(longest, n)
        match = self.scheduler.kv.pool.find(text, most, Chain())
        assert match.n_tokens == longest
        assert len(match.blocks) == n_full

    def check(self, draw: random.Random) -> None:
        self.check_owners()
        text = branch(draw, self.texts)
        self.check_matches(text, draw.randint(0, len(text)))


def branch(draw: random.Random, texts: list[list[int]]) -> list[int]:
    """An earlier text, cut anywhere, and a few tokens of few kinds."""
    text = draw.choice(texts)
    kept = text[: draw.randint(0, min(40, len(text)))]
    return kept + [draw.randint(1, 2) for _ in range(draw.randint(1, 12))]


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Callable[..., Hand]:
    def make(*, prefix_cache: bool = True, **options: int) -> Hand:
        return Hand(ScriptedRunner(**options), tokenizer, prefix_cache=prefix_cache)  # type: ignore

    return make


def n_rows(hand: Hand) -> int:
    return sum(len(step.rows) for step in hand.runner.steps)


def test_all_but_the_last_token_of_a_known_prompt_is_found(hand: Callable[..., Hand]) -> None:
    for n_prompt in (1, 2, 15, 16, 17, 31, 32, 33, 40):
        one = hand()
        first = one.run(TEXT[:n_prompt], 5)
        before = n_rows(one)
        again = one.run(TEXT[:n_prompt], 5)
        assert (first.n_reused, again.n_reused) == (0, n_prompt - 1)
        assert n_rows(one) - before == 1 + 4
        assert again.ids == first.ids


def test_the_next_turn_begins_with_all_that_was_written(hand: Callable[..., Hand]) -> None:
    one = hand()
    first = one.run(TEXT[:20], 20)
    second = one.run([*first.ids, 7, 7, 7], 5)
    assert second.n_reused == 39, "the last token written was never fed"
    assert len(one.runner.copied) == 1


def test_an_edited_turn_is_computed_from_the_edit_on(hand: Callable[..., Hand]) -> None:
    one = hand()
    first = one.run(TEXT[:20], 20)
    edited = [*first.ids[:25], 250, *first.ids[26:]]
    assert one.run(edited, 5).n_reused == 25
    assert one.run(edited, 5).n_reused == len(edited) - 1
    assert one.run(first.ids, 5).n_reused == 39, "the branch left the first text as it was"


def test_tokens_past_a_stop_are_not_found(hand: Callable[..., Hand]) -> None:
    """They were computed, as steps are submitted ahead, but the text does not go on with them."""
    one = hand()
    sequence = one.start(TEXT[:20], 30)
    one.until(lambda: sequence.n_written == 2)
    while len(one.in_flight) < one.runner.in_flight:
        one.advance()
    one.cancel(sequence)
    assert (sequence.n_submitted, sequence.n_computed) == (5, 22)
    longer = [*TEXT[:20], *expected(TEXT[:20], 8)]
    assert one.run(longer, 5).n_reused == 22


def test_runs_that_start_together_compute_their_common_prompt_once(
    hand: Callable[..., Hand],
) -> None:
    """The second is admitted before the first has a row; it looks again before its own first."""
    one = hand(n_slots=3, n_blocks=12)
    runs = [one.start(TEXT[:40], 8) for _ in range(3)]
    one.finish(*runs)
    assert [run.n_reused for run in runs] == [0, 39, 39]
    assert n_rows(one) == 40 + 2 + 3 * 7
    one.check_owners()


def test_a_run_that_shares_outlives_the_one_it_shares_with(hand: Callable[..., Hand]) -> None:
    one = hand()
    first = one.start(TEXT[:40], 20)
    one.until(lambda: first.n_written == 3)
    second = one.start(TEXT[:36], 20)
    one.advance()
    assert second.n_reused == 35
    assert one.scheduler.kv.pool.owners.count(2) == 2
    one.cancel(first)
    one.check_owners()
    one.finish(second)
    assert set(one.scheduler.kv_state().owners) == {0}


def test_what_is_shared_is_promised_once(hand: Callable[..., Hand]) -> None:
    """Two runs of 4 blocks in a cache of 6: the second fits because it shares 2."""
    one = hand(n_slots=2, n_blocks=6)
    first = one.start(TEXT[:40], 20)
    one.until(lambda: not first.prefilling)
    second = one.start(TEXT[:40], 20)
    one.until(lambda: second.n_reused > 0)
    assert one.scheduler.active == [first, second]
    one.check_owners()
    one.finish(first, second)


def test_a_run_cut_short_still_counts_the_blocks_it_took_ahead(hand: Callable[..., Hand]) -> None:
    one = hand(n_slots=2, n_blocks=3)
    first = one.start(TEXT[:15], 30)
    while len(first.blocks) < 2:
        one.advance()
    one.resize(first, 1)
    second = one.start([9] * 20, 5)
    one.scheduler.admit()
    assert one.scheduler.active == [first]
    one.settle()
    one.finish(first, second)


def test_a_full_cache_forgets_what_was_used_least(hand: Callable[..., Hand]) -> None:
    one = hand(n_blocks=8)
    texts = [[i] * 40 for i in (1, 2, 3)]
    for text in texts:
        one.run(text, 4)
    assert one.scheduler.kv.pool.n_evicted == 1
    assert one.run(texts[0], 4).n_reused == 32, "the end of the oldest text went first"
    assert one.run(texts[1], 4).n_reused == 32
    assert one.run(texts[0], 4).n_reused == 39


def test_the_last_free_block_may_be_the_one_to_copy(hand: Callable[..., Hand]) -> None:
    one = hand(n_slots=1, n_blocks=4)
    one.run(TEXT[:50], 13)
    again = one.run([*TEXT[:50], 250, 250], 11)
    assert again.n_reused == 50
    assert one.runner.copied == []
    assert again.blocks == []


def test_without_the_cache_every_prompt_is_computed_whole(hand: Callable[..., Hand]) -> None:
    one = hand(prefix_cache=False)
    texts = [one.run(TEXT[:40], 8) for _ in range(2)]
    assert [text.n_reused for text in texts] == [0, 0]
    assert texts[0].ids == texts[1].ids
    state = one.scheduler.kv_state()
    assert (state.prompt_tokens, state.reused_tokens, state.copies) == (80, 0, 0)


def test_a_prompt_waits_with_its_last_token_for_a_step_that_can_sample_it(
    hand: Callable[..., Hand],
) -> None:
    """More runs than a step has samples: nothing is fed twice, and every text is right."""
    one = hand(n_slots=3, n_blocks=12, max_samples=2)
    runs = [one.start([*TEXT[: 10 + i], 100 + i], 12) for i in range(3)]
    one.finish(*runs)
    assert [len(run.ids) - len(run.prompt) for run in runs] == [12, 12, 12]


def test_the_state_tells_what_every_block_holds(hand: Callable[..., Hand]) -> None:
    one = hand(n_slots=2, n_blocks=8)
    one.run(TEXT[:36], 5)
    run = one.start([*TEXT[:34], 250], 20)
    one.advance()
    state = one.scheduler.kv_state()
    assert [state.owners[block] for block in run.blocks] == [1, 1, 1]
    assert [state.first[block] for block in run.blocks] == [0, 16, 32]
    assert [state.n_found[block] for block in run.blocks] == [16, 16, 3]
    free = [b for b in range(8) if not state.owners[b] and state.n_found[b]]
    assert [(state.first[b], state.n_found[b]) for b in free] == [(32, 8)]
    assert state.used[run.blocks[0]] > state.used[free[0]] > 0
    assert sorted(state.first).count(-1) == 4
    assert (state.prompt_tokens, state.reused_tokens) == (36 + 35, 34)
    assert (state.copies, state.evictions) == (1, 0)


def test_inspections_have_a_slot_while_all_others_are_taken(hand: Callable[..., Hand]) -> None:
    one = hand(n_slots=1, n_blocks=6)
    run = one.start(TEXT[:20], 40)
    one.until(lambda: run.n_written == 20)
    one.look(run.ids, len(run.ids) - 1, keep=False)
    one.look([9] * 30, 0, keep=True)
    one.check_owners()
    one.finish(run)
    assert one.run([9] * 30, 3).n_reused == 29


@pytest.mark.parametrize("n_blocks", [4, 6, 9, 16, 40])
@pytest.mark.parametrize("seed", range(8))
def test_any_interleaving_writes_what_each_run_would_alone(
    n_blocks: int, seed: int, tokenizer: Tokenizer
) -> None:
    """Runs start, branch off, are cancelled and change their length while others go on; tokens are
    computed again in borrowed blocks. The runner reads every text from the blocks it is in."""
    draw = random.Random(f"{seed} {n_blocks}")
    hand = Hand(ScriptedRunner(n_slots=3, n_blocks=n_blocks), tokenizer)
    scheduler = hand.scheduler
    for _ in range(250):
        action, runs = draw.random(), [*scheduler.active, *scheduler.waiting]
        if action < 0.12 and len(scheduler.waiting) < 3:
            hand.start(branch(draw, hand.texts), draw.randint(1, 30))
        elif action < 0.16 and runs:
            hand.cancel(draw.choice(runs))
        elif action < 0.18 and runs:
            hand.resize(draw.choice(runs), draw.randint(1, 40))
        elif action < 0.22:
            ids = branch(draw, hand.texts)
            hand.look(ids, draw.randint(0, len(ids) - 1), draw.random() < 0.5)
        elif action < 0.24:
            assert max(scheduler.kv_state().n_found) <= BLOCK_TOKENS
        elif len(hand.in_flight) < hand.runner.in_flight and draw.random() < 0.6:
            hand.advance()
        elif hand.in_flight:
            hand.collect()
        hand.check(draw)
    runs = [*scheduler.active, *scheduler.waiting]
    for sequence in runs[seed % 2 :]:
        hand.cancel(sequence)
    hand.finish(*runs)
    state = scheduler.kv_state()
    assert set(state.owners) == {0}
    assert scheduler.kv.pool.n_free == n_blocks
    assert scheduler.kv.pool.take(n_blocks) is not None
    assert state.reused_tokens > 0
    assert state.copies > 0
