"""Interventions that act on the passes of a sequence, as data."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig, Stage
from gpu.errors import InvalidRequest

LARGEST = float(np.finfo(np.float32).max)
DIGEST_BYTES = 16

Vector = npt.NDArray[np.float32]
Place = TypeVar("Place", int, tuple[int, int])
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ActiveInterventions:
    """Interventions in the passes of one sequence; what is not named is left alone, bit for bit.

    heads      (layer, head): factor on what the head puts out, before the output projection
    attention  layer: factor on what attention adds to the residual stream, its bias included
    mlp        layer: factor on what the MLP adds to it
    steer      layer: float32 (hidden_size,), added to the residual stream before the layer
    patch      layer: float32 (hidden_size,), what the residual stream before the layer becomes,
               whatever it was; it is steered after that
    loras      adapter: strength; 0 is off, 1 as it was trained
    experts_off
               (layer, expert): experts that the router of the layer cannot choose
    masked     (layer, head): (first, end), positions first … end − 1 to whose keys the head does
               not attend

    A factor of 0 switches off, and both factors of a layer at 0 switch the layer off. Keys and
    values that earlier interventions left in the cache stay as they are. Statistics and states
    include interventions; steering or patching a layer's input counts as part of the update before
    it, that of the MLP below or of the embedding.
    """

    heads: Mapping[tuple[int, int], float] = field(default_factory=dict)
    attention: Mapping[int, float] = field(default_factory=dict)
    mlp: Mapping[int, float] = field(default_factory=dict)
    steer: Mapping[int, Vector] = field(default_factory=dict)
    patch: Mapping[int, Vector] = field(default_factory=dict)
    loras: Mapping[str, float] = field(default_factory=dict)
    experts_off: Collection[tuple[int, int]] = ()
    masked: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def of_stage(self, stage: Stage) -> ActiveInterventions:
        """Return those that a stage applies, by its own numbers of layers. It also steers and
        patches the stream that it sends to the next stage, as the statistics of its last layer
        include that."""

        def own(by_layer: Mapping[int, T]) -> dict[int, T]:
            return {i - stage.first: of for i, of in by_layer.items() if i in stage.layers}

        def before(by_layer: Mapping[int, T]) -> dict[int, T]:
            first = stage.first if stage.is_first else stage.first + 1
            return {i - stage.first: of for i, of in by_layer.items() if first <= i <= stage.end}

        def of_heads(by_head: Mapping[tuple[int, int], T]) -> dict[tuple[int, int], T]:
            return {(i - stage.first, h): of for (i, h), of in by_head.items() if i in stage.layers}

        return ActiveInterventions(
            of_heads(self.heads),
            own(self.attention),
            own(self.mlp),
            before(self.steer),
            before(self.patch),
            self.loras,
            [(i - stage.first, expert) for i, expert in self.experts_off if i in stage.layers],
            of_heads(self.masked),
        )

    def validate(self, config: ModelConfig, n_inputs: int | None = None) -> None:
        """Raises InvalidRequest for a layer, head or expert that the model lacks, a number that is
        not finite in float32, or a vector of another width. `n_inputs`: layers before which the
        stream can be steered; None: all."""
        factors = (self.heads, self.attention, self.mlp, self.loras)
        layers = [*self.attention, *self.mlp]
        layers += [layer for layer, _ in (*self.heads, *self.experts_off, *self.masked)]
        _expect_below("layer", layers, config.n_layers)
        _expect_below("layer", [*self.steer, *self.patch], n_inputs or config.n_layers)
        _expect_below("head", (head for _, head in (*self.heads, *self.masked)), config.n_heads)
        for layer, expert in self.experts_off:
            moe = config.moe_of(layer)
            _expect_below("expert", (expert,), moe.n_experts if moe else 0)
        for places in factors:
            for place, factor in places.items():
                if not abs(factor) <= LARGEST:  # nor is NaN
                    raise InvalidRequest(
                        f"the factor at {place} is {factor}; give a finite number", "reach"
                    )
        for does, vectors in (("steers", self.steer), ("patches", self.patch)):
            for layer, vector in vectors.items():
                if vector.shape != (config.hidden_size,) or not np.isfinite(vector).all():
                    raise InvalidRequest(
                        f"the vector that {does} layer {layer} has shape {vector.shape}; give "
                        f"{config.hidden_size} finite numbers",
                        "reach",
                    )

    @cached_property
    def digest(self) -> bytes:
        """Digest of what it changes: equal for equal changes, empty if it changes nothing."""
        parts = [
            *(struct.pack("<cIIf", b"h", *place, f) for place, f in _changed(self.heads)),
            *(struct.pack("<cIf", b"a", layer, f) for layer, f in _changed(self.attention)),
            *(struct.pack("<cIf", b"m", layer, f) for layer, f in _changed(self.mlp)),
            *(_packed(b"s", layer, v) for layer, v in sorted(self.steer.items()) if v.any()),
            *(_packed(b"p", layer, v) for layer, v in sorted(self.patch.items())),
            *_named(self.loras),
            *(struct.pack("<cII", b"e", *place) for place in sorted(self.experts_off)),
            *(
                struct.pack("<cIIII", b"k", *place, *ends)
                for place, ends in sorted(self.masked.items())
            ),
        ]
        return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest() if parts else b""

    @property
    def acts(self) -> bool:
        """Return whether anything is changed."""
        return bool(self.digest)

    @cached_property
    def acts_on_base(self) -> bool:
        """Return whether anything but adapters' strengths and masked keys is changed."""
        return bool(replace(self, loras={}, masked={}).digest)

    @cached_property
    def acts_on_loras(self) -> bool:
        """Return whether an adapter acts."""
        return any(self.loras.values())


NONE_ACTIVE = ActiveInterventions()


class InterventionSchedule:
    """Interventions by the position of a text from which they act, until the next one.
    `cache_salt`: that of the text, see `gpu.request.Request`."""

    def __init__(self, cache_salt: str = "") -> None:
        self.cache_salt = cache_salt
        self._firsts: list[int] = []
        self._active: list[ActiveInterventions] = []

    def change(self, first: int, active: ActiveInterventions) -> None:
        """Let `active` act from `first` on, instead of all that was scheduled from there on."""
        n = bisect_right(self._firsts, first - 1)
        del self._firsts[n:], self._active[n:]
        if self.at(first).digest != active.digest:
            self._firsts.append(first)
            self._active.append(active)

    def with_masked(
        self, first: int, masked: Mapping[tuple[int, int], tuple[int, int]]
    ) -> InterventionSchedule:
        """Return this schedule with the keys at `masked` masked for all tokens from `first` on."""
        changed = InterventionSchedule(self.cache_salt)
        for at, active in zip(self._firsts, self._active, strict=True):
            changed.change(at, active)
        for at in (first, *(at for at in self._firsts if at > first)):
            changed.change(at, replace(self.at(at), masked=masked))
        return changed

    def at(self, position: int) -> ActiveInterventions:
        n = bisect_right(self._firsts, position)
        return self._active[n - 1] if n else NONE_ACTIVE

    def next_change(self, position: int, limit: int) -> int:
        """Return the first position after `position` with other interventions, at most `limit`."""
        n = bisect_right(self._firsts, position)
        return min(limit, self._firsts[n]) if n < len(self._firsts) else limit

    def digest_at(self, position: int) -> bytes:
        """Return the digest of the interventions on the token there; empty if there are none."""
        return self.at(position).digest

    def digests(self, n: int) -> tuple[tuple[int, bytes], ...]:
        """Return (first position, digest) of each change of interventions in the first `n`
        tokens."""
        return tuple(
            (first, active.digest)
            for first, active in zip(self._firsts, self._active, strict=True)
            if first < n
        )


def _changed(factors: Mapping[Place, float]) -> list[tuple[Place, float]]:
    return sorted((place, factor) for place, factor in factors.items() if factor != 1)


def _named(strengths: Mapping[str, float]) -> Iterable[bytes]:
    for name, strength in sorted(strengths.items()):
        if strength:
            encoded = name.encode()
            yield struct.pack("<cIf", b"l", len(encoded), strength) + encoded


def _packed(kind: bytes, layer: int, vector: Vector) -> bytes:
    return struct.pack("<cI", kind, layer) + np.ascontiguousarray(vector, "<f4").tobytes()


def _expect_below(kind: str, found: Iterable[int], n: int) -> None:
    for i in found:
        if not 0 <= i < n:
            raise InvalidRequest(
                f"there is no {kind} {i}: the model has {n}, from 0 to {n - 1}", "reach"
            )
