"""`SamplingParams`, the sampling settings of a request; each field is declared once.

The order of the steps is fixed: biases → repetition penalty → frequency and presence penalty →
temperature → top-k → top-p → min-p → watermark → draw. Biases and penalties are those of vLLM and
OpenAI; the watermark and its place after the filters are those of transformers.
The three filters are thresholds on the scaled logit: a token survives when its scaled logit is at
least the largest of the thresholds, so tokens that tie with a threshold survive with it.

A field of `SamplingParams` is the whole declaration of a setting: its type, its default and a
`Declaration`. The messages of the page, the OpenAI schema, the options of the command line and the
page's controls are built from `SETTINGS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from gpu.errors import InvalidRequest

MAX_SEED = 2**64 - 1
MAX_COUNT = 2**31 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_LOGIT_BIASES = 300
MAX_BIAS = 100.0

GREEDY_BELOW = 1e-4
"""Temperatures below this are greedy: the result is the same, and dividing by them overflows."""

MAX_HASHED = 16
"""Most tokens that the seeding scheme selfhash hashes."""

SeedingScheme = Literal["lefthash", "selfhash"]
"""How the greenlist of a watermark follows from the text, named as in transformers. lefthash: from
the token before; selfhash: for each token, from itself and those before it."""

Stage = Literal["penalty", "temperature", "filter", "watermark"]


@dataclass(frozen=True, slots=True)
class Slider:
    """Range of a slider, where the useful values are, and the distance of its positions."""

    minimum: float
    maximum: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Declaration of a field of `SamplingParams`, in addition to its type and default.

    label     name on the page
    range     smallest and largest value, both allowed
    meaning   what a value means, in a few words: error messages quote it
    help      one sentence for `--help` and the page's tooltip
    live      may change while the text is written
    stage     where the setting changes the distribution; None: it does not. Filters act in the
              order of their fields.
    neutral   value that changes nothing, of a setting that has a stage
    off       value that the page shows as switched off, and the words for it
    slider    None: the page has no slider for it
    """

    label: str
    range: tuple[float, float]
    meaning: str
    help: str
    live: bool = False
    stage: Stage | None = None
    neutral: float | None = None
    off: tuple[float, str] | None = None
    slider: Slider | None = None


class TokenBias(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number that is added to the logit of a token: −100 forbids it, 100 forces it."""

    id: int
    bias: float


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one request.

    temperature         logits are divided by it; 0 takes the most likely token
    top_k               keep the k most likely tokens (0: all)
    top_p               keep the fewest most likely tokens whose probability reaches top_p
                        (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration")
    min_p               drop tokens less likely than min_p × the most likely one
                        (Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling")
    repetition_penalty  logits of tokens already in the context are divided by it when positive,
                        multiplied when negative (Keskar et al. 2019, CTRL)
    frequency_penalty   subtracted from a token's logit each time that the run wrote it
    presence_penalty    subtracted from the logits of tokens that the run wrote
    watermark_bias      added to the logits of the tokens of the greenlist that survive the filters
                        (0: no watermark; Kirchenbauer et al. 2023, "A Watermark for Large Language
                        Models"). transformers calls it `bias`, and the next two as here
    greenlist_ratio     share of the vocabulary that is green after each token
    hashing_key         decides, with the token before, which tokens are green
    selfhash_width      number of tokens that decide whether a token is green, itself the last of
                        them: transformers' `context_width` with `seeding_scheme` "selfhash", of the
                        40 most likely tokens. 0: "lefthash", the token before decides
    seed                None: the engine draws one and reports it
    first_index         number of the seed's random sequence that draws the first token: a run over
                        the first n tokens of another, with first_index n, writes the rest again.
                        Therefore the last `first_index` ids of the request count as written by it.
    max_tokens          largest number of tokens to write
    stop                strings that end the run; never part of the text, not even in part
    ignore_eos          continue past the end-of-sequence token (for benchmarks)
    logit_bias          added to the logits before the penalties, at most one for each token
    """

    temperature: Annotated[
        float,
        Declaration(
            label="temperature",
            range=(0.0, 10.0),
            meaning="0 is greedy",
            help="Divide the logits by this; 0 always takes the most likely token.",
            live=True,
            stage="temperature",
            neutral=1.0,
            off=(0.0, "greedy"),
            slider=Slider(0.0, 2.0, 0.05),
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Declaration(
            label="top-k",
            range=(0, MAX_COUNT),
            meaning="0 keeps every token",
            help="Keep the k most likely tokens; 0 keeps all.",
            live=True,
            stage="filter",
            neutral=0,
            off=(0, "all tokens"),
            slider=Slider(0, 100, 1),
        ),
    ] = 0
    top_p: Annotated[
        float,
        Declaration(
            label="top-p",
            range=(0.0, 1.0),
            meaning="1 keeps every token",
            help="Keep the most likely tokens until their probabilities reach this sum.",
            live=True,
            stage="filter",
            neutral=1.0,
            off=(1.0, "all tokens"),
            slider=Slider(0.0, 1.0, 0.01),
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        Declaration(
            label="min-p",
            range=(0.0, 1.0),
            meaning="0 keeps every token",
            help="Drop tokens less likely than this times the most likely one.",
            live=True,
            stage="filter",
            neutral=0.0,
            off=(0.0, "all tokens"),
            slider=Slider(0.0, 0.5, 0.01),
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Declaration(
            label="repeat penalty",
            range=(0.1, 10.0),
            meaning="1 changes nothing",
            help="Make tokens that are already in the context less likely; 1 changes nothing.",
            live=True,
            stage="penalty",
            neutral=1.0,
            off=(1.0, "none"),
            slider=Slider(1.0, 2.0, 0.05),
        ),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        Declaration(
            label="frequency penalty",
            range=(-2.0, 2.0),
            meaning="0 changes nothing",
            help="Lower a token's logit by this each time it was written; 0 changes nothing.",
            live=True,
            stage="penalty",
            neutral=0.0,
            off=(0.0, "none"),
            slider=Slider(-2.0, 2.0, 0.05),
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        Declaration(
            label="presence penalty",
            range=(-2.0, 2.0),
            meaning="0 changes nothing",
            help="Lower the logits of tokens that were written by this; 0 changes nothing.",
            live=True,
            stage="penalty",
            neutral=0.0,
            off=(0.0, "none"),
            slider=Slider(-2.0, 2.0, 0.05),
        ),
    ] = 0.0
    watermark_bias: Annotated[
        float,
        Declaration(
            label="watermark",
            range=(0.0, 20.0),
            meaning="0 writes no watermark",
            help="Add this to the logits of a watermark's green tokens; 0 writes no watermark.",
            live=True,
            stage="watermark",
            neutral=0.0,
            off=(0.0, "none"),
            slider=Slider(0.0, 10.0, 0.5),
        ),
    ] = 0.0
    greenlist_ratio: Annotated[
        float,
        Declaration(
            label="green share",
            range=(0.01, 0.99),
            meaning="the share of the vocabulary that a watermark favours",
            help="Share of the vocabulary that a watermark favours after each token.",
            live=True,
            slider=Slider(0.05, 0.95, 0.05),
        ),
    ] = 0.25
    hashing_key: Annotated[
        int,
        Declaration(
            label="watermark key",
            range=(1, MAX_COUNT),
            meaning="whoever has the key can find the watermark",
            help="Key of the watermark; a text is checked with the key it was written with.",
            live=True,
        ),
    ] = 15485863
    selfhash_width: Annotated[
        int,
        Declaration(
            label="self-hash",
            range=(0, MAX_HASHED),
            meaning="0 is lefthash: the token before decides which tokens are green",
            help="Hash each likely token with those before it, this many in all, to decide whether "
            "it is green, which takes about 12 ms a token on two CPU cores; 0 hashes the token "
            "before alone.",
            live=True,
            off=(0, "lefthash"),
            slider=Slider(0, 8, 1),
        ),
    ] = 0
    seed: Annotated[
        int | None,
        Declaration(
            label="seed",
            range=(0, MAX_SEED),
            meaning="the same seed gives the same text",
            help="Seed of the random numbers; the same seed gives the same text.",
        ),
    ] = None
    first_index: Annotated[
        int,
        Declaration(
            label="first index",
            range=(0, MAX_COUNT),
            meaning="0 begins with the seed's first number",
            help="Which random number of the seed draws the first token.",
        ),
    ] = 0
    max_tokens: Annotated[
        int,
        Declaration(
            label="max tokens",
            range=(1, MAX_COUNT),
            meaning="the largest number of tokens to write",
            help="Largest number of tokens to write.",
            live=True,
        ),
    ] = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[TokenBias, ...] = ()

    def validate(self) -> SamplingParams:
        """Return self, or raise `InvalidRequest` naming the field, the range and the value, of all
        settings that are out of range."""
        faults = []
        for setting in SETTINGS:
            value = getattr(self, setting.name)
            if not (setting.optional and value is None):
                faults += setting.faults(value)
        if faults:
            raise InvalidRequest("; ".join(map(str, faults)), faults[0].param)
        _check_stop(self.stop)
        _check_biases(self.logit_bias)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest("ignore_eos must be true or false", "ignore_eos")
        return self

    @property
    def is_greedy(self) -> bool:
        """Return whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalty(self) -> bool:
        """Return whether the tokens of the text change the probabilities of the next one."""
        return any(getattr(self, s.name) != s.declared.neutral for s in PENALTIES)

    def updated(self, changes: dict[str, Any]) -> SamplingParams:
        """Return a validated copy with `changes`; only the settings in `LIVE` may change."""
        for name in changes:
            if name not in LIVE:
                raise InvalidRequest(
                    f"{name} cannot change while the text is written; these can: {', '.join(LIVE)}",
                    name,
                )
        return msgspec.structs.replace(self, **changes).validate()


@dataclass(frozen=True, slots=True)
class SamplingSetting:
    """A numeric setting of `SamplingParams` as its field declares it.

    optional  None is allowed as well, and means that the engine chooses
    """

    name: str
    type: type[int] | type[float]
    optional: bool
    default: float | None
    declared: Declaration

    @property
    def is_integer(self) -> bool:
        return self.type is int

    def check(self, value: Any) -> None:
        """Raise `InvalidRequest` unless `value` has the type and lies in the range."""
        for fault in self.faults(value):
            raise fault

    def faults(self, value: Any) -> list[InvalidRequest]:
        """Return the error of a value of another type or out of the range, if it is one."""
        minimum, maximum = self.declared.range
        right_type = isinstance(value, int if self.is_integer else int | float)
        # NaN fails the comparison as well.
        if isinstance(value, bool) or not right_type or not minimum <= value <= maximum:
            kind, digits = ("an integer", ",") if self.is_integer else ("a number", "g")
            fault = InvalidRequest(
                f"{self.name} must be {kind} from {minimum:{digits}} to {maximum:{digits}} "
                f"({self.declared.meaning}), but got {value!r}",
                self.name,
            )
            return [fault]
        return []


def _declared_settings() -> tuple[SamplingSetting, ...]:
    hints = get_type_hints(SamplingParams, include_extras=True)
    found = []
    for field in msgspec.structs.fields(SamplingParams):
        hint, *extras = get_args(hints[field.name]) or (None,)
        declared = next((extra for extra in extras if isinstance(extra, Declaration)), None)
        if declared is not None:
            kinds = get_args(hint) or (hint,)
            found.append(
                SamplingSetting(
                    field.name,
                    int if int in kinds else float,
                    type(None) in kinds,
                    field.default,
                    declared,
                )
            )
    return tuple(found)


SETTINGS = _declared_settings()
"""The numeric settings, in the order of `SamplingParams`."""

SETTING_BY_NAME = {setting.name: setting for setting in SETTINGS}

PENALTIES = tuple(setting for setting in SETTINGS if setting.declared.stage == "penalty")
FILTERS = tuple(setting for setting in SETTINGS if setting.declared.stage == "filter")

LIVE = tuple(setting.name for setting in SETTINGS if setting.declared.live)
"""The settings that may change while the text is being written."""

DISTRIBUTION = tuple(setting.name for setting in SETTINGS if setting.declared.stage)
"""The settings that change the distribution: those of `gpu.step.Sample`."""


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"stop may hold {MAX_STOP_STRINGS} strings at most, but got {len(stop)}", "stop"
        )
    for text in stop:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_CHARS:
            raise InvalidRequest(
                f"each stop string must have 1 to {MAX_STOP_CHARS} characters, but got {text!r}",
                "stop",
            )


def _check_biases(biases: tuple[TokenBias, ...]) -> None:
    if len(biases) > MAX_LOGIT_BIASES:
        raise InvalidRequest(
            f"logit_bias may name {MAX_LOGIT_BIASES} tokens at most, but got {len(biases)}",
            "logit_bias",
        )
    named: set[int] = set()
    for each in biases:
        if each.id in named:
            raise InvalidRequest(f"logit_bias names token {each.id} twice", "logit_bias")
        named.add(each.id)
        if not -MAX_BIAS <= each.bias <= MAX_BIAS:  # NaN fails the comparison as well
            raise InvalidRequest(
                f"logit_bias of token {each.id} must be a number from {-MAX_BIAS:g} to "
                f"{MAX_BIAS:g}, but got {each.bias!r}",
                "logit_bias",
            )
