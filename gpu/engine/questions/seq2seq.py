"""Seq2Seq: the text that the encoder-decoder beside the loaded model writes, and its attention.

Pieces are passes, or parts of them while runs write; one text is answered at a time, as the model
keeps the keys and values of one.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TypeVar

import numpy as np

from gpu.engine.question_budget import QuestionBudget
from gpu.engine.questions.encode import check_ids, within
from gpu.engine.questions.model import AnswerSteps
from gpu.errors import InvalidRequest
from gpu.info import EncoderDecoderInfo
from gpu.inspection.requests import Answer, Array, Seq2Seq
from gpu.kv.blocks import BLOCK_TOKENS, block_bytes
from gpu.runner import DecodedToken, EncoderDecoder
from gpu.step import Floats

Result = TypeVar("Result")


def encoder_decoder_info(model: EncoderDecoder) -> EncoderDecoderInfo:
    config = model.config
    return EncoderDecoderInfo(
        name=model.name,
        n_layers=config.encoder.n_layers,
        n_decoder_layers=config.decoder.n_layers,
        n_heads=config.decoder.n_heads,
        hidden_size=config.decoder.hidden_size,
        vocab_size=config.decoder.vocab_size,
        max_tokens=model.max_tokens,
        max_written=model.max_written,
        start_id=config.start_id,
        kv_token_bytes=block_bytes(config.decoder, "f32") // BLOCK_TOKENS,
        n_bytes=model.n_bytes,
    )


class Seq2SeqAnswers:
    """Answers by one encoder-decoder, one after the other. `model` None: there is none."""

    def __init__(self, model: EncoderDecoder | None, budget: QuestionBudget) -> None:
        self._model, self._budget = model, budget
        self._busy = False

    def start(self, question: Seq2Seq) -> AnswerSteps:
        """Return the generator of the answer. Raises InvalidRequest if there is no model, or for a
        text that it cannot read."""
        model = self._model
        if model is None:
            raise InvalidRequest(
                "there is no encoder-decoder; start the server with --encoder-decoder-model",
                "kind",
            )
        check_ids(question.ids, model.config.encoder.vocab_size, model.max_tokens, "ids")
        if not 1 <= question.max_tokens <= model.max_written:
            raise InvalidRequest(
                f"expected max_tokens from 1 to {model.max_written}, but got {question.max_tokens}",
                "max_tokens",
            )
        return self._answer(question, model)

    def _answer(self, question: Seq2Seq, model: EncoderDecoder) -> AnswerSteps:
        while self._busy:
            yield
        self._busy = True
        try:
            return (yield from self._write(question, model))
        finally:
            self._busy = False

    def _write(self, question: Seq2Seq, model: EncoderDecoder) -> AnswerSteps:
        """Read the text, and write greedily until an end token or `max_tokens`."""
        writing = self._budget.writing
        pieces = model.encode(question.ids, in_pieces=writing)
        encoder, encode_ms = yield from _timed(within(self._budget, pieces))
        written: list[int] = []
        probabilities, steps, step_ms = [], [], []
        while len(written) < question.max_tokens:
            token = written[-1] if written else model.config.start_id
            pieces_of_step = model.decode(token, len(written), in_pieces=self._budget.writing)
            step, ms = yield from _timed(within(self._budget, pieces_of_step))
            written.append(int(step.logits.argmax()))
            probabilities.append(_largest_probability(step.logits))
            steps.append(step)
            step_ms.append(ms)
            if written[-1] in model.config.decoder.eos_ids:
                break
        info = {"encode_ms": encode_ms, "ended": written[-1] in model.config.decoder.eos_ids}
        arrays = {
            "written": np.array(written, np.uint32),
            "probabilities": np.array(probabilities, np.float32),
            "encoder": encoder,
            "decoder": _own_attention(steps),
            "cross": np.stack([step.cross for step in steps], axis=2),
            "step_ms": np.array(step_ms, np.float32),
        }
        return Answer(info, tuple(Array.of(name, values) for name, values in arrays.items()))


def _own_attention(steps: list[DecodedToken]) -> Floats:
    """Return the decoder's attention to its own tokens, (n_layers, n_heads, m, m), 0 for those
    after a token."""
    n_layers, n_heads, _ = steps[0].attention.shape
    found = np.zeros((n_layers, n_heads, len(steps), len(steps)), np.float32)
    for i, step in enumerate(steps):
        found[:, :, i, : i + 1] = step.attention
    return found


def _largest_probability(logits: Floats) -> float:
    """Return the probability of the most likely token."""
    return float(1.0 / np.exp(logits.astype(np.float64) - float(logits.max())).sum())


def _timed(
    pieces: Generator[None, None, Result],
) -> Generator[None, None, tuple[Result, float]]:
    """Run pieces, and return their result and the milliseconds that they took, without what ran
    between them."""
    ms = 0.0
    while True:
        began = time.perf_counter()
        try:
            next(pieces)
        except StopIteration as done:
            return done.value, ms + 1000 * (time.perf_counter() - began)
        ms += 1000 * (time.perf_counter() - began)
        yield
