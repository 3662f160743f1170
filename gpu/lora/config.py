"""adapter_config.json of PEFT: what an adapter changes, and how strongly."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.errors import ModelError
from gpu.json_object import JsonObject, shown

CONFIG = "adapter_config.json"
MAX_RANK = 512
MOST_ALPHA = 1e6
MAX_PATTERN = 1000
"""Characters of a regular expression."""
MAX_REPEATS = 3
"""Of a regular expression, and no group repeated: matching a name takes steps of its length to this
power at most. A pattern without bounds could keep the process busy for ever."""

REFUSED = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "layer_replication",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
)
"""What makes more of an adapter, or something else, than products of two matrices."""

KEEPS_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Ways of `init_lora_weights` that leave the base as it is. Others take from its matrices what they
begin an adapter with, so that the adapter fits no base but the one they leave."""


@dataclass(frozen=True, slots=True)
class Modules:
    """Modules by a regular expression of their whole names, or by how their names end."""

    pattern: re.Pattern[str] | None = None
    ends: tuple[str, ...] = ()

    def __contains__(self, module: str) -> bool:
        if self.pattern:
            return self.pattern.fullmatch(module) is not None
        return any(module == end or module.endswith(f".{end}") for end in self.ends)


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """r, alpha    of modules that the patterns do not name: those of which a key, a regular
                expression, matches the end of the name
    root        divide by √rank, not by the rank (rsLoRA, Kalajdzievski 2023)
    targets     modules that have an adapter, None: all linear ones; but for `exclude`, and only
                those of `layers`, if it is not None
    parameters  that have one, beside these modules
    version     of PEFT that saved it, "" before 0.18
    """

    r: int
    alpha: float
    root: bool
    targets: Modules | None
    exclude: Modules
    layers: frozenset[int] | None
    parameters: Modules = field(default_factory=Modules)
    version: str = ""
    ranks: tuple[tuple[re.Pattern[str], int], ...] = ()
    alphas: tuple[tuple[re.Pattern[str], float], ...] = ()

    @classmethod
    def read(cls, folder: Path) -> LoraConfig:
        """Raises ModelError for a file that is missing or damaged, and for adapters of other
        kinds, by name."""
        fields = JsonObject.read(folder / CONFIG)
        _expect_lora(fields)
        targets = fields.get("target_modules")
        by_name = None if targets == "all-linear" else _modules(fields, "target_modules")
        return cls(
            r=fields.integer("r", 1, MAX_RANK, 8),
            alpha=fields.number("lora_alpha", -MOST_ALPHA, MOST_ALPHA, 8),
            root=fields.boolean("use_rslora", False),
            targets=by_name,
            exclude=_modules(fields, "exclude_modules"),
            layers=_layers(fields),
            parameters=_modules(fields, "target_parameters"),
            version=fields.string("peft_version", ""),
            ranks=_patterns(fields, "rank_pattern", lambda o, key: o.integer(key, 1, MAX_RANK)),
            alphas=_patterns(
                fields, "alpha_pattern", lambda o, key: o.number(key, -MOST_ALPHA, MOST_ALPHA)
            ),
        )

    def adapts(self, module: str, layer: int) -> bool:
        """Has a module of the base, by its name there, an adapter?"""
        if module in self.exclude:
            return False
        by_name = self.targets is None or self.targets.pattern is None
        if by_name and self.layers is not None and layer not in self.layers:
            return False
        return self.targets is None or module in self.targets

    def rank(self, module: str) -> int:
        return next((rank for key, rank in self.ranks if key.match(module)), self.r)

    def scale(self, module: str) -> float:
        """α / r, what the product of the two matrices is multiplied by."""
        rank = self.rank(module)
        alpha = next((alpha for key, alpha in self.alphas if key.match(module)), self.alpha)
        return alpha / (math.sqrt(rank) if self.root else rank)


def _expect_lora(fields: JsonObject) -> None:
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"{fields.where}: peft_type is {shown(kind)}; only LORA adapters are supported"
        )
    for key in REFUSED:
        if value := fields.get(key):
            raise ModelError(
                f"{fields.where}: {key} is {shown(value)}, which is not supported; train the "
                "adapter without it"
            )
    if (bias := fields.get("bias")) not in (None, "none"):
        raise ModelError(
            f'{fields.where}: bias is {shown(bias)}, but only "none" is supported: biases of the '
            "base cannot be switched for each request"
        )
    begun = fields.get("init_lora_weights")
    if begun is not None and begun not in KEEPS_BASE:
        raise ModelError(
            f"{fields.where}: init_lora_weights is {shown(begun)}, which changes the base as well; "
            "save the adapter as one of the unchanged base (path_initial_model_for_weight_"
            "conversion of PEFT)"
        )


def _modules(fields: JsonObject, key: str) -> Modules:
    value = fields.get(key)
    if isinstance(value, str) and value:
        return Modules(_compiled(fields, key, value))
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.error(key, "a list of names of modules, or a regular expression")
    return Modules(ends=tuple(names))


def _layers(fields: JsonObject) -> frozenset[int] | None:
    value = fields.get("layers_to_transform")
    layers = [value] if type(value) is int else value or []
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise fields.error("layers_to_transform", "a list of numbers of layers")
    return frozenset(layers) or None


def _patterns(fields: JsonObject, key: str, read: Any) -> tuple[tuple[re.Pattern[str], Any], ...]:
    """Of modules, what `read` reads of each: as `get_pattern_key` of PEFT matches them."""
    of = fields.object(key)
    whole = r"(.*\.)?({})$"
    return tuple((_compiled(of, name, name, whole), read(of, name)) for name in of.values)


def _compiled(fields: JsonObject, key: str, pattern: str, whole: str = "{}") -> re.Pattern[str]:
    """`pattern` in the place of {} in `whole`."""
    repeats = len(re.findall(r"[*+{]", pattern))
    if len(pattern) > MAX_PATTERN or repeats > MAX_REPEATS or re.search(r"\)[*+{]", pattern):
        raise fields.error(
            key,
            f"a regular expression of {MAX_PATTERN} characters and {MAX_REPEATS} repetitions at "
            "most, none of them of a group",
        )
    try:
        return re.compile(whole.replace("{}", pattern))
    except (re.error, RecursionError, OverflowError):
        raise fields.error(key, "a regular expression") from None
