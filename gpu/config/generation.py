"""The sampling settings that a model's makers recommend: `generation_config.json`, or the metadata
of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpu.files.json_object import JsonObject
from gpu.gguf.file import is_gguf, open_gguf
from gpu.gguf.metadata import as_in_json
from gpu.sampling_params import SETTING_BY_NAME

FILE = "generation_config.json"
IN_GGUF = "general.sampling."
GGUF_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""llama.cpp's names, after `IN_GGUF`, of the settings of `generation_config.json`."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling settings that a model's makers recommend; None: no recommendation."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def says_how_to_draw(self) -> bool:
        """Whether a temperature or a filter is recommended."""
        drawn = (self.temperature, self.top_k, self.top_p, self.min_p)
        return any(value is not None for value in drawn)

    def or_those_of(self, card: GenerationDefaults | None) -> GenerationDefaults:
        """Return these settings, or those of the model's card if these do not say how to draw."""
        return self if card is None or self.says_how_to_draw else card

    @classmethod
    def from_folder(cls, folder: str | Path) -> GenerationDefaults:
        """Read `generation_config.json`, if there is one, or what a GGUF file has of it.

        Without `do_sample` only the repetition penalty is taken, as in transformers: the other
        settings are then defaults that a greedy model never uses. A GGUF file has no `do_sample`:
        llama.cpp takes all settings.
        """
        if is_gguf(folder):
            file = open_gguf(folder)
            named = {name: file.values.get(f"{IN_GGUF}{key}") for key, name in GGUF_KEYS.items()}
            values = {name: as_in_json(value) for name, value in named.items()}
            return cls.of({**values, "do_sample": True}, f"{file.path}: {IN_GGUF}*")
        found = JsonObject.read_optional(Path(folder) / FILE)
        return cls.of(found.values, found.where)

    @classmethod
    def of(cls, values: dict[str, Any], where: str = FILE) -> GenerationDefaults:
        """Check a generation_config.json that has been read."""
        generation = JsonObject(where, values)

        def read(name: str) -> Any:
            if name not in generation:
                return None
            if name == "top_k" and values[name] == -1:
                return 0  # as in vLLM, −1 keeps all tokens
            setting = SETTING_BY_NAME[name]
            minimum, maximum = setting.declared.range
            if setting.is_integer:
                return generation.integer(name, int(minimum), int(maximum))
            return generation.number(name, minimum, maximum)

        penalty = read("repetition_penalty")
        if not generation.boolean("do_sample", False):
            return cls(repetition_penalty=penalty)
        return cls(**{field.name: read(field.name) for field in fields(cls)})
