"""What logits say, for people: the layers' guesses, and how surprising a text is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from gpu.inspection import Answer, Array
from gpu.softmax import Doubles, entropy, log_softmax
from gpu.step import Floats


def lens_reading(logits: Floats, chosen: int, top: int) -> Answer:
    """`logits` (n_layers + 1, vocab_size) of the residual stream after the embedding and every
    layer; arrays as `gpu.inspection.LogitLens`."""
    logs = log_softmax(logits)
    shares = np.exp(logs)
    ids = most_likely(logs, top)
    arrays = {
        "ids": ids,
        "probabilities": np.take_along_axis(shares, ids, -1),
        "entropy": entropy(shares),
        "rank": (logs > logs[:, chosen, None]).sum(-1),
        "probability": shares[:, chosen],
    }
    return Answer({"chosen": chosen}, tuple(Array.of(n, v) for n, v in arrays.items()))


def loss_reading(pieces: Iterable[Floats], ids: Sequence[int], top: int) -> Answer:
    """`pieces` of the logits (n, vocab_size) after each of `ids`, in order, with or without the
    last one's; arrays as `gpu.inspection.Losses`. info: mean loss in nats and its exponential, the
    perplexity (Jelinek et al. 1977)."""
    parts = []
    at = 1
    for piece in pieces:
        wanted = np.asarray(ids[at : at + len(piece)], np.intp)
        if len(wanted):
            parts.append(_losses(log_softmax(piece[: len(wanted)]), wanted, top))
        at += len(piece)
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    mean = -float(arrays["logprob"].mean())
    info = {"mean_loss": mean, "perplexity": float(np.exp(mean))}
    return Answer(info, tuple(Array.of(n, v) for n, v in arrays.items()))


def _losses(
    logs: Doubles, ids: npt.NDArray[np.intp], top: int
) -> dict[str, npt.NDArray[np.generic]]:
    logprob = np.take_along_axis(logs, ids[:, None], -1)
    best = most_likely(logs, top)
    return {
        "logprob": logprob[:, 0],
        "rank": (logs > logprob).sum(-1),
        "entropy": entropy(np.exp(logs)),
        "top_ids": best,
        "top_logprobs": np.take_along_axis(logs, best, -1),
    }


def most_likely(values: Doubles, top: int) -> npt.NDArray[np.intp]:
    """(…, top) places of the largest values of each row, largest first, ties by place."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :top]
