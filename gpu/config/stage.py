"""Stages of a model: consecutive layers that one device computes.

The first stage also embeds the tokens, the last one also has the final norm, the output head and
the sampler. Between them travel the rows of the residual stream.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from gpu.errors import ModelError


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers `first` … `end` − 1 of the `n_layers` of a model."""

    first: int
    end: int
    n_layers: int

    @property
    def layers(self) -> range:
        return range(self.first, self.end)

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.end == self.n_layers

    def own(self, layers: Iterable[int]) -> tuple[int, ...]:
        """Return those of `layers` that are in this stage, counted from its first."""
        return tuple(layer - self.first for layer in layers if layer in self.layers)


def cut_stages(n_layers: int, n_stages: int) -> tuple[Stage, ...]:
    """Return the stages of a model, as equal as can be. The first ones have a layer more than the
    others where they cannot be equal, since the last one has the output head.

    Raises ModelError if there are more stages than layers, or less than one.
    """
    if not 1 <= n_stages <= n_layers:
        raise ModelError(
            f"{n_stages} stages were asked for, but the model has {n_layers} layers, and every "
            f"stage needs one or more; set --pipeline-parallel-size to a number from 1 to "
            f"{n_layers}"
        )
    size, n_larger = divmod(n_layers, n_stages)
    ends = [size * n + min(n, n_larger) for n in range(n_stages + 1)]
    return tuple(Stage(a, b, n_layers) for a, b in itertools.pairwise(ends))
