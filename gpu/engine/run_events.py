"""Events that tell the caller of a run its place, its prompt, its text and what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gpu.engine.run_clock import RunClock
from gpu.engine.token_stats import LayerTimes, token_stats
from gpu.events import (
    Accepted,
    Allowed,
    CandidateText,
    Draft,
    Event,
    MovedChunk,
    Prefill,
    Preview,
    Queued,
    StepTimes,
    Token,
    TokenStats,
    TokenText,
)
from gpu.sampling_params import SamplingParams
from gpu.step import Captured, ExpertUse, Sampled, StepResult
from gpu.text.decode_stream import DecodeStream
from gpu.text.stop_strings import StopMatcher
from gpu.text.token_table import TokenizerLike


@dataclass(frozen=True, slots=True)
class RowResult:
    """Result of one row of a step, as it was read.

    position   place of the row's token in the text, from 0
    row, step  number of the row, and the result of the step
    captured   statistics of the step, if the run captured when it was submitted
    kv_blocks  KV blocks whose tokens it read
    slid       tokens that had left the cache; absent if there were none
    """

    position: int
    row: int
    step: StepResult
    captured: Captured | None
    kv_blocks: int
    slid: int | msgspec.UnsetType


@dataclass(frozen=True, slots=True)
class FoundPrefix:
    """Tokens of a prompt that were in the KV cache when the run started.

    n_tokens   those at the beginning, which are where the prompt has them
    n_blocks   as `gpu.events.Prefill.reused_blocks`
    moved      chunks after them that were moved to where the prompt has them
    """

    n_tokens: int
    n_blocks: int | msgspec.UnsetType
    moved: tuple[MovedChunk, ...]


class RunEvents:
    """Events of one run, passed to `send`. Text that may begin a stop string is held back."""

    def __init__(
        self,
        prompt: list[int],
        written: list[int],
        stop: tuple[str, ...],
        tokenizer: TokenizerLike,
        send: Callable[[Event], None],
    ) -> None:
        """`written`: tokens after `prompt` that another engine wrote and sent."""
        self.send = send
        self.clock = RunClock()
        self.n_prompt_sent = len(prompt) if written else 0  # in `Prefill` events
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._place = 0
        self._times: LayerTimes | None = None
        self._step: StepResult | None = None  # of the last event
        self._decode = DecodeStream(tokenizer, prompt)
        for id in written:
            self._decode.push(id)
        self._matcher: StopMatcher[Token] = StopMatcher(stop)

    def accepted(
        self, place: int, params: SamplingParams, capture: bool, context: int, number: int
    ) -> None:
        """Send `Accepted`; `place` other runs are before this one, which is run `number`."""
        self._place = place
        prompt = self._texts(self._prompt)
        self.send(Accepted(prompt, params, capture, place, context, run=number))

    def moved_to(self, place: int) -> None:
        """Send the place of a waiting run, if it changed."""
        if place != self._place:
            self._place = place
            self.send(Queued(place))

    def prefilled(self, first: int, last: RowResult, found: FoundPrefix) -> None:
        """Send that prompt tokens `first` up to that of `last` were computed, in as many rows of
        one step."""
        done = last.position + 1
        self.n_prompt_sent = done
        stats: tuple[TokenStats, ...] = ()
        if last.captured:
            self._times = LayerTimes.of(last.captured, last.position) or self._times
            stats = tuple(
                token_stats(last.captured, last.row - last.position + at, at, self._times)
                for at in range(first, done)
            )
        self.send(
            Prefill(
                done=done,
                total=len(self._prompt),
                reused=found.n_tokens,
                moved=found.moved or msgspec.UNSET,
                ms=self.clock.since_start_ms(),
                gpu_ms=last.step.gpu_ms,
                kv_blocks=last.kv_blocks,
                slid=last.slid,
                reused_blocks=found.n_blocks,
                stats=stats,
                experts=self._experts_of(last.step),
            )
        )

    def token(
        self,
        sampled: Sampled,
        index: int,
        row: RowResult,
        *,
        eos: bool,
        n_allowed: int | None,
        draft: Draft | None,
    ) -> Token:
        """Return the event of token `index`, without its text. `n_allowed`: the number of tokens
        that the grammar allowed there; None without one. Each token is asked for once."""
        stats = None
        if row.captured:
            self._times = LayerTimes.of(row.captured, row.position) or self._times
            stats = token_stats(row.captured, row.row, row.position, self._times)
        step = row.step
        interval, paced = self.clock.token_ms()
        return Token(
            index=index,
            id=sampled.id,
            text="",
            logprob=sampled.logprob,
            probability=sampled.probability,
            rank=sampled.rank,
            n_kept=sampled.n_kept,
            draw=sampled.draw,
            mass=sampled.mass,
            candidates=self._candidates(sampled),
            times=StepTimes(
                interval=interval,
                gpu=step.gpu_ms,
                encode=step.encode_ms,
                wait=step.wait_ms,
                read=step.read_ms,
                paced=paced,
            ),
            kv_blocks=row.kv_blocks,
            slid=row.slid,
            stats=stats,
            eos=eos,
            experts=self._experts_of(step),
            draft=draft,
            allowed=_allowed(sampled, n_allowed),
        )

    def _experts_of(self, step: StepResult) -> ExpertUse | None:
        """Return the experts of a step for its first event, and zeros for the others."""
        is_first, self._step = step is not self._step, step
        return step.experts if is_first or step.experts is None else ExpertUse()

    def preview(self, sampled: Sampled, index: int, n_allowed: int | None) -> None:
        """Send what token `index` will be drawn from; `n_allowed` as in `token`."""
        allowed = _allowed(sampled, n_allowed)
        candidates = self._candidates(sampled)
        self.send(Preview(index, candidates, sampled.n_kept, sampled.mass, allowed))

    def _candidates(self, sampled: Sampled) -> tuple[CandidateText, ...]:
        piece = self._tokenizer.piece
        return tuple(
            CandidateText(id, piece(id), before, after, cut)
            for id, before, after, cut in sampled.candidates
        )

    def draft(self, drafts: list[int], place: int, id: int) -> Draft | None:
        """Return what became of the draft in place of a sampled token, if there was one."""
        if place >= len(drafts):
            return None
        draft = drafts[place]
        rest = () if draft == id else self._texts(drafts[place + 1 :])
        return Draft(draft, self._tokenizer.piece(draft), place, draft == id, rest)

    def show(self, token: Token, *, is_last: bool) -> bool:
        """Send a token with its text, and those held back that are decided now; return whether a
        stop string ends the text."""
        text = self._decode.push(token.id) + (self._decode.flush() if is_last else "")
        released, stopped = self._matcher.push(token, text)
        self._release(released)
        return stopped

    def flush(self) -> None:
        """Send the tokens that were held back: the text ends without a stop string."""
        self._release(self._matcher.flush())

    def _release(self, tokens: list[tuple[Token, str]]) -> None:
        for token, text in tokens:
            self.send(msgspec.structs.replace(token, text=text))

    def _texts(self, ids: list[int]) -> tuple[TokenText, ...]:
        return tuple(TokenText(id, self._tokenizer.piece(id)) for id in ids)


def _allowed(sampled: Sampled, n_allowed: int | None) -> Allowed | msgspec.UnsetType:
    return msgspec.UNSET if n_allowed is None else Allowed(n_allowed, sampled.allowed)
