"""Protocols of the runners, which carry out steps in WGSL or PyTorch, of encoders, and of
encoder-decoders.

A runner knows no sequences: only slots, the blocks of their tokens, and rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.config.encoder_decoder import EncoderDecoderConfig
from gpu.config.sentence_transformers import SentenceConfig
from gpu.info import DeviceInfo, LoraInfo, MemoryInfo, RunnerLimits, StageInfo
from gpu.interventions.active import ActiveInterventions
from gpu.kv.copies import TokenMove
from gpu.step import (
    Floats,
    InspectionRequest,
    InspectionResult,
    NonFinite,
    Selfhash,
    Step,
    StepResult,
)


class Runner(Protocol):
    """Carries out steps, in the order they were submitted. Used by one thread only.

    `submit` returns at once; `collect` blocks until that step is done. Steps are collected in the
    order of their submission, and up to `in_flight` may be submitted before the first is collected.
    `begin_slot` starts a new sequence in a slot: its tokens so far, for penalties, of which the run
    wrote the last `n_written`. `set_blocks` names the KV blocks that hold its tokens in the layers
    of a group (`limits.windows`), in order; it may be called again with more blocks as the sequence
    grows. `copy_block` copies the keys and values of one block, all its layers, for the steps
    submitted after it, from those before it; `store_block` and `load_block` do so to and from one
    of `limits.n_host_blocks` places in host memory. `shift_kv` moves a group's cached tokens to
    other positions: keys are rotated by the difference, values copied (`gpu.kv.can_shift`).
    `conversion`: how the types of a file with quantised weights were converted, as text; "" without
    quantised weights.
    """

    config: ModelConfig
    limits: RunnerLimits
    device: DeviceInfo
    in_flight: int
    loras: tuple[LoraInfo, ...]
    conversion: str

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        """Stages of a model that runs on several devices; () on one."""
        ...

    @property
    def memory(self) -> MemoryInfo: ...

    @property
    def dispatches_per_token(self) -> int:
        """GPU dispatches of a decode step of one sequence; 0 where there are none."""
        ...

    @property
    def activations(self) -> str:
        """Input of matmuls with q8 and q4 weights: "f32", or rows rounded to "q8"."""
        ...

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int = 0) -> None: ...

    def set_text(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int) -> None:
        """Set the tokens of a slot's text, as `begin_slot` does: what a sample that verifies drafts
        chose is not among them by itself."""
        ...

    def set_grammar_bitmask(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        """Set the tokens that a grammar allows the samples of a slot with `Sample.n_allowed`, for
        steps submitted from now on: one bit each, lowest first, (⌈vocab_size / 32⌉,)."""
        ...

    def set_greenlist(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        """Set the tokens that the samples of a slot with `Sample.watermark_bias` favour, in the
        same way."""
        ...

    def set_selfhash(self, slot: int, selfhash: Selfhash) -> None:
        """Set the numbers by which the samples of a slot with `Sample.n_hashed` find their
        greenlist, in place of one."""
        ...

    def set_blocks(self, slot: int, blocks: list[int], group: int = 0) -> None: ...

    def copy_block(self, source: int, destination: int) -> None: ...

    def store_block(self, block: int, place: int) -> None: ...

    def load_block(self, place: int, block: int) -> None: ...

    def shift_kv(self, moves: Sequence[TokenMove], group: int = 0) -> None: ...

    def set_rope(self, *, rotates: bool, n_positions: int) -> None:
        """Have the rotary positions below `n_positions` turn queries and keys by no angle, or again
        by their own, in the steps submitted from now on. No steps may be in flight."""
        ...

    def set_interventions(self, slot: int, active: ActiveInterventions | None) -> None:
        """Set the interventions and adapters on a slot's rows, for steps submitted from now on that
        ask for them (`Step.interventions`, `Step.loras`, `Step.masked`). None: nothing, as after
        `begin_slot`. Raises InvalidRequest if they name a part that the model does not have."""
        ...

    def submit(self, step: Step) -> None: ...

    def collect(self) -> StepResult: ...

    def run_checked(self, step: Step, like: Step) -> tuple[StepResult, NonFinite | None]:
        """Run rows of the step `like` again on a slower path that checks more, and say which op was
        the first whose result is not finite; None: there is none, or it is not known. Samples must
        leave their slots alone (`Sample.verifies`), and no steps may be in flight."""
        ...

    def logits(self, step: Step) -> Floats:
        """Return float32 (len(step.samples), vocab_size): raw logits of the sampled rows; nothing
        is drawn. For verification."""
        ...

    def inspect(self, step: Step, request: InspectionRequest) -> InspectionResult:
        """Run a step and return the intermediate values that are requested; nothing is drawn, and
        no steps may be in flight. Rows may be computed again: they leave the same keys and values.
        Raises InvalidRequest for what the step or the device cannot give."""
        ...

    def unembed(self, states: Floats) -> Floats:
        """Return float32 (n, vocab_size): what final norm and output head make of states of the
        residual stream (n, hidden_size). No steps may be in flight."""
        ...

    def embedding_rows(self, first: int, n: int) -> Floats:
        """Return at most `n` rows of the embedding matrix from `first` on, (n, hidden_size). No
        steps may be in flight."""
        ...

    def profile(self, step: Step, repeat: int) -> Floats | None:
        """Return float32 (n_dispatches,): milliseconds of GPU time of each dispatch of a step's
        plan, the median of `repeat` runs; None if there is no plan or no clock. The step really
        runs: its rows and samples must be those of a borrowed slot. No steps may be in flight."""
        ...

    def list_plan(self, n_rows: int, context: int) -> dict[str, Any] | None:
        """Return the plan of a step of `n_rows` rows after `context` tokens with one sample, as
        JSON values (`gpu.plans.plan_report.PlanReport`); None if there is none. Raises
        InvalidRequest for a size that no step can have."""
        ...

    def weight_digest(self, number: int) -> tuple[bytes, int] | None:
        """Return SHA-256 and bytes of tensor `number` of the weights as it is on the device; None
        if there are fewer, or no device. No steps may be in flight. Raises InvalidRequest if
        experts are copied to the device as they are needed, so that its weights change."""
        ...

    def peaks(self) -> dict[str, float] | None:
        """Return the peaks of the device (`gpu.webgpu.peaks.Peaks`) as a dict, measured at the
        first call; None if there is no device. No steps may be in flight."""
        ...

    def warm_up(self, *, interventions: bool = False) -> Iterator[None]:
        """Compile in advance, one kernel at a time, what the first steps need; `interventions`: the
        first steps with interventions. May be left half done; must not be advanced while steps are
        in flight."""
        ...

    def close(self) -> None: ...


class Encoder(Protocol):
    """An embedding model: token ids of texts in, their vectors out. Used by one thread only, with
    no steps in flight on its device.

    max_tokens     tokens of a text
    max_attending  tokens of a text whose attention is read
    n_bytes        all that it takes on the device
    """

    name: str
    config: ModelConfig
    sentence: SentenceConfig
    max_tokens: int
    max_attending: int

    @property
    def n_bytes(self) -> int: ...

    def n_fitting(self, lengths: Sequence[int], most_rows: int) -> int:
        """Return how many of the first texts with these lengths to compute in one pass of about
        `most_rows` rows: at least one."""

    def vectors(
        self, texts: Sequence[Sequence[int]], *, in_pieces: bool = False
    ) -> Generator[None, None, Floats]:
        """Return the vectors (n, hidden_size) of texts of 1 to `max_tokens` ids, which must fit
        into one pass (`n_fitting`). Yields after it; with `in_pieces` after each part of it."""

    def attention(
        self, ids: Sequence[int], *, in_pieces: bool = False
    ) -> Generator[None, None, Floats]:
        """Return the attention weights of a text of at most `max_attending` ids, (n_layers,
        n_heads, n, n). Yields as `vectors` does."""


@dataclass(frozen=True, slots=True)
class DecodedToken:
    """Result of the decoder of an encoder-decoder for one token, in float32.

    logits     (vocab_size,): of the token that follows
    attention  (n_layers, n_heads, position + 1): to the tokens that the decoder has read
    cross      (n_layers, n_heads, n): to those of the encoder's text
    """

    logits: Floats
    attention: Floats
    cross: Floats


class EncoderDecoder(Protocol):
    """An encoder-decoder, for one text at a time. Used by one thread only, with no steps in flight
    on its device.

    max_tokens   tokens of a text that the encoder reads
    max_written  tokens that the decoder reads: the first is `config.start_id`
    n_bytes      all that it takes on the device
    """

    name: str
    config: EncoderDecoderConfig
    max_tokens: int
    max_written: int

    @property
    def n_bytes(self) -> int: ...

    def encode(
        self, ids: Sequence[int], *, in_pieces: bool = False
    ) -> Generator[None, None, Floats]:
        """Read a text of 1 to `max_tokens` ids, and keep the keys and values that cross-attention
        reads. Returns the encoder's attention weights (n_layers, n_heads, n, n). Yields after the
        pass; with `in_pieces` after each part of it."""
        ...

    def decode(
        self, token: int, position: int, *, in_pieces: bool = False
    ) -> Generator[None, None, DecodedToken]:
        """Read the decoder's next token, at this position, after those before it. Yields as
        `encode` does."""
        ...


@dataclass(frozen=True, slots=True)
class Encoders:
    """Models with encoders beside the one that writes, for instruments and vectors; None: there is
    no such model."""

    embedding: Encoder | None = None
    encoder_decoder: EncoderDecoder | None = None


NO_ENCODERS = Encoders()
