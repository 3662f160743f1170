"""Faults in the bookkeeping of KV blocks that show only after operations in a certain order."""

from tests.mutants.mutant import Mutant

MANAGER = "gpu/engine/kv_manager.py"
POOL = "gpu/kv/block_pool.py"
PREFIX = "gpu/kv/prefix_cache.py"
SEQUENCE = "gpu/engine/sequence.py"
MACHINE_TEST = ("tests/gpu/engine/test_kv_machine.py",)

MUTANTS = (
    Mutant(
        "blocks-match-again",
        "blocks that a second look at the cache replaces are never free again",
        MANAGER,
        "            self.pool.free(sequence.blocks)\n            self._attach(sequence, match)\n",
        "            self._attach(sequence, match)\n",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-borrow",
        "a question counts the free blocks that it found twice",
        MANAGER,
        "- len(match.blocks) > self.pool.n_free_beside(match):",
        "- len(match.blocks) > self.pool.n_free:",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-give-back",
        "tokens of a borrowed block are found that were never computed",
        MANAGER,
        "self.pool.insert(borrowed.ids, n_computed, borrowed.blocks, borrowed.block_hashes)",
        "self.pool.insert(borrowed.ids, len(borrowed.ids), borrowed.blocks, borrowed.block_hashes)",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-window-twice",
        "blocks that left the window are freed again with the next ones",
        MANAGER,
        "self.pool.free(sequence.blocks[sequence.n_freed : n])",
        "self.pool.free(sequence.blocks[:n])",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-release-window",
        "a run that ends frees the blocks that left its window once more",
        MANAGER,
        "self.pool.free(sequence.owned_blocks)",
        "self.pool.free(sequence.blocks)",
        MACHINE_TEST,
    ),
    Mutant(
        "blocks-resume-window",
        "a resumed run counts blocks as freed that it has now",
        MANAGER,
        "sequence.blocks, sequence.n_freed = [], 0",
        "sequence.blocks = []",
        MACHINE_TEST,
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
        "return min(self.next_index, len(self.ids))",
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
        "slide-exact",
        "a text that slid is found as the beginning of another prompt",
        MANAGER,
        "        if sequence.n_slid:\n            return  # its",
        "        if False:\n            return  # its",
        ("tests/gpu/engine/test_slide.py",),
        "holds_one_context",
    ),
    Mutant(
        "slide-order",
        "a block is overwritten before what is in it has moved",
        MANAGER,
        "                self.copies.append(TokenMoves(tuple(moves)))  # before",
        "                pass  # before",
        ("tests/gpu/engine/test_slide.py",),
        "holds_one_context",
    ),
)
