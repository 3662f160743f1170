"""Choices that tuning makes on an adapter: for each kind of matrix product, the tiles it may have.

The choices of a GPU leave `split_k` alone, and with it the order of every sum: whichever tiles win,
a text stays the same, bit for bit. Those of a software device include `subgroup_shuffle`, which
changes that order. `q8_activations` rounds, on any device; `tokenglass perplexity` measures how
much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu.webgpu.tiling import M_SIZES, SHARED_M_SIZES, SOFTWARE_LOADS, FewRows, Tuning

LEAST_GAIN = 1.05
"""Least speedup of products for which tiles replace the default."""
LEAST_Q8_GAIN = 1.1
"""Least speedup of decode that is worth int8's small loss of quality."""
FEW = (8, 2)
"""Rows of steps with few rows, such as those of several sequences."""

Changes = Mapping[str, Any]
"""New values of some fields of a `Tuning`."""


@dataclass(frozen=True, slots=True)
class TileChoice:
    """Fields of a `Tuning` that are chosen together, and the products that they are measured on.

    products      name
    dtype         format of the weights
    rows          rows of the products: the first must gain `least_gain`, the others may not lose
    alternatives  values of the same fields, the default's among them or not
    """

    products: str
    dtype: str
    rows: tuple[int, ...]
    alternatives: tuple[Changes, ...]
    least_gain: float = LEAST_GAIN

    def candidates(self, tuning: Tuning) -> list[Tuning]:
        """Return the tunings to compare with `tuning`."""
        found = (replace(tuning, **changes) for changes in self.alternatives)
        return [candidate for candidate in found if candidate != tuning]

    def of(self, tuning: Tuning) -> Changes:
        """Return the fields as they are in `tuning`."""
        return {name: getattr(tuning, name) for name in self.alternatives[0]}

    def describe(self, tuning: Tuning) -> str:
        """Return the fields of `tuning` in words."""
        return ", ".join(
            str(value) if isinstance(value, FewRows) else f"{name} {value}"
            for name, value in self.of(tuning).items()
        )


def tile_choices(default: Tuning, max_rows: int) -> tuple[TileChoice, ...]:
    """Return the choices for an adapter with this default and steps of `max_rows` rows, those of
    one format together."""
    if not default.coalesced:
        return _of_software(default, max_rows)
    one_row, quantised, few_rows = (
        tuple({field: FewRows(*sizes)} for sizes in _FEW_ROWS[field]) for field in _FEW_ROWS
    )
    loops = ({"unrolls_loops": not default.unrolls_loops},)
    smaller = tuple({"shared_m": m} for m in SHARED_M_SIZES if m < default.shared_m)
    return (
        TileChoice("1 row, f16", "f16", (1,), one_row),
        TileChoice(f"{FEW[0]} rows, f16", "f16", FEW, few_rows),
        TileChoice(f"loops, {FEW[0]} rows, f16", "f16", FEW, loops),
        *((TileChoice("prompt, f16", "f16", (max_rows,), smaller),) if smaller else ()),
        TileChoice("1 row, q4", "q4", (1,), quantised),
        _q8_activations(max_rows),
    )


def may_choose(default: Tuning, tuning: Tuning) -> bool:
    """Return whether tuning can make `tuning` of `default`."""
    for choice in tile_choices(default, max_rows=1):
        chosen = choice.of(tuning)
        if chosen in choice.alternatives:
            default = replace(default, **chosen)
    return default == tuning


_FEW_ROWS = {
    "one_row": (
        (1, 4, 8, 32), (1, 4, 8, 128), (1, 4, 4, 64), (1, 2, 8, 64), (2, 2, 8, 64), (2, 2, 8, 128),
    ),
    "one_row_quantised": (
        (1, 4, 8, 64), (1, 4, 8, 256), (1, 4, 4, 128), (1, 2, 8, 128), (2, 4, 8, 128),
    ),
    "few_rows": (
        (2, 2, 8, 64), (2, 2, 8, 256), (2, 2, 4, 128), (1, 4, 8, 128), (4, 1, 8, 128),
    ),
}  # fmt: skip
"""Sizes of `FewRows` in place of the defaults: more or fewer lanes, loads under way, chains and
columns."""


def _of_software(default: Tuning, max_rows: int) -> tuple[TileChoice, ...]:
    """Larger tiles take Mesa's software device 4 seconds (16 × 4 without shuffling) to minutes
    (16 × 8) to compile. More rows than those of two tiles take more tiles of the same speed."""
    shuffle, rows = default.subgroup_shuffle, min(max_rows, 2 * M_SIZES[-1])
    many = [{"max_m": 8, "many_n": 4}, {"max_m": 8, "many_n": 8}]
    loads = {"subgroup_shuffle": False, "max_m": SOFTWARE_LOADS.max_m}
    loads["many_n"] = SOFTWARE_LOADS.many_n
    return (
        _q8_activations(rows),  # first, because it may gain most
        TileChoice("1 row, f16", "f16", (1,), ({"few_n": 4}, {"few_n": 8})),
        TileChoice("prompt, f16", "f16", (rows,), tuple(many)),
        *((TileChoice("own loads, f16", "f16", (1, rows), (loads,)),) if shuffle else ()),
    )


def _q8_activations(max_rows: int) -> TileChoice:
    """One choice for steps of few rows and of many: the bits of a token must not depend on the step
    it was computed in."""
    return TileChoice(
        "int8 activations, q8", "q8", (1, max_rows), ({"q8_activations": True},), LEAST_Q8_GAIN
    )
