"""Detector of a watermark, with the numbers of transformers' `WatermarkDetector`.

A text without the watermark has green tokens by chance: of n tokens, γ · n, with a variance of
n · γ · (1 − γ). z is how many standard deviations more there are (Kirchenbauer et al. 2023,
equation 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpu.errors import InvalidRequest
from gpu.watermark.greenlist import Greenlists, WatermarkConfig

Z_THRESHOLD = 3.0
"""z from which on a text counts as watermarked."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Findings about a text. The fields up to `confidence` are those of transformers'
    `WatermarkDetectorOutput`.

    num_tokens_scored  tokens that have enough others before them, each n-gram once if asked for
    num_green_tokens   green ones of these
    p_value            probability of a z as large in a text without the watermark
    prediction         whether z is above `z_threshold`
    confidence         1 − p_value
    green              whether each token is green; None for the first, which have no hash
    window_z           z of the last tokens up to each, as many as a window has; None where fewer
                       were scored. () without a window
    """

    num_tokens_scored: int
    num_green_tokens: int
    green_fraction: float
    z_score: float
    p_value: float
    prediction: bool
    confidence: float
    green: tuple[bool | None, ...]
    window_z: tuple[float | None, ...]


def detect(
    ids: Sequence[int],
    config: WatermarkConfig,
    greenlists: Greenlists,
    *,
    z_threshold: float = Z_THRESHOLD,
    ignore_repeated_ngrams: bool = False,
    window: int | None = None,
) -> Detection:
    """Count the green tokens of a text, without the beginning-of-sequence token. `window`: number
    of tokens of `Detection.window_z`. Raises InvalidRequest for a text that is too short."""
    n = config.context_width + (config.seeding_scheme == "lefthash")  # tokens of an n-gram
    if len(ids) <= config.context_width:
        raise InvalidRequest(
            f"the text has {len(ids)} tokens, but {config.context_width + 1} are the fewest in "
            "which a watermark can be looked for",
            "text",
        )
    ngrams = [tuple(ids[end - n : end]) for end in range(n, len(ids) + 1)]
    green = {ngram: greenlists.is_green(config, ngram) for ngram in dict.fromkeys(ngrams)}
    found = [green[ngram] for ngram in (green if ignore_repeated_ngrams else ngrams)]
    z = z_score(sum(found), len(found), config.greenlist_ratio)
    p_value = 0.5 * math.erfc(z / math.sqrt(2))
    by_token = [green[ngram] for ngram in ngrams]
    return Detection(
        num_tokens_scored=len(found),
        num_green_tokens=sum(found),
        green_fraction=sum(found) / len(found),
        z_score=z,
        p_value=p_value,
        prediction=z > z_threshold,
        confidence=1 - p_value,
        green=(*(None for _ in range(n - 1)), *by_token),
        window_z=()
        if window is None
        else (
            *(None for _ in range(n - 1)),
            *_windows(by_token, window, config.greenlist_ratio),
        ),
    )


def z_score(n_green: int, n: int, ratio: float) -> float:
    """Return how many standard deviations more green tokens there are than by chance."""
    return (n_green - ratio * n) / math.sqrt(n * ratio * (1 - ratio))


def _windows(green: Sequence[bool], size: int, ratio: float) -> list[float | None]:
    """Return z of the last `size` tokens up to each; None for those with fewer."""
    counts = [0]
    for each in green:
        counts.append(counts[-1] + each)
    return [
        None if end < size else z_score(counts[end] - counts[end - size], size, ratio)
        for end in range(1, len(counts))
    ]
