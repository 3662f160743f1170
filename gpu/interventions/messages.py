"""Interventions as clients send them and events report them: plain messages.

Texts are still strings here. The engine tokenizes them as plain prompts and resolves all of it to
what acts on a pass, a `gpu.interventions.active.ActiveInterventions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from gpu.config import MoeConfig
from gpu.errors import InvalidRequest

FACTORS = (-8.0, 8.0)
STRENGTHS = (-16.0, 16.0)
MAX_STEERS = 8
MAX_PATCHES = 16
MAX_TEXT_TOKENS = 256
MAX_TEXT_CHARS = 64 * 1024
"""Longer texts are refused before tokenization, which would take the engine's time."""

Ids = tuple[int, ...]
Encode = Callable[[str], list[int]]
"""Tokenizes a plain prompt, including the tokens that the tokenizer begins one with."""


class HeadFactor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scales the output of head `head` of layer `layer` by `factor`. 0 ablates the head."""

    layer: int
    head: int
    factor: float


class LayerFactor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scales the update of attention or MLP in layer `layer` by `factor`. 0 ablates it."""

    layer: int
    factor: float


class Steer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Adds to the residual stream before layer `layer`: `strength` · (that of the last token of
    `toward` − that of the last token of `away`; 0 for an empty `away`) (Turner et al. 2023,
    "Activation Addition: Steering Language Models Without Optimization")."""

    layer: int
    toward: str
    strength: float
    away: str = ""


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replaces the residual stream before layer `layer` of the token at `position` by that of token
    `token` of `prompt` (activation patching: Meng et al. 2022, "Locating and Editing Factual
    Associations in GPT")."""

    layer: int
    position: int
    prompt: str
    token: int


class LoraStrength(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factor on what the adapter `name` adds to the base's matrices: 0 is off, 1 as it was trained
    (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models")."""

    name: str
    strength: float


class ExpertOff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Switches expert `expert` of layer `layer` off: the router chooses among the others, as if it
    had been pruned (`gpu.analysis.reap`)."""

    layer: int
    expert: int


class Interventions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All interventions in force at a time. What is not named stays unchanged; an adapter that is
    not named is off. A factor of 0 switches off, 1 changes nothing.

    Several steers of a layer add up. A patched token is steered after it was patched.

    heads, attention, mlp  act on every token that is computed under the setting, the prompt's too
    steer                  from the last token of the prompt on
    patch                  on one token of the prompt each
    loras                  act like heads; several add up
    experts                are off for every token that is computed under the setting; each layer
                           keeps as many as a token uses

    A change acts from the pass on that chooses the token it names; for the first token, that is the
    pass of the prompt's last token.
    """

    heads: tuple[HeadFactor, ...] = ()
    attention: tuple[LayerFactor, ...] = ()
    mlp: tuple[LayerFactor, ...] = ()
    steer: tuple[Steer, ...] = ()
    patch: tuple[Patch, ...] = ()
    loras: tuple[LoraStrength, ...] = ()
    experts: tuple[ExpertOff, ...] = ()

    def with_patches_of(self, now: Interventions) -> Interventions:
        """Return these without the patches that `now` does not have."""
        patch = tuple(one for one in self.patch if one in now.patch)
        return msgspec.structs.replace(self, patch=patch)


NO_INTERVENTIONS = Interventions()


class InterventionSpan(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"interventions": "reach"}
):
    """Interventions under which the tokens of a text from position `first` on were computed. Steers
    act from `first` on, too, and so do patches whose position is not before it. A run of n prompt
    tokens that began with steers is thus {first: 0, without them}, {first: n − 1, with them}; a
    change whose index is i begins at first = n − 1 + i."""

    first: int
    interventions: Interventions


EncodedSpans = tuple[tuple[int, "EncodedInterventions"], ...]
"""(position from which they acted, interventions) of a text, in order."""


class Sizes(Protocol):
    """Sizes of a model that interventions must respect."""

    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    def moe_of(self, i: int) -> MoeConfig | None: ...


@dataclass(frozen=True, slots=True)
class EncodedInterventions:
    """Validated interventions with their texts as token ids: those that each steer goes toward and
    away from, and each patch's prompt up to the token in question."""

    requested: Interventions = NO_INTERVENTIONS
    toward: tuple[Ids, ...] = ()
    away: tuple[Ids, ...] = ()
    patch: tuple[Ids, ...] = ()

    @property
    def only_loras(self) -> bool:
        """Return whether only the strengths of adapters are changed."""
        return self.requested == Interventions(loras=self.requested.loras)

    def texts(self) -> Iterator[Ids]:
        """Yield the texts whose last token's residual stream is needed."""
        return (ids for ids in (*self.toward, *self.away, *self.patch) if ids)


NONE_ENCODED = EncodedInterventions()


def encode_interventions(
    wanted: Interventions,
    sizes: Sizes,
    encode: Encode,
    *,
    param: str = "reach",
    n_prompt: int | None = None,
    most: int = MAX_TEXT_TOKENS,
    loras: Collection[str] = (),
) -> EncodedInterventions:
    """Return `wanted`, validated and with its texts as token ids. `param`: field that errors name;
    `n_prompt`: tokens that patches may name; `most`: tokens of a text; `loras`: loaded adapters.

    Raises InvalidRequest for a layer, head, position, token or adapter that is not there, a number
    out of range, two entries for one place, more entries than are taken, and a text that is too
    long.
    """
    if wanted == NO_INTERVENTIONS:
        return NONE_ENCODED
    check = _Check(sizes, encode, param, most)
    check.factors("heads", wanted.heads)
    check.factors("attention", wanted.attention)
    check.factors("mlp", wanted.mlp)
    check.experts(wanted.experts)
    check.loras(wanted.loras, loras)
    toward, away = check.steers(wanted.steer)
    return EncodedInterventions(wanted, toward, away, check.patches(wanted.patch, n_prompt))


def encode_spans(
    spans: Sequence[InterventionSpan], encode: Callable[[Interventions], EncodedInterventions]
) -> EncodedSpans:
    """Return `spans` with each setting encoded. Raises InvalidRequest for positions that do not
    increase, and what `encode` raises."""
    earliest, found = 0, []
    for one in spans:
        if one.first < earliest:
            raise InvalidRequest(
                f"first must be {earliest} or more, because positions must increase, but got "
                f"{one.first}",
                "reached",
            )
        earliest = one.first + 1
        found.append((one.first, encode(one.interventions)))
    return tuple(found)


def check_spans(spans: Sequence[InterventionSpan], interventions: Interventions, last: int) -> None:
    """Check `spans`, under which a text was computed, against `interventions`, which act from
    position `last` on; without spans there is nothing to check. Raises InvalidRequest for a span
    that begins at `last` or later, and for a patch before `last` that is in no span."""
    if not spans:
        return
    if spans[-1].first >= last:
        raise InvalidRequest(
            f"first must be less than {last}, the last position of ids, where reach begins, but "
            f"got {spans[-1].first}",
            "reached",
        )
    acted = {patch for one in spans for patch in one.interventions.patch}
    for patch in interventions.patch:
        if patch.position < last and patch not in acted:
            raise InvalidRequest(
                f"reach begins at position {last}, so it cannot patch the token at "
                f"{patch.position}; put that patch into reached",
                "reach.patch",
            )


def check_no_new_patch(now: Interventions, wanted: Interventions, param: str = "reach") -> None:
    """Raise InvalidRequest for a patch that `now` does not have: its token is computed already."""
    for patch in wanted.patch:
        if patch not in now.patch:
            raise InvalidRequest(
                f"the token at position {patch.position} is computed already, so it cannot be "
                "patched while the run writes; write again from there with the patch",
                f"{param}.patch",
            )


class _Check:
    """Checks the entries of `Interventions`; errors name the field."""

    def __init__(self, sizes: Sizes, encode: Encode, param: str, most: int) -> None:
        self._sizes = sizes
        self._encode = encode
        self._most = most
        self._param = param

    def factors(self, name: str, entries: Iterable[HeadFactor | LayerFactor]) -> None:
        places = []
        for entry in entries:
            self._below(name, "layer", entry.layer, self._sizes.n_layers)
            if isinstance(entry, HeadFactor):
                self._below(name, "head", entry.head, self._sizes.n_heads)
            self._number(name, "factor", entry.factor, FACTORS)
            places.append((entry.layer, getattr(entry, "head", 0)))
        self._once(name, places)

    def experts(self, entries: tuple[ExpertOff, ...]) -> None:
        for entry in entries:
            self._below("experts", "layer", entry.layer, self._sizes.n_layers)
            moe = self._sizes.moe_of(entry.layer)
            if moe is None:
                raise self._refused("experts", f"layer {entry.layer} has no experts")
            self._below("experts", "expert", entry.expert, moe.n_experts)
        self._once("experts", [(entry.layer, entry.expert) for entry in entries])
        for layer, n_off in Counter(entry.layer for entry in entries).items():
            moe = self._sizes.moe_of(layer)
            if moe and moe.n_experts - n_off < moe.experts_per_token:
                raise self._refused(
                    "experts",
                    f"at most {moe.n_experts - moe.experts_per_token} experts of layer {layer} can "
                    f"be off, because each token uses {moe.experts_per_token} of {moe.n_experts}; "
                    f"got {n_off}",
                )

    def loras(self, entries: tuple[LoraStrength, ...], loaded: Collection[str]) -> None:
        for entry in entries:
            if entry.name not in loaded:
                there = f"loaded: {', '.join(loaded)}" if loaded else "none is loaded"
                raise self._refused("loras", f"there is no adapter {entry.name!r:.80}; {there}")
            self._number("loras", "strength", entry.strength, FACTORS)
        self._once("loras", [entry.name for entry in entries])

    def steers(self, steers: tuple[Steer, ...]) -> tuple[tuple[Ids, ...], tuple[Ids, ...]]:
        """Return the ids of the two texts of each steer; () for an empty `away`."""
        self._at_most("steer", len(steers), MAX_STEERS)
        toward, away = [], []
        for steer in steers:
            self._below("steer", "layer", steer.layer, self._sizes.n_layers)
            self._number("steer", "strength", steer.strength, STRENGTHS)
            toward.append(self._text("steer", "toward", steer.toward))
            away.append(self._text("steer", "away", steer.away) if steer.away else ())
        return tuple(toward), tuple(away)

    def patches(self, patches: tuple[Patch, ...], n_prompt: int | None) -> tuple[Ids, ...]:
        """Return the ids of each prompt up to its token."""
        self._at_most("patch", len(patches), MAX_PATCHES)
        self._once("patch", [(patch.layer, patch.position) for patch in patches])
        found = []
        for patch in patches:
            self._below("patch", "layer", patch.layer, self._sizes.n_layers)
            if patch.position < 0 or (n_prompt is not None and patch.position >= n_prompt):
                place = "0 or more" if n_prompt is None else f"from 0 to {n_prompt - 1}"
                raise self._refused("patch", f"position must be {place}, but got {patch.position}")
            ids = self._text("patch", "prompt", patch.prompt)
            if not 0 <= patch.token < len(ids):
                raise self._refused(
                    "patch",
                    f"token must be from 0 to {len(ids) - 1}, because its prompt has {len(ids)} "
                    f"tokens, but got {patch.token}",
                )
            found.append(ids[: patch.token + 1])
        return tuple(found)

    def _text(self, name: str, field: str, text: str) -> Ids:
        if len(text) > MAX_TEXT_CHARS:
            raise self._refused(
                name,
                f"{field} must have 1 to {self._most} tokens, but it has {len(text):,} characters, "
                "too many to tokenise",
            )
        ids = tuple(self._encode(text)) if text else ()
        if not 1 <= len(ids) <= self._most:
            raise self._refused(
                name, f"{field} must have 1 to {self._most} tokens, but it has {len(ids)}"
            )
        return ids

    def _below(self, name: str, field: str, value: Any, n: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n:
            raise self._refused(
                name, f"{field} must be an integer from 0 to {n - 1}, but got {value!r}"
            )

    def _number(self, name: str, field: str, value: Any, ends: tuple[float, float]) -> None:
        number = not isinstance(value, bool) and isinstance(value, int | float)
        if not number or not ends[0] <= value <= ends[1]:  # nor is NaN
            raise self._refused(
                name, f"{field} must be a number from {ends[0]:g} to {ends[1]:g}, but got {value!r}"
            )

    def _at_most(self, name: str, n: int, most: int) -> None:
        if n > most:
            raise self._refused(name, f"{most} entries are taken at most, but got {n}")

    def _once(self, name: str, places: Sequence[object]) -> None:
        for place, n in Counter(places).items():
            if n > 1:
                raise self._refused(name, f"there are two entries for {place}; give one")

    def _refused(self, name: str, why: str) -> InvalidRequest:
        return InvalidRequest(f"{self._param}.{name}: {why}", f"{self._param}.{name}")
