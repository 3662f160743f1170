"""Choice of the storage type of weights by the types that a file saves them in: that of a model,
`--dtype auto`, and that of each matrix of a file with several.

A file keeps the precision it has, in the smallest of our types that loses little of it. Measured on
blocks of random bits, as root mean square of the error relative to that of the weights: q8 loses
0.4 % of any type (0.1 % of IQ4), q4 nothing of Q4_0 and Q4_1, 0.02 % of Q4_K, 3 to 6 % of all
others. So types of five bits and more, and IQ4, whose levels are not evenly spaced, are stored as
q8, which makes them up to twice as large. Types of three bits and less have lost more than q4 adds,
and q8 would make them three to five times as large.

Files such as Q4_K_M save some matrices of the layers in four bits and those that matter most in
more. As q4 they are stored likewise: those that are nearer to q8, or floats, as q8.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpu.checkpoint.gguf_repack import EXACT_FORMATS, REPACKED_FORMATS
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint, WeightSource

AUTO = "auto"
FLOATS = "f16"
"""Storage type of weights that are not quantised."""
NEAREST = {
    **REPACKED_FORMATS,
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"), "q8"),
    **dict.fromkeys(
        ("Q3_K", "Q2_K", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"),
        "q4",
    ),
}  # fmt: skip
"""Storage type of each type of quantised weights."""


LAYER = re.compile(r"\.\d+\.")
"""What the names of tensors of layers have in them: a number."""


class MatrixDtypes:
    """Storage types of the matrices of a checkpoint in a model that is stored as `dtype`: all the
    same, but for q4 and a file with matrices of layers to which q4 is nearest. Then all others
    are q8."""

    def __init__(self, checkpoint: WeightSource, dtype: str) -> None:
        self._dtype = dtype
        self._longer: frozenset[str] = frozenset()
        if dtype == "q4" and isinstance(checkpoint, Checkpoint):
            nearest = {
                name: NEAREST.get(checkpoint.dtype(name), FLOATS)
                for name in checkpoint.names()
                if len(checkpoint.shape(name)) > 1 and LAYER.search(name)
            }
            if dtype in nearest.values():
                self._longer = frozenset(name for name in nearest if nearest[name] != dtype)

    def of(self, tensors: Iterable[str]) -> str:
        """Return the storage type of a matrix that is made of these tensors."""
        return self._dtype if self._longer.isdisjoint(tensors) else "q8"


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """A storage type of weights. `reason`: why `auto` chose it; "": it was asked for."""

    dtype: str
    reason: str = ""


def choose_dtype(
    saved: Mapping[str, int], lacking: Callable[[str], str] = lambda dtype: ""
) -> DtypeChoice:
    """Return the storage type for a model.

    saved    bytes of its layers' matrices by the type they are saved in
             (`Inventory.saved_types`); empty: they are not quantised
    lacking  returns why a storage type does not fit in memory, such as "f16 needs 3 GB"; "" if it
             does

    If none fits, that of the file is returned.
    """
    best = _of_file(saved)
    types = tuple(FORMATS)
    why_not = lacking(best.dtype)
    if not why_not:
        return best
    for lower in types[types.index(best.dtype) + 1 :]:
        if not lacking(lower):
            return DtypeChoice(lower, why_not)
    return best


def _of_file(saved: Mapping[str, int]) -> DtypeChoice:
    """Return f16 if no other type is nearest to as many bytes, else the smallest that is nearest to
    any."""
    n_bytes: Counter[str] = Counter()
    for kind, n in saved.items():
        n_bytes[NEAREST.get(kind, FLOATS)] += n
    if not n_bytes or n_bytes.most_common(1)[0][0] == FLOATS:
        return DtypeChoice(FLOATS, "the weights are not quantised")
    dtype = "q4" if "q4" in n_bytes else "q8"
    kinds = sorted(saved, key=saved.__getitem__, reverse=True)
    if dtype == "q4" and len(n_bytes) > 1:
        longer = [kind for kind in kinds if NEAREST.get(kind) != "q4"]
        return DtypeChoice(
            dtype,
            f"the layers are saved as {_list(kinds)}; matrices in {_list(longer)} are stored as q8",
        )
    kind = next(kind for kind in kinds if NEAREST.get(kind) == dtype)
    mostly = "" if len(saved) == 1 else "mostly "
    fit = (
        f"which {dtype} holds exactly" if kind in EXACT_FORMATS else f"to which {dtype} is nearest"
    )
    return DtypeChoice(dtype, f"the layers are saved {mostly}as {kind}, {fit}")


def _list(kinds: list[str]) -> str:
    """Return "Q4_K", "Q4_K and Q6_K" or "Q5_0, Q4_K and Q6_K"."""
    *first, last = kinds
    return f"{', '.join(first)} and {last}" if first else last
