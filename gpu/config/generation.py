"""`generation_config.json`: the sampling settings a model's makers recommend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu.json_object import JsonObject
from gpu.sampling import RANGES


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The sampling settings a model's makers recommend; None where they say nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @classmethod
    def from_folder(cls, folder: str | Path) -> GenerationDefaults:
        """Read `generation_config.json`, if there is one.

        Settings of the draw count only with `do_sample`, as in transformers: without it they are
        left-overs of a greedy model.
        """
        generation = JsonObject.read_optional(Path(folder) / "generation_config.json")

        def number(key: str) -> float | None:
            least, greatest, _ = RANGES[key]
            return generation.number(key, least, greatest) if key in generation else None

        penalty = number("repetition_penalty")
        if not generation.boolean("do_sample", False):
            return cls(repetition_penalty=penalty)
        least, greatest, _ = RANGES["top_k"]
        has_top_k = "top_k" in generation
        return cls(
            temperature=number("temperature"),
            top_k=generation.integer("top_k", int(least), int(greatest)) if has_top_k else None,
            top_p=number("top_p"),
            min_p=number("min_p"),
            repetition_penalty=penalty,
        )
