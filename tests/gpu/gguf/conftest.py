"""Models of a shape as a folder and as a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.gguf import gguf_models
from tests.gpu.models import random_llama


@pytest.fixture(scope="module")
def make(tmp_path_factory: Any) -> Callable[..., tuple[Path, Path]]:
    """Return a model folder of a shape, and the same model as a GGUF file."""

    def made(shape: random_llama.Shape, kind: str = "F32", **changes: Any) -> tuple[Path, Path]:
        path = tmp_path_factory.mktemp(shape.name)
        folder = random_llama.write(path, shape)
        return folder, gguf_models.write(folder, path / "model.gguf", kind, **changes)

    return made
