"""Subword segmentation of single words, step by step, from the tables of a tokenizer.

The `tokenizers` library gives only ids. These are the same algorithms, one for each of its models,
with all that they tried:

BPE        the pair of adjacent tokens with the lowest rank is merged, the leftmost first, until no
           pair is in the list of merges (Sennrich et al. 2016)
Unigram    the path through the lattice of all pieces with the greatest sum of log-probabilities
           (Kudo 2018)
WordPiece  the longest piece of the vocabulary that begins the rest of the word (Wu et al. 2016)
WordLevel  the whole word
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

UNKNOWN_PENALTY = 10.0
"""An unknown character's log-probability is that of the least likely piece less this, as in
SentencePiece."""


class Merge(msgspec.Struct, frozen=True):
    """A merge of BPE. `rank`: its index in the list of merges; `at`: index of the left token, which
    becomes `id`."""

    rank: int
    at: int
    id: int


class Candidate(msgspec.Struct, frozen=True):
    """A piece that begins at character `first` of the word and ends before `end`.

    id     None if the vocabulary has no such piece
    score  natural log of its probability, of Unigram; else None
    best   it is part of the result
    """

    first: int
    end: int
    id: int | None
    score: float | None
    best: bool


class WordSteps(msgspec.Struct, frozen=True):
    """Segmentation of one word.

    word        as normalizer and pre-tokenizer leave it
    symbols     ids that BPE begins with: of characters, of bytes, or of a whole word that needs no
                merge
    merges      merges of BPE in their order
    candidates  of Unigram, all pieces of the lattice by their first character; of WordPiece, those
                that were looked up, in order
    ids         the result
    """

    word: str
    symbols: list[int]
    merges: list[Merge]
    candidates: list[Candidate]
    ids: list[int]


class Segmentation(msgspec.Struct, frozen=True):
    """Segmentation of a text, word by word. `algorithm`: "BPE", "Unigram", "WordPiece" or
    "WordLevel"."""

    algorithm: str
    words: list[WordSteps]

    @property
    def named_ids(self) -> list[int]:
        """Return all ids that the steps name, in order and each once."""
        found: set[int] = set()
        for word in self.words:
            found.update(word.symbols, word.ids, (merge.id for merge in word.merges))
            found.update(each.id for each in word.candidates if each.id is not None)
        return sorted(found)


class Segmenter:
    """Segments words as a tokenizer does. `model`: "model" of its tokenizer.json, as the
    `tokenizers` library writes it."""

    def __init__(self, model: Mapping[str, Any]) -> None:
        self._model = model
        self.algorithm = str(model["type"])

    def steps(self, word: str) -> WordSteps:
        """Return the segmentation of one word."""
        match self.algorithm:
            case "BPE":
                return self._merge(word)
            case "Unigram":
                return self._best_path(word)
            case "WordPiece":
                return self._longest_matches(word)
        return WordSteps(word, [], [], [], self._known_or_unknown(self._vocab.get(word)))

    # ---- tables ------------------------------------------------------------------------------

    @cached_property
    def _vocab(self) -> Mapping[str, int]:
        vocab = self._model["vocab"]
        if isinstance(vocab, dict):
            return vocab
        return {piece: id for id, (piece, _) in enumerate(vocab)}

    @cached_property
    def _ranks(self) -> Mapping[tuple[int, int], tuple[int, int]]:
        """Pair of ids → rank of its merge and id of the result."""
        prefix = self._model["continuing_subword_prefix"] or ""
        vocab = self._vocab
        return {
            (vocab[left], vocab[right]): (rank, vocab[left + right[len(prefix) :]])
            for rank, (left, right) in enumerate(self._model["merges"])
        }

    @cached_property
    def _unknown(self) -> int | None:
        if self.algorithm == "Unigram":
            return self._model["unk_id"]  # type: ignore[no-any-return]
        return self._vocab.get(self._model["unk_token"])

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._vocab), default=0)

    def _known_or_unknown(self, id: int | None) -> list[int]:
        found = self._unknown if id is None else id
        return [] if found is None else [found]

    def _byte_ids(self, text: str) -> list[int]:
        """Return the ids of the bytes of `text`; none unless all are in the vocabulary."""
        if not self._model.get("byte_fallback"):
            return []
        ids = [self._vocab.get(f"<0x{byte:02X}>") for byte in text.encode()]
        return [] if None in ids else [id for id in ids if id is not None]

    # ---- algorithms --------------------------------------------------------------------------

    def _merge(self, word: str) -> WordSteps:
        whole = self._vocab.get(word) if self._model["ignore_merges"] else None
        symbols = self._symbols(word) if whole is None else [whole]
        ids, merges = list(symbols), []
        while pairs := [
            (self._ranks[pair], at)
            for at, pair in enumerate(itertools.pairwise(ids))
            if pair in self._ranks
        ]:
            (rank, id), at = min(pairs, key=lambda pair: (pair[0][0], pair[1]))
            ids[at : at + 2] = [id]
            merges.append(Merge(rank, at, id))
        return WordSteps(word, symbols, merges, [], ids)

    def _symbols(self, word: str) -> list[int]:
        """Return the ids of the characters of a word, of bytes where there is none."""
        ids: list[int] = []
        was_unknown = False
        for i, char in enumerate(word):
            prefix = self._model["continuing_subword_prefix"] if i else ""
            suffix = self._model["end_of_word_suffix"] if i == len(word) - 1 else ""
            piece = f"{prefix or ''}{char}{suffix or ''}"
            id = self._vocab.get(piece)
            found = self._byte_ids(piece) if id is None else [id]
            if not found and not (was_unknown and self._model["fuse_unk"]):
                ids += self._known_or_unknown(None)
            was_unknown = not found
            ids += found
        return ids

    def _best_path(self, word: str) -> WordSteps:
        lattice = self._lattice(word)
        # Best path to the end of each character: its log-probability and its last candidate.
        best: list[tuple[float, int]] = [(0.0, -1)] + [(float("-inf"), -1)] * len(word)
        for i, (first, end, _, score) in enumerate(lattice):
            total = best[first][0] + score
            if best[end][1] < 0 or total > best[end][0]:
                best[end] = total, i
        path: list[int] = []
        at = len(word)
        while at > 0:
            path.append(best[at][1])
            at = lattice[path[-1]][0]
        path.reverse()
        chosen = set(path)
        candidates = [Candidate(*each, i in chosen) for i, each in enumerate(lattice)]
        return WordSteps(word, [], [], candidates, self._ids_of_path(word, lattice, path))

    def _lattice(self, word: str) -> list[tuple[int, int, int | None, float]]:
        """Return first and end character, id and log-probability of every piece in a word."""
        scores: Sequence[tuple[str, float]] = self._model["vocab"]
        unknown_score = min((score for _, score in scores), default=0.0) - UNKNOWN_PENALTY
        lattice: list[tuple[int, int, int | None, float]] = []
        for first in range(len(word)):
            n_before = len(lattice)
            for end in range(first + 1, min(len(word), first + self._longest) + 1):
                id = self._vocab.get(word[first:end])
                if id is not None:
                    lattice.append((first, end, id, scores[id][1]))
            if len(lattice) == n_before or lattice[n_before][1] > first + 1:
                lattice.append((first, first + 1, self._unknown, unknown_score))
        return lattice

    def _ids_of_path(
        self, word: str, lattice: list[tuple[int, int, int | None, float]], path: list[int]
    ) -> list[int]:
        """Return the ids of a path. Adjacent unknown characters are one token, or its bytes."""
        ids: list[int] = []
        unknown_from: int | None = None
        ends = [(lattice[i][0], lattice[i][2]) for i in path]
        for first, id in [*ends, (len(word), -1)]:
            if id == self._unknown:
                unknown_from = first if unknown_from is None else unknown_from
                continue
            if unknown_from is not None:
                text = word[unknown_from:first]
                known = self._vocab.get(text)
                ids += (known is None and self._byte_ids(text)) or self._known_or_unknown(known)
                unknown_from = None
            if id is not None and id >= 0:
                ids.append(id)
        return ids

    def _longest_matches(self, word: str) -> WordSteps:
        candidates: list[Candidate] = []
        ids: list[int] = []
        first = 0
        is_known = len(word) <= self._model["max_input_chars_per_word"]
        while is_known and first < len(word):
            prefix = self._model["continuing_subword_prefix"] if first else ""
            for end in range(len(word), first, -1):
                id = self._vocab.get(prefix + word[first:end])
                candidates.append(Candidate(first, end, id, None, id is not None))
                if id is not None:
                    ids.append(id)
                    first = end
                    break
            else:
                is_known = False
        if not is_known:
            ids = self._known_or_unknown(None)
            candidates = [msgspec.structs.replace(each, best=False) for each in candidates]
        return WordSteps(word, [], [], candidates, ids)
