"""PEFT's adapter_config.json: the modules that an adapter changes, and their ranks and scales."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject, shown
from gpu.lora.name_patterns import NamePattern, NamePatterns

CONFIG = "adapter_config.json"
MAX_RANK = 512
MAX_ALPHA = 1e6
UNSUPPORTED = (
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
"""Settings that make an adapter more than products of two matrices."""

BASE_PRESERVING_INITS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base unchanged. Others initialise the adapter from
the base's matrices, so that it only fits the modified base."""


@dataclass(frozen=True, slots=True)
class ModulePattern:
    """Modules selected by a regular expression of their whole names, or by the ends of their
    names."""

    pattern: NamePattern | None = None
    ends: tuple[str, ...] = ()

    def __contains__(self, module: str) -> bool:
        if self.pattern:
            return module in self.pattern
        return any(module == end or module.endswith(f".{end}") for end in self.ends)


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Settings of an adapter.

    r, alpha            for modules that match no key of rank_pattern or alpha_pattern; a key is a
                        regular expression for the end of the name
    use_rslora          divide by √rank instead of the rank (rsLoRA, Kalajdzievski 2023)
    target_modules      modules with an adapter; None: all linear ones
    exclude_modules     modules without one
    layers_to_transform layers with an adapter; None: all
    target_parameters   parameters with an adapter, in addition to modules
    peft_version        version of PEFT that saved it; "" before 0.18
    """

    r: int
    alpha: float
    use_rslora: bool
    target_modules: ModulePattern | None
    exclude_modules: ModulePattern
    layers_to_transform: frozenset[int] | None
    target_parameters: ModulePattern = field(default_factory=ModulePattern)
    peft_version: str = ""
    rank_pattern: tuple[tuple[NamePattern, int], ...] = ()
    alpha_pattern: tuple[tuple[NamePattern, float], ...] = ()

    @classmethod
    def read(cls, folder: Path, names: Collection[str] = ()) -> LoraConfig:
        """Read the config in `folder`. `names`: all modules and parameters that it will be asked
        about. Raises ModelError for a file that is missing or damaged, and for other kinds of
        adapters."""
        fields = JsonObject.read(folder / CONFIG)
        patterns = NamePatterns(names)
        _expect_lora(fields)
        targets = fields.get("target_modules")
        by_name = None if targets == "all-linear" else _modules(fields, "target_modules", patterns)
        found = cls(
            r=fields.integer("r", 1, MAX_RANK, 8),
            alpha=fields.number("lora_alpha", -MAX_ALPHA, MAX_ALPHA, 8),
            use_rslora=fields.boolean("use_rslora", False),
            target_modules=by_name,
            exclude_modules=_modules(fields, "exclude_modules", patterns),
            layers_to_transform=_layers(fields),
            target_parameters=_modules(fields, "target_parameters", patterns),
            peft_version=fields.string("peft_version", ""),
            rank_pattern=_patterns(
                fields, "rank_pattern", patterns, lambda o, key: o.integer(key, 1, MAX_RANK)
            ),
            alpha_pattern=_patterns(
                fields,
                "alpha_pattern",
                patterns,
                lambda o, key: o.number(key, -MAX_ALPHA, MAX_ALPHA),
            ),
        )
        patterns.resolve()
        return found

    def adapts(self, module: str, layer: int) -> bool:
        """Return whether a module of the base has an adapter."""
        if module in self.exclude_modules:
            return False
        by_name = self.target_modules is None or self.target_modules.pattern is None
        if (
            by_name
            and self.layers_to_transform is not None
            and layer not in self.layers_to_transform
        ):
            return False
        return self.target_modules is None or module in self.target_modules

    def rank(self, module: str) -> int:
        return next((rank for key, rank in self.rank_pattern if module in key), self.r)

    def scale(self, module: str) -> float:
        """Return α / r, the factor of the product of the two matrices."""
        rank = self.rank(module)
        alpha = next((alpha for key, alpha in self.alpha_pattern if module in key), self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def _expect_lora(fields: JsonObject) -> None:
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"{fields.where}: peft_type is {shown(kind)}; only LORA adapters are supported"
        )
    for key in UNSUPPORTED:
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
    init = fields.get("init_lora_weights")
    if init is not None and init not in BASE_PRESERVING_INITS:
        raise ModelError(
            f"{fields.where}: init_lora_weights is {shown(init)}, which changes the base as well; "
            "convert the adapter to one of the unchanged base "
            "(path_initial_model_for_weight_conversion of PEFT)"
        )


def _modules(fields: JsonObject, key: str, patterns: NamePatterns) -> ModulePattern:
    value = fields.get(key)
    if isinstance(value, str) and value:
        return ModulePattern(patterns.compile(fields, key, value))
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.error(key, "a list of names of modules, or a regular expression")
    return ModulePattern(ends=tuple(names))


def _layers(fields: JsonObject) -> frozenset[int] | None:
    value = fields.get("layers_to_transform")
    layers = [value] if type(value) is int else value or []
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise fields.error("layers_to_transform", "a list of numbers of layers")
    return frozenset(layers) or None


def _patterns(
    fields: JsonObject, key: str, patterns: NamePatterns, read: Any
) -> tuple[tuple[NamePattern, Any], ...]:
    """Return (pattern, value) pairs; patterns match module names as PEFT's `get_pattern_key`
    does."""
    of = fields.object(key)
    return tuple((patterns.compile_end(of, name), read(of, name)) for name in of.values)
