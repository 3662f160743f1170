"""Metadata of a GGUF file, read strictly, with keys relative to its architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject
from gpu.gguf.file import GgufFile

MAX_HEADS = 4096
MAX_HEAD_DIM = 4096


def as_in_json(value: Any) -> Any:
    """Return a value as config.json would have it: a float32 becomes the shortest decimal that
    rounds to it."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


class Metadata:
    """Typed access to the keys `ARCH.…`: getters take the part after the dot.

    As the getters of `JsonObject`, they raise ModelError for a value of the wrong type or range.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.arch = str(file.values.get("general.architecture"))
        self.all = JsonObject(f"{file.path}: metadata", dict(file.values))

    def __contains__(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.all

    def get(self, key: str) -> Any:
        """Return one value as `as_in_json` does. Raises ModelError for an array."""
        if self.array(key) is not None:
            raise self.error(key, "one value")
        return as_in_json(self.all.get(f"{self.arch}.{key}"))

    def array(self, key: str) -> Sequence[Any] | npt.NDArray[Any] | None:
        """Return a list or array; None if the value is single or missing."""
        value = self.all.get(f"{self.arch}.{key}")
        return value if isinstance(value, list | np.ndarray) else None

    def integer(self, key: str, least: int, greatest: int, default: int | None = None) -> int:
        return self.all.integer(f"{self.arch}.{key}", least, greatest, default)

    def number(
        self, key: str, least: float, greatest: float, default: float | None = None
    ) -> float:
        found = self.all.number(f"{self.arch}.{key}", least, greatest, default)
        return float(as_in_json(found)) if key in self else found

    def boolean(self, key: str, default: bool) -> bool:
        return self.all.boolean(f"{self.arch}.{key}", default)

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        return self.all.choice(f"{self.arch}.{key}", choices, default)

    def error(self, key: str, expected: str) -> ModelError:
        return self.all.error(f"{self.arch}.{key}", expected)

    # ---- shared by several readers ----------------------------------------------------------

    def has_tensor(self, end: str) -> bool:
        """Return whether a tensor's name ends with `end`."""
        return any(name.endswith(end) for name in self.file.tensors)

    def shape(self, name: str, n_dims: int) -> tuple[int, ...]:
        """Return the shape of a required tensor. Raises ModelError if it is missing or has another
        number of dimensions."""
        tensor = self.file.tensors.get(name)
        if tensor is None or len(tensor.shape) != n_dims:
            raise ModelError(
                f"{self.file.path}: expected a tensor {name} of {n_dims} dimensions, but it has "
                "none; use a file with a whole model"
            )
        return tensor.shape

    @property
    def n_heads(self) -> int:
        return self.integer("attention.head_count", 1, MAX_HEADS)

    @property
    def n_kv_heads(self) -> int:
        return self.integer("attention.head_count_kv", 1, MAX_HEADS, self.n_heads)

    @property
    def head_dim(self) -> int:
        width = self.shape("token_embd.weight", 2)[1]
        found = self.integer("attention.key_length", 1, MAX_HEAD_DIM, width // self.n_heads)
        if self.integer("attention.value_length", 1, MAX_HEAD_DIM, found) != found:
            raise self.error("attention.value_length", f"{found}, as the key_length")
        return found
