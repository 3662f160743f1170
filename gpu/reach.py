"""What may be changed inside the passes of a sequence, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.errors import InvalidRequest

LARGEST = float(np.finfo(np.float32).max)

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Interventions in the passes of one sequence; what is not named is left alone, bit for bit.

    heads        (layer, head): factor on what the head puts out, before the output projection
    attention    layer: factor on what attention adds to the residual stream, its bias included
    mlp          layer: factor on what the MLP adds to it
    steer        layer: float32 (hidden_size,), added to the residual stream before the layer
    steer_first  position of the first token that is steered

    A factor of 0 switches off, and both factors of a layer at 0 switch the layer off. Keys and
    values that an earlier setting left in the cache stay as they are. Statistics and states tell
    what was added in the end; what steers a layer counts to what comes before it, the MLP of the
    layer before or the embedding.
    """

    heads: Mapping[tuple[int, int], float] = field(default_factory=dict)
    attention: Mapping[int, float] = field(default_factory=dict)
    mlp: Mapping[int, float] = field(default_factory=dict)
    steer: Mapping[int, Vector] = field(default_factory=dict)
    steer_first: int = 0

    def expect(self, config: ModelConfig) -> None:
        """Raises InvalidRequest for a layer or head that the model lacks, a number that is not
        finite in float32, or a vector of another width."""
        layers = [*self.attention, *self.mlp, *self.steer, *(layer for layer, _ in self.heads)]
        _expect_below("layer", layers, config.n_layers)
        _expect_below("head", (head for _, head in self.heads), config.n_heads)
        for factors in (self.heads, self.attention, self.mlp):
            for place, factor in factors.items():
                if not abs(factor) <= LARGEST:  # nor is NaN
                    raise InvalidRequest(
                        f"the factor at {place} is {factor}; give a finite number", "reach"
                    )
        for layer, vector in self.steer.items():
            if vector.shape != (config.hidden_size,) or not np.isfinite(vector).all():
                raise InvalidRequest(
                    f"the vector that steers layer {layer} has shape {vector.shape}; give "
                    f"{config.hidden_size} finite numbers",
                    "reach",
                )
        if not 0 <= self.steer_first < 1 << 32:
            raise InvalidRequest(f"steer_first is {self.steer_first}; give a position", "reach")


NOTHING = Reach()


def _expect_below(kind: str, found: Iterable[int], n: int) -> None:
    for i in found:
        if not 0 <= i < n:
            raise InvalidRequest(
                f"there is no {kind} {i}: the model has {n}, from 0 to {n - 1}", "reach"
            )
