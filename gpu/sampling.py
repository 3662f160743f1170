"""How the next token is chosen: the settings of a request, validated once at the edge.

The order is fixed: repetition penalty → temperature → top-k → top-p → min-p → draw. The three
filters are all thresholds on the same number, so a token survives when its scaled logit is at
least the largest of them; tokens that tie with a threshold survive with it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gpu.errors import InvalidRequest

MAX_SEED = 2**64 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256

# field -> (least, greatest, what it does); both ends are allowed.
RANGES: dict[str, tuple[float, float, str]] = {
    "temperature": (0.0, 10.0, "0 is greedy"),
    "top_k": (0, 2**31 - 1, "0 keeps every token"),
    "top_p": (0.0, 1.0, "1 keeps every token"),
    "min_p": (0.0, 1.0, "0 keeps every token"),
    "repetition_penalty": (0.1, 10.0, "1 changes nothing"),
    "seed": (0, MAX_SEED, "the same seed gives the same text"),
    "first_index": (0, 2**31 - 1, "0 begins with the seed's first number"),
    "max_tokens": (1, 2**31 - 1, "tokens to write at most"),
}
INTEGERS = frozenset({"top_k", "seed", "first_index", "max_tokens"})
LIVE = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens")
"""The settings that may change while the text is being written."""


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
    seed                None: the engine draws one and reports it
    first_index         token i of the run is drawn with the seed's number first_index + i: a run
                        over the first n tokens of another, with n here, writes the rest of it again
    max_tokens          tokens to write at most
    stop                text that ends the run; never shown, not even in part
    ignore_eos          write on past the end-of-sequence token (for benchmarks)
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    first_index: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def validate(self) -> SamplingParams:
        """Return self, or raise `InvalidRequest` naming the field, the range and the value."""
        for name in RANGES:
            value = getattr(self, name)
            if not (name == "seed" and value is None):
                _check(name, value)
        _check_stop(self.stop)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest("ignore_eos must be true or false", "ignore_eos")
        return self

    def updated(self, changes: dict[str, Any]) -> SamplingParams:
        """A copy with `changes` applied and validated; only the fields in `LIVE` may change."""
        for name in changes:
            if name not in LIVE:
                raise InvalidRequest(
                    f"{name} cannot change while the text is written; these can: {', '.join(LIVE)}",
                    name,
                )
        return msgspec.structs.replace(self, **changes).validate()


def _check(name: str, value: Any) -> None:
    least, greatest, meaning = RANGES[name]
    kind = "an integer" if name in INTEGERS else "a number"
    expected = f"{name} must be {kind} from {least:g} to {greatest:g} ({meaning})"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{expected}, but got {value!r}", name)
    if name in INTEGERS and not isinstance(value, int):
        raise InvalidRequest(f"{expected}, but got {value!r}", name)
    if not least <= value <= greatest:  # NaN is not, either
        raise InvalidRequest(f"{expected}, but got {value!r}", name)


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
