"""Faults in the bookkeeping of KV blocks that show only after operations in a certain order."""

from tests.mutants.mutant import Mutant

MANAGER = "gpu/engine/kv_manager.py"
TABLE = "gpu/kv/block_table.py"
POOL = "gpu/kv/block_pool.py"
PREFIX = "gpu/kv/prefix_cache.py"
SEQUENCE = "gpu/engine/sequence.py"
MACHINE_TEST = ("tests/gpu/engine/test_kv_machine.py",)

MUTANTS = (
    Mutant(
        "blocks-match-again",
        "blocks that a second look at the cache replaces are never free again",
        MANAGER,
        "            self._free_all(sequence)\n            self._attach(sequence, match)\n",
        "            self._attach(sequence, match)\n",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-borrow",
        "a question counts the free blocks that it found twice",
        MANAGER,
        "if needed <= self.pool.n_free_beside(match):",
        "if needed <= self.pool.n_free:",
        ("tests/gpu/engine/test_kv_manager.py",),
    ),
    Mutant(
        "blocks-give-back",
        "tokens of a borrowed block are found that were never computed",
        MANAGER,
        "self.pool.insert(borrowed.ids, n_computed, table,",
        "self.pool.insert(borrowed.ids, len(borrowed.ids), table,",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-window-twice",
        "blocks that left the window are freed again with the next ones",
        TABLE,
        "dropped = self.blocks[self.n_freed : n]",
        "dropped = self.blocks[:n]",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-release-window",
        "a run that ends frees the blocks that left its window once more",
        MANAGER,
        "self.pool.free(table.owned)",
        "self.pool.free(table.blocks)",
        MACHINE_TEST,
    ),
    Mutant(
        "groups-match-one",
        "a prefix is found that only the first group of layers has",
        "gpu/kv/prefix_match.py",
        "    while n and not all(\n",
        "    while n and not any(\n",
        ("tests/gpu/engine/test_kv_groups.py",),
        "lost_its_blocks",
    ),
    Mutant(
        "groups-window-of-the-widest",
        "a layer with a sliding window keeps all keys because another layer reads them",
        MANAGER,
        "            if window is None:\n                continue\n            n = max",
        "            if None in self.windows:\n                continue\n            n = max",
        ("tests/gpu/engine/test_kv_groups.py",),
        "grow_over_ten_windows",
    ),
    Mutant(
        "groups-long-text-evicts",
        "what left the window of a long text is kept longer than other texts",
        POOL,
        "                self._evictable.move_to_end(block, last=False)\n",
        "                pass\n",
        ("tests/gpu/engine/test_kv_groups.py",),
        "before_those_of_other_texts",
    ),
    Mutant(
        "groups-map-one",
        "the map of blocks says that all blocks of a run are for the first group of layers",
        MANAGER,
        "first[block], groups[block] = i * BLOCK_TOKENS, group\n",
        "first[block], groups[block] = i * BLOCK_TOKENS, 0\n",
        ("tests/gpu/engine/test_kv_groups.py",),
        "names_the_owners",
    ),
    Mutant(
        "groups-step-rows",
        "the keys of the second group of layers are written to blocks of the first",
        "gpu/ops/batch.py",
        "        if not (group and self.group_steps):\n",
        "        if True:\n",
        ("tests/gpu/engine/test_kv_groups.py",),
        "same_ids",
    ),
    Mutant(
        "blocks-found-and-free",
        "a block that a run found can still be taken by another",
        POOL,
        "            self._evictable.pop(block, None)\n            self.ref_counts[block] += 1\n",
        "            self.ref_counts[block] += 1\n",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-replaced",
        "a free block that leaves the cache, because another holds more, is lost",
        POOL,
        "                        self._uncached.append(lost)\n",
        "                        pass\n",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-partial-cover",
        "the free blocks are taken although they are too few",
        POOL,
        "        if n > self.n_free:\n            return None\n"
        "        return [self._allocate() for _ in range(n)]\n",
        "        taken = [self._allocate() for _ in range(min(n, self.n_free))]\n"
        "        return taken if len(taken) == n else None\n",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-past-a-stop",
        "tokens that were submitted past the end of a text are found under its name",
        SEQUENCE,
        "return min(self.next_index, len(self.ids) - self._previewing)",
        "return self.next_index",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-hashes-with-keys",
        "a text under an intervention has the hashes of the text without",
        PREFIX,
        "data = hashes[-1] + packed + _hash_of_extra_keys(keys)\n"
        '            hashes.append(_hash(data, WITH_EXTRA_KEYS if any(keys) else b""))',
        "hashes.append(_hash(hashes[-1] + packed))",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-shorter-wins",
        "a block is found by fewer tokens than it holds, because another began the same",
        PREFIX,
        "if any(_begins(self._cached[other].ids, part) for other in others):",
        "if any(_begins(part, self._cached[other].ids) for other in others):",
        MACHINE_TEST,
    ),
    Mutant(
        "chunks-exact",
        "what follows a moved chunk is found as the exact prefix of another prompt",
        SEQUENCE,
        "        self.block_hashes.begin_approximate(self.moved[0].first)\n",
        "",
        ("tests/gpu/engine/test_cache_reuse.py",),
        "no_exact_prefix",
    ),
    Mutant(
        "context-shift-exact",
        "a text whose context was shifted is found as the beginning of another prompt",
        MANAGER,
        "        if not sequence.n_shifted:  # else",
        "        if True:  # else",
        ("tests/gpu/engine/test_context_shift.py",),
        "holds_one_context",
    ),
    Mutant(
        "context-shift-order",
        "a block is overwritten before what is in it has moved",
        MANAGER,
        "                self.copies.append(TokenMoves(tuple(moves), group))\n"
        "                moves = []",
        "                moves = []",
        ("tests/gpu/engine/test_context_shift.py",),
        "holds_one_context",
    ),
)
