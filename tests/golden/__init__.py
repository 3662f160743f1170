"""Golden texts: what `transformers` generates greedily in float32 with trained models, with
log-probabilities and norms.

`tests.golden.make` wrote those of the bundled model. stories260k, a small Llama that is not part of
the project, is compared with its own file if `../shared/models` exists beside the checkout.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from app.tale import mixture_dir, model_dir

TALE_FILE = Path(__file__).with_name("tale.json")
MIXTURE = mixture_dir()
"""Folder of the bundled mixture of experts, which is compared with transformers itself."""
STORIES = Path(__file__).parents[2].parent / "shared" / "models" / "stories260k"


@dataclass(frozen=True)
class Golden:
    """One text.

    asked     message that the chat template turned into `prompt`; None for a plain prompt
    logprobs  (len(greedy_ids),) in nats; None if the file lacks them
    norms     (n_layers + 1, len(ids)): of the residual stream after the embedding and after every
              layer, for each token read; None if the file lacks them
    """

    prompt: str
    prompt_ids: list[int]
    greedy_ids: list[int]
    text: str
    asked: str | None = None
    logprobs: npt.NDArray[np.float32] | None = None
    norms: npt.NDArray[np.float32] | None = None

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.greedy_ids


@dataclass(frozen=True)
class Trained:
    """A trained model and its texts."""

    name: str
    folder: Path
    texts: tuple[Golden, ...]

    def __str__(self) -> str:
        return self.name


@cache
def trained_models() -> tuple[Trained, ...]:
    """Return the bundled model, and stories260k if it is available."""
    found = [Trained("tale", model_dir(), _texts(json.loads(TALE_FILE.read_text())["texts"]))]
    if (STORIES / "model.safetensors").exists():
        cases = json.loads((STORIES / "golden.json").read_text())
        found.append(Trained("stories260k", STORIES, _texts(cases)))
    return tuple(found)


def tale() -> Trained:
    """Return the bundled model, with log-probabilities and norms."""
    return trained_models()[0]


def _texts(cases: list[dict[str, Any]]) -> tuple[Golden, ...]:
    return tuple(
        Golden(
            case["prompt"],
            case["prompt_ids"],
            case["greedy_ids"],
            case["text"],
            case.get("asked"),
            _floats(case.get("logprobs")),
            _floats(case.get("norms")),
        )
        for case in cases
    )


def _floats(numbers: Any) -> npt.NDArray[np.float32] | None:
    return None if numbers is None else np.array(numbers, np.float32)
