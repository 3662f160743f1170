"""Strict reader of a model folder's JSON files: errors name the file and the key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu.errors import ModelError
from gpu.files.regular_file import is_there, read_regular

MAX_BYTES = 32 << 20
"""Three times the largest real file, an index of 90,000 tensors; keeps a stray file from filling
the memory."""


class JsonObject:
    """One JSON object and its file.

    Getters check type and range and raise ModelError naming the file, the key, what was expected
    and what came. A key with the value null counts as absent. An absent key gives `default`;
    without a default it raises.
    """

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where = where
        self.values = values

    @classmethod
    def read(cls, path: Path) -> JsonObject:
        """Parse the file at `path`, which must contain one JSON object."""
        values = read_json(path)
        if not isinstance(values, dict):
            raise ModelError(f"{path}: expected a JSON object, but got {shown(values)}")
        return cls(str(path), values)

    @classmethod
    def read_optional(cls, path: Path) -> JsonObject:
        """Parse the file at `path`; a missing file counts as an empty object."""
        return cls.read(path) if is_there(path) else cls(str(path), {})

    def renamed(self, keys: Mapping[str, str]) -> JsonObject:
        """Return the object with renamed keys; `keys` maps new names to those of the file."""
        return JsonObject(self.where, self.values | {k: self.get(old) for k, old in keys.items()})

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str) -> Any:
        """Return the value unchecked, None if absent."""
        return self.values.get(key)

    def error(self, key: str, expected: str) -> ModelError:
        """Return the error for a value that is not `expected`."""
        if key not in self:
            return ModelError(f"{self.where}: {key} is missing; it must be {expected}")
        return ModelError(
            f"{self.where}: {key} must be {expected}, but is {shown(self.values[key])}"
        )

    def integer(self, key: str, least: int, greatest: int, default: int | None = None) -> int:
        value = self._value(key, default)
        if type(value) is not int or not least <= value <= greatest:
            raise self.error(key, f"an integer from {least} to {greatest}")
        return value

    def number(
        self, key: str, least: float, greatest: float, default: float | None = None
    ) -> float:
        value = self._value(key, default)
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        if not ok or not least <= value <= greatest:  # NaN compares false
            raise self.error(key, f"a number from {least:g} to {greatest:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, "one of " + ", ".join(choices))
        return str(value)

    def object(self, key: str) -> JsonObject:
        """Return the object under `key`; empty if absent."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return JsonObject(f"{self.where}: {key}", value)

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        return default if value is None else value


def read_json(path: Path) -> Any:
    """Parse a UTF-8 JSON file. Raises ModelError if it is missing, not a regular file, too large,
    or not JSON."""
    if not is_there(path):
        raise ModelError(
            f"{path}: not found; a model folder holds config.json, tokenizer.json and *.safetensors"
        )
    return parse_json(read_regular(path, MAX_BYTES), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """Parse UTF-8 JSON. Duplicate keys are refused, since one of the values would be lost."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ModelError(f"{where}: not usable JSON: nested too deeply") from None
    except ValueError as error:
        raise ModelError(f"{where}: not valid JSON: {error}") from None


def shown(value: Any) -> str:
    """Return the value as shortened text for an error message."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"key {shown(counts.most_common(1)[0][0])} is given twice")
    return values
