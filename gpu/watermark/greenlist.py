"""Greenlists of a watermark, those of transformers' `WatermarkLogitsProcessor`.

A watermark (Kirchenbauer et al. 2023, "A Watermark for Large Language Models") adds a bias to the
logits of some tokens, the greenlist. A key and the tokens before decide which these are, so whoever
has the key can count green tokens in a text later.

transformers takes the first γ · V numbers of `torch.randperm(V)` with a seeded generator. That is a
Fisher–Yates shuffle with MT19937: step i draws 32 bits, r, and swaps the numbers at the places i
and i + r mod (V − i). After γ · V steps it is decided which numbers come first. NumPy's
`RandomState` is the same generator.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpu.sampling_params import SETTING_BY_NAME, SamplingParams, SeedingScheme
from gpu.step import Selfhash

Bits = npt.NDArray[np.bool_]
Bitmask = npt.NDArray[np.uint32]

TABLE_SIZE = 1_000_003
"""Numbers of the table with which `selfhash` hashes tokens."""
CACHE_BYTES = 4 * 2**20
"""Most bytes of greenlists that are kept: one of 49,152 tokens takes 6 KiB and half a
millisecond."""


@dataclass(frozen=True, slots=True)
class WatermarkConfig:
    """Parameters of the greenlists, named as in transformers' `WatermarkingConfig`.

    greenlist_ratio  γ, the share of the vocabulary that is green
    hashing_key      only who has this key can find the watermark
    seeding_scheme   lefthash: the token before decides; selfhash: the token itself and the
                     `context_width` − 1 before it
    context_width    number of tokens that `selfhash` hashes
    """

    greenlist_ratio: float = 0.25
    hashing_key: int = 15485863
    seeding_scheme: SeedingScheme = "lefthash"
    context_width: int = 1

    @classmethod
    def of(cls, params: SamplingParams) -> WatermarkConfig | None:
        """Return the watermark of a run with these settings; None if it writes none."""
        if not params.watermark_bias:
            return None
        ratio, key, width = params.greenlist_ratio, params.hashing_key, params.selfhash_width
        return cls(ratio, key, "selfhash", width) if width else cls(ratio, key)

    def check(self) -> None:
        """Raise InvalidRequest for a number that is out of its range as a sampling setting."""
        for name in ("greenlist_ratio", "hashing_key"):
            SETTING_BY_NAME[name].check(getattr(self, name))

    def seed(self, ids: Sequence[int]) -> int:
        """Return the 32 bits that seed the generator, hashed from the last of `ids`: the tokens
        before the one in question, and with `selfhash` that one too."""
        if self.seeding_scheme == "lefthash":
            product = self.hashing_key * ids[-1]
        else:
            hashed = self.hashes(ids[-self.context_width :])
            with np.errstate(over="ignore"):  # products wrap around at 64 bits, as torch's do
                product = int((np.int64(self.hashing_key) * hashed * hashed[-1]).min())
        return product % (2**64 - 1) & 0xFFFFFFFF

    def hashes(self, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the hash of each token with `selfhash`."""
        places = np.asarray(ids, np.int64) % TABLE_SIZE
        hashed: npt.NDArray[np.int64] = _hash_table(self.hashing_key)[places] + 1
        return hashed


class Greenlists:
    """Greenlists of one vocabulary; those used last are kept. For one thread."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._generator = np.random.RandomState()
        self._kept: OrderedDict[tuple[int, int], Bitmask] = OrderedDict()

    def bitmask(self, config: WatermarkConfig, ids: Sequence[int]) -> Bitmask:
        """Return the greenlist of the token after `ids` (⌈vocab_size / 32⌉,): bit set: it is
        green."""
        return self._seeded(config.seed(ids), int(self.vocab_size * config.greenlist_ratio))

    def selfhash(self, config: WatermarkConfig, ids: Sequence[int]) -> Selfhash:
        """Return what decides with `selfhash` which tokens are green after `ids`: none if these are
        fewer than `context_width`, as in transformers."""
        n_green = int(self.vocab_size * config.greenlist_ratio)
        width = config.context_width
        is_long = len(ids) >= width
        before = config.hashes(ids[len(ids) + 1 - width :]).tolist() if is_long else []
        hashed = [config.hashing_key * factor for factor in (1, *before)]
        return Selfhash(
            n_green if is_long else 0,
            _hashes(config.hashing_key, self.vocab_size),
            np.array([product % 2**64 for product in hashed], np.uint64),
        )

    def green(self, config: WatermarkConfig | None, ids: Sequence[int]) -> Bits | None:
        """Return which tokens (vocab_size,) are green after `ids`; None without a watermark."""
        if config is None:
            return None
        bits = self.bitmask(config, ids).view(np.uint8)
        return np.unpackbits(bits, count=self.vocab_size, bitorder="little").astype(np.bool_)

    def is_green(self, config: WatermarkConfig, ids: Sequence[int]) -> bool:
        """Return whether the last of `ids` is green, given those before it."""
        known = ids if config.seeding_scheme == "selfhash" else ids[:-1]
        return in_bitmask(self.bitmask(config, known), ids[-1])

    def _seeded(self, seed: int, n_green: int) -> Bitmask:
        key = (seed, n_green)
        if (kept := self._kept.pop(key, None)) is None:
            self._generator.seed(seed)
            green = _shuffled_first(self._generator, self.vocab_size, n_green)
            padded = np.zeros(-(-self.vocab_size // 32) * 32, np.bool_)
            padded[: self.vocab_size] = green
            kept = np.packbits(padded, bitorder="little").view(np.uint32)
        self._kept[key] = kept
        if len(self._kept) * kept.nbytes > CACHE_BYTES:
            self._kept.popitem(last=False)
        return kept


def in_bitmask(bitmask: Bitmask, id: int) -> bool:
    """Return whether a token's bit is set."""
    return bool(bitmask[id // 32] >> np.uint32(id % 32) & 1)


def _shuffled_first(generator: np.random.RandomState, n: int, n_first: int) -> Bits:
    """Return which of the numbers 0 … n − 1 are the first `n_first` of a shuffle.

    A number of one of the first places leaves them if a step swapped it to a place behind them and
    no later step swapped with that place. Which number that was is found by following the swaps
    back, those of all places at once.
    """
    steps, n_places = _steps(n, n_first)
    targets = steps + generator.randint(0, 2**32, n_first, np.uint32) % n_places
    # The last step that swapped a number to each place before the place's own step; for others the
    # place itself, which stands for the number that began there.
    origin = np.arange(n)
    origin[targets] = steps
    outside = np.flatnonzero(origin[n_first:] < n_first) + n_first
    left = origin[outside]
    while not np.array_equal(left, earlier := origin[left]):
        left = earlier
    first = np.zeros(n, np.bool_)
    first[:n_first] = True
    first[outside] = True
    first[left] = False
    return first


@lru_cache(maxsize=4)
def _steps(n: int, n_first: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]]:
    """Return the steps of a shuffle, and how many places each chooses from."""
    steps = np.arange(n_first)
    return steps, (n - steps).astype(np.uint32)


@lru_cache(maxsize=4)
def _hashes(key: int, vocab_size: int) -> npt.NDArray[np.uint32]:
    """Return the hash of each token of a vocabulary with `selfhash`."""
    config = WatermarkConfig(hashing_key=key, seeding_scheme="selfhash")
    return config.hashes(np.arange(vocab_size)).astype(np.uint32)


@lru_cache(maxsize=4)
def _hash_table(key: int) -> npt.NDArray[np.int64]:
    """Return the shuffle of `TABLE_SIZE` numbers with this seed (8 MB, a third of a second).

    Before step i, the place that it swaps with holds what the last step s < i with that place left
    there: what place s held before step s. If there is no such step, it holds its own number.
    """
    steps, n_places = _steps(TABLE_SIZE, TABLE_SIZE - 1)
    draws = np.random.RandomState(key & 0xFFFFFFFF).randint(0, 2**32, len(steps), np.uint32)
    targets = np.append(steps + draws % n_places, TABLE_SIZE - 1)  # the last place stays
    moved = np.flatnonzero(targets > np.arange(TABLE_SIZE))
    held = np.arange(TABLE_SIZE)  # by each place before its own step: what place `held` did
    held[targets[moved]] = moved
    while not np.array_equal(held, earlier := held[held]):
        held = earlier
    order = np.argsort(targets, kind="stable")
    is_again = targets[order[1:]] == targets[order[:-1]]
    table = targets.copy()
    table[order[1:][is_again]] = held[order[:-1][is_again]]
    return table
