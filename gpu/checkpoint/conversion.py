"""Record of the storage types that the quantised weights of a file were converted to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpu.checkpoint.gguf_repack import EXACT_FORMATS
from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.gguf.types import QUANT_TYPES

AS_THEY_ARE = "as they are"
ROUNDED_SCALES = "as they are, but with scales in float16"


class Conversion:
    """Storage types that each tensor type of one checkpoint was loaded as.

    Its text says it per type, such as "Q8_0 as they are; Q5_K, Q6_K converted to q8". It is empty
    for a checkpoint without quantised weights.
    """

    def __init__(self, checkpoint: WeightSource) -> None:
        self._checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else None
        self._stored: defaultdict[str, set[str]] = defaultdict(set)

    def note(self, sources: Iterable[str], dtype: str, *, in_place: bool = False) -> None:
        """Record that the tensors `sources` are stored as `dtype`. `in_place`: with the integers of
        their blocks."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        for kind in {checkpoint.dtype(source) for source in sources if source in checkpoint}:
            if in_place:
                outcome = AS_THEY_ARE if kind in EXACT_FORMATS else ROUNDED_SCALES
            else:
                outcome = AS_THEY_ARE if kind.lower() == dtype else dtype
            self._stored[kind].add(outcome)

    def __str__(self) -> str:
        if not self._stored.keys() & set(QUANT_TYPES):
            return ""
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for kind in sorted(self._stored):
            kinds[_outcome(self._stored[kind])].append(kind)
        return "; ".join(f"{', '.join(each)} {outcome}" for outcome, each in kinds.items())


def _outcome(stored: set[str]) -> str:
    unchanged = [words for words in (AS_THEY_ARE, ROUNDED_SCALES) if words in stored]
    dtypes = " and ".join(sorted(stored.difference(unchanged)))
    return " and ".join([*unchanged, *([f"converted to {dtypes}"] if dtypes else [])])
