"""Record of the storage types that the quantised weights of a file were converted to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.gguf.types import QUANT_TYPES

AS_THEY_ARE = "as they are"


class Conversion:
    """Storage types that each tensor type of one checkpoint was loaded as.

    Its text says it per type, such as "Q8_0 as they are; Q4_K, Q6_K converted to q4". It is empty
    for a checkpoint without quantised weights.
    """

    def __init__(self, checkpoint: WeightSource) -> None:
        self._checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else None
        self._stored: defaultdict[str, set[str]] = defaultdict(set)

    def note(self, sources: Iterable[str], dtype: str, *, in_place: bool = False) -> None:
        """Record that the tensors `sources` are stored as `dtype`. `in_place`: their blocks were
        copied without a change."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        for kind in {checkpoint.dtype(source) for source in sources if source in checkpoint}:
            same = in_place or kind.lower() == dtype
            self._stored[kind].add(AS_THEY_ARE if same else dtype)

    def __str__(self) -> str:
        if not self._stored.keys() & set(QUANT_TYPES):
            return ""
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for kind in sorted(self._stored):
            kinds[_outcome(self._stored[kind])].append(kind)
        return "; ".join(f"{', '.join(each)} {outcome}" for outcome, each in kinds.items())


def _outcome(stored: set[str]) -> str:
    dtypes = " and ".join(sorted(stored - {AS_THEY_ARE}))
    unchanged = [AS_THEY_ARE] if AS_THEY_ARE in stored else []
    return " and ".join([*unchanged, *([f"converted to {dtypes}"] if dtypes else [])])
