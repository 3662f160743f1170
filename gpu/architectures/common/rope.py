"""Rotary position embeddings and the scalings (linear, llama3, YaRN, longrope) that let a model
read texts longer than those it was first trained on: frequencies by config.
`gpu.models.rope_tables` makes the tables of cosines and sines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject

ROPE_SCALINGS = ("default", "linear", "llama3", "dynamic", "yarn", "longrope")
DEFAULT_THETA = 10000.0
MAX_CONTEXT = 2**26

Frequencies = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, "RoFormer").

    theta             base of the wavelengths
    scaling           an entry of `ROPE_SCALINGS`
    factor            linear: positions are divided by it; llama3, yarn: long wavelengths are
                      multiplied by it; dynamic: no effect, since it acts past the model's own
                      context, where texts end here
    low_freq_factor, high_freq_factor
                      llama3: wavelengths longer than original_context / low_freq_factor are
                      stretched, those shorter than original_context / high_freq_factor stay as
                      they are, those between are blended
    original_context  llama3, yarn, longrope: positions of the first training
    beta_fast, beta_slow
                      yarn: pairs that rotate more than beta_fast times in original_context stay as
                      they are, those that rotate less than beta_slow times are stretched, those
                      between are blended; truncate rounds the two borders to whole pairs
    attention_factor  yarn, longrope: factor of rotated queries and keys
    short_factors, long_factors
                      longrope: factors of each wavelength, for contexts up to original_context and
                      for longer ones
    """

    theta: float = DEFAULT_THETA
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    @property
    def stretched_context(self) -> int:
        """Positions that YaRN stretches those of the first training to; 0: another scaling."""
        return int(self.factor * self.original_context) if self.scaling == "yarn" else 0

    def inv_freq(self, rotary_dim: int, context: int | None = None) -> Frequencies:
        """Return float64 (rotary_dim / 2,): the radians each pair rotates per position, in an
        engine with this `context` (None: longer than original_context).

        The llama3 blend is that of Meta's llama-models, `apply_scaling` in models/llama3/model.py;
        yarn is Peng et al. 2023 ("YaRN", 3.2); longrope is Ding et al. 2024, its factors chosen
        once by the context, because cached keys keep their rotation.
        """
        inv_freq = self.theta ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
        if self.scaling == "linear":
            return inv_freq / self.factor
        if self.scaling == "llama3":
            turns = self.original_context * inv_freq / (2 * math.pi)
            kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            return self._blended(inv_freq, np.clip(kept, 0.0, 1.0))
        if self.scaling == "yarn":
            return self._blended(inv_freq, 1.0 - self._yarn_ramp(rotary_dim))
        if self.scaling == "longrope":
            is_short = context is not None and context <= self.original_context
            factors = self.short_factors if is_short else self.long_factors
            stretched: Frequencies = inv_freq / np.array(factors)
            return stretched
        return inv_freq

    def _blended(self, inv_freq: Frequencies, kept: Frequencies) -> Frequencies:
        """Blend each pair: `kept` 1 stays as it was, 0 is stretched by the factor."""
        blend: Frequencies = kept * inv_freq + (1 - kept) * inv_freq / self.factor
        return blend

    def _yarn_ramp(self, rotary_dim: int) -> Frequencies:
        """Return for each pair 0 (kept) to 1 (stretched)."""

        def correction_dim(times: float) -> float:
            turns = self.original_context / (times * 2 * math.pi)
            return rotary_dim * math.log(turns) / (2 * math.log(self.theta))

        low, high = correction_dim(self.beta_fast), correction_dim(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        width = high - low or 0.001
        ramp: Frequencies = np.clip((np.arange(rotary_dim // 2) - low) / width, 0.0, 1.0)
        return ramp


def read_rope(config: JsonObject, context: int, rotary_dim: int, theta: float) -> RopeConfig:
    """Read a whole config.json in both spellings: `rope_parameters`, and the older `rope_theta`
    beside `rope_scaling`. `theta`: the default."""
    if "rope_parameters" in config and "rope_scaling" in config:
        raise ModelError(f"{config.where}: has both rope_parameters and rope_scaling; keep one")
    rope = config.object("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    theta = config.number("rope_theta", 1.0, 1e12, theta)
    return read_scaling(rope, config, context, rotary_dim, theta)


def read_scaling(
    rope: JsonObject, config: JsonObject, context: int, rotary_dim: int, theta: float
) -> RopeConfig:
    """Read the object that holds the scaling, which is part of `config`."""
    theta = rope.number("rope_theta", 1.0, 1e12, theta)
    key = "rope_type" if "rope_type" in rope else "type"
    scaling = rope.choice(key, (*ROPE_SCALINGS, "su"), "default")
    if scaling == "default":
        return RopeConfig(theta)
    if scaling in ("longrope", "su"):
        return _longrope(rope, config, context, rotary_dim, theta)
    factor = rope.number("factor", 1.0, 1e6)
    if scaling in ("linear", "dynamic"):
        return RopeConfig(theta, scaling, factor)
    if scaling == "yarn":
        return _yarn(rope, context, theta, factor)
    return _llama3(rope, context, theta, factor)


def _llama3(rope: JsonObject, context: int, theta: float, factor: float) -> RopeConfig:
    low = rope.number("low_freq_factor", 1e-6, 1e6)
    high = rope.number("high_freq_factor", 1e-6, 1e6)
    if not low < high:
        raise rope.error("high_freq_factor", f"greater than low_freq_factor, which is {low:g}")
    original = rope.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context)
    return RopeConfig(theta, "llama3", factor, low, high, original)


def _yarn(rope: JsonObject, context: int, theta: float, factor: float) -> RopeConfig:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0

    m, m_all = (rope.number(key, 0.0, 1e3, 0.0) for key in ("mscale", "mscale_all_dim"))
    attention = scale(m) / scale(m_all) if m and m_all else scale(1.0)
    return RopeConfig(
        theta,
        "yarn",
        factor,
        original_context=rope.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context),
        beta_fast=rope.number("beta_fast", 1e-6, 1e6, 32.0),
        beta_slow=rope.number("beta_slow", 1e-6, 1e6, 1.0),
        truncate=rope.boolean("truncate", True),
        attention_factor=rope.number("attention_factor", 1e-3, 1e3, attention),
    )


def _longrope(
    rope: JsonObject, config: JsonObject, context: int, rotary_dim: int, theta: float
) -> RopeConfig:
    key = "original_max_position_embeddings"
    place = rope if key in rope else config
    original = place.integer(key, 2, MAX_CONTEXT, context)
    factor = rope.number("factor", 1e-6, 1e6, context / original)
    attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeConfig(
        theta,
        "longrope",
        factor,
        original_context=original,
        attention_factor=rope.number("attention_factor", 1e-3, 1e3, attention),
        short_factors=_factors(rope, "short_factor", rotary_dim),
        long_factors=_factors(rope, "long_factor", rotary_dim),
    )


def _factors(rope: JsonObject, key: str, rotary_dim: int) -> tuple[float, ...]:
    n, value = rotary_dim // 2, rope.get(key)
    is_list = isinstance(value, list) and len(value) == n
    if not is_list or not all(type(x) in (int, float) and 1e-6 <= x <= 1e6 for x in value):
        raise rope.error(key, f"a list of {n} numbers above 0, one for each rotary pair")
    return tuple(float(x) for x in value)
