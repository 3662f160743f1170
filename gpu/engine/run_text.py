"""Text of one run: its prompt, the tokens that were read, and where it ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import msgspec

from gpu.engine.run_events import RowResult, RunEvents
from gpu.events import Draft, Event, Reason, Watermark
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.step import Sampled
from gpu.text.grammar_matcher import GrammarMatcher
from gpu.text.token_table import TokenizerLike

SEED_BITS = 32
"""Bits of a seed that the engine draws: every JSON reader keeps such a number exact."""

End = tuple[Reason, str]
"""Why a run ends, and a message of it."""


class RunText:
    """Text of one run, token by token.

    ids        the prompt and every token read since
    n_written  samples read, with those that another engine wrote
    params     the settings in force
    n_due      tokens that were submitted before the settings changed last: a `max_tokens` below
               that ends the text after them, however many of them were read
    is_green   whether the last of some ids is green, for the next draw; None: it has no watermark
    """

    def __init__(
        self,
        request: Request,
        tokenizer: TokenizerLike,
        eos_ids: tuple[int, ...],
        context: int,
        *,
        grammar: GrammarMatcher | None,
        on_event: Callable[[Event], None],
    ) -> None:
        self.n_written = request.n_written
        self.n_due = 0
        self.prompt = request.ids[: len(request.ids) - request.n_written]
        self.ids = list(request.ids)
        self.params = _seeded(request.params)
        self.grammar = grammar
        self.is_green: Callable[[Sequence[int]], bool] | None = None
        written = self.ids[len(self.prompt) :]
        self.events = RunEvents(self.prompt, written, self.params.stop, tokenizer, on_event)
        self._eos_ids = eos_ids
        self._most = context if request.n_keep is None else None  # tokens; None: any number

    @property
    def most_written(self) -> int:
        """Number of tokens after which the text ends, by the settings in force."""
        return max(self.params.max_tokens, self.n_due)

    @property
    def n_counted(self) -> int:
        """Number of the last `ids` that count as written, for penalties: those that were read, and
        those of a run that this one continues."""
        return min(len(self.ids), self.params.first_index + self.n_written)

    @property
    def n_allowed(self) -> int | None:
        """Number of tokens that the grammar allows next; None without one."""
        return None if self.grammar is None else self.grammar.n_allowed

    def read(self, sampled: Sampled, row: RowResult, draft: Draft | None) -> End | None:
        """Add the next token, and send the text that may be shown; return how the run ends if no
        token can follow. `row`: the one that fed it; `draft`: what was drafted in its place."""
        index, n_allowed = self.n_written, self.n_allowed
        is_green, self.is_green = self.is_green, None
        self.n_written += 1
        self.ids.append(sampled.id)
        goes_on = self.params.ignore_eos and self.grammar is None
        eos = sampled.id in self._eos_ids and not goes_on
        token = self.events.token(sampled, index, row, eos=eos, n_allowed=n_allowed, draft=draft)
        if is_green is not None:
            mark = Watermark(is_green(self.ids), sampled.green)
            token = msgspec.structs.replace(token, watermark=mark)
        if self.grammar is not None:
            self.grammar.read(sampled.id)
            self.grammar.end_within(self._n_left(row.position))
        if eos:
            self.events.flush()
            self.events.send(token)
            return "eos", ""
        end = self._end_after(row.position)
        if self.events.show(token, is_last=end is not None):
            return "stop", ""
        if end is not None:
            self.events.flush()
        return end

    def limit_changed(self, *, in_flight: bool) -> None:
        """Have a grammar go by `max_tokens` of the settings now. `in_flight`: whether the next
        token was drawn already."""
        if self.grammar is not None:
            self.grammar.change_limit(None if in_flight else self._n_left(len(self.ids) - 2))

    def _end_after(self, position: int) -> End | None:
        """Return why no token can follow the one sampled after `position`; None if one can."""
        if self.grammar is not None and self.grammar.complete:
            return "length" if self.grammar.closed else "stop", ""
        if self.n_written >= self.most_written:
            return "length", ""
        if self._most is not None and position + 1 >= self._most:
            return "context", ""
        if self.grammar is not None and self.grammar.failure:
            return "error", self.grammar.failure
        return None

    def _n_left(self, position: int) -> int:
        """Return how many tokens may follow the one sampled after `position`."""
        n_left = self.most_written - self.n_written
        return n_left if self._most is None else min(n_left, self._most - 1 - position)


def _seeded(params: SamplingParams) -> SamplingParams:
    """Return `params` with a seed, which is drawn if they have none."""
    if params.seed is not None:
        return params
    return msgspec.structs.replace(params, seed=secrets.randbits(SEED_BITS))
