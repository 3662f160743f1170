"""Quality of a weight format: its logits against those of float32 weights, on text that the model
generates with float32 weights.

Random ids are out of distribution for a trained model, and so would be the differences between two
formats. Generated text is in distribution, needs no file, and is the same in every run on a device:
BOS (or the end-of-text token, or token 0), continued at temperature 1 without filters. When a text
ends or the context is full, another one begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu.bench.contestants import greedy, in_flight
from gpu.config import ModelConfig
from gpu.kv.blocks import blocks_for
from gpu.reference.divergence import Divergence
from gpu.runner import Runner
from gpu.step import FROM_GPU, Floats, Row, Step

Texts = list[list[int]]

N_TOKENS = 512
"""Tokens of a few texts: a mean over one short text would depend on that text."""
PIECE = 32
"""Tokens generated before checking whether the text has ended."""


def compare(reference: Runner, runner: Runner, texts: Texts) -> Divergence:
    """Return the divergence of `runner` from `reference` on the same tokens."""
    want, got = (
        np.concatenate([all_logits(model, text) for text in texts]) for model in (reference, runner)
    )
    return Divergence.of(want, got)


def own_texts(runner: Runner, n_tokens: int) -> Texts:
    """Generate texts of `n_tokens` tokens in total; text i has seed i."""
    texts: Texts = []
    while (left := n_tokens - sum(map(len, texts))) > 0:
        most = min(left, runner.limits.context)
        texts.append(_own_text(runner, most, seed=len(texts)))
    return texts


def all_logits(runner: Runner, prompt: Sequence[int]) -> Floats:
    """Return the logits after every token of the prompt: float32 (len(prompt), vocab_size)."""
    runner.begin_slot(0, np.array(prompt, np.uint32))
    runner.set_blocks(0, list(range(blocks_for(len(prompt)))))
    parts = []
    most = runner.limits.max_samples
    for first in range(0, len(prompt), most):
        ids = prompt[first : first + most]
        rows = tuple(Row(0, first + i, id) for i, id in enumerate(ids))
        samples = tuple(greedy(i, first + i) for i in range(len(ids)))
        parts.append(runner.logits(Step(rows, samples)))
    return np.concatenate(parts)


def _own_text(runner: Runner, most: int, seed: int) -> list[int]:
    """Generate up to `most` tokens, without the one that ends the text."""
    config = runner.config
    text = [_first_token(config)]
    runner.begin_slot(0, np.array(text, np.uint32))
    runner.set_blocks(0, list(range(blocks_for(most))))
    while len(text) < most:
        n = min(PIECE, most - len(text))
        for result in in_flight(runner, _next_steps(len(text) - 1, n, text[0], seed)):
            if (id := result.samples[0].id) in config.eos_ids:
                return text
            text.append(id)
    return text


def _next_steps(first: int, n: int, begin: int, seed: int) -> list[Step]:
    """Return `n` sampling steps from position `first` on; `begin` is the token at 0."""
    return [
        Step(
            (Row(0, i, FROM_GPU if i else begin),),
            (replace(greedy(0, i), seed=seed, temperature=1.0),),
        )
        for i in range(first, first + n)
    ]


def _first_token(config: ModelConfig) -> int:
    """Return BOS, else the lowest of the end tokens: the end of text, because end-of-turn tokens
    are added to a vocabulary later."""
    return config.bos_id if config.bos_id is not None else min(config.eos_ids, default=0)
