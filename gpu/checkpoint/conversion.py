"""What became of the types of a file with quantised weights, noted while they are loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.gguf.types import BLOCKS

AS_THEY_ARE = "as they are"


class Conversion:
    """Of one checkpoint. Its text says of each type what its matrices are stored as, such as "Q8_0
    as they are; Q4_K, Q6_K converted to q4"; it is empty where no weights are quantised."""

    def __init__(self, checkpoint: WeightSource) -> None:
        self._checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else None
        self._stored: defaultdict[str, set[str]] = defaultdict(set)

    def note(self, sources: Iterable[str], dtype: str, *, in_place: bool = False) -> None:
        """That matrices are stored as `dtype`; `in_place`: the very numbers of their blocks."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        for kind in {checkpoint.dtype(source) for source in sources if source in checkpoint}:
            same = in_place or kind.lower() == dtype
            self._stored[kind].add(AS_THEY_ARE if same else dtype)

    def __str__(self) -> str:
        if not self._stored.keys() & set(BLOCKS):
            return ""
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for kind in sorted(self._stored):
            kinds[_said(self._stored[kind])].append(kind)
        return "; ".join(f"{', '.join(each)} {said}" for said, each in kinds.items())


def _said(stored: set[str]) -> str:
    dtypes = " and ".join(sorted(stored - {AS_THEY_ARE}))
    kept = [AS_THEY_ARE] if AS_THEY_ARE in stored else []
    return " and ".join([*kept, *([f"converted to {dtypes}"] if dtypes else [])])
