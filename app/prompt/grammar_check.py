"""Check of the grammars that requests bring.

A schema of one line can take minutes to compile, and nothing can interrupt the library that does
it. So a grammar is compiled in a process with limits on time and memory first, and only one that
was within them reaches the engine, which compiles it again.
"""

from __future__ import annotations

from functools import partial

import msgspec

from app.engine_client import Tokenizer
from app.processes.limited_pool import LimitedPool
from app.processes.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from app.prompt.grammar_process import GrammarCheck, GrammarChecked
from gpu import Grammar, InvalidRequest

MAX_SECONDS = 2.0
LIMITS = ProcessLimits(memory_bytes=1024 * 1024 * 1024, reply_bytes=64 * 1024)

_decoder = msgspec.msgpack.Decoder(GrammarChecked)


POOL = LimitedPool(
    partial(LimitedProcess.start, "app.prompt.grammar_process", LIMITS),
    2,
    "too many grammars are being checked",
)
"""Processes that check all grammars, started by the first request that brings one."""


def check_grammar(grammar: Grammar, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise InvalidRequest, naming `grammar`, for one that cannot be used or takes too long to
    compile; QueueFull if too many wait for this."""
    grammar = msgspec.structs.replace(grammar, n_read=0)
    grammar.validate(0)  # before a long text goes anywhere
    check = GrammarCheck(grammar, vocab_size, _specials(tokenizer, vocab_size))
    try:
        request = msgspec.msgpack.encode(check)
        fault = _decoder.decode(POOL.call(request, MAX_SECONDS)).fault
    except UnicodeEncodeError:
        fault = "it contains half of a surrogate pair, which is not valid Unicode"
    except LimitExceeded as error:
        fault = f"it cannot be compiled: it {error}; make it simpler"
    if fault:
        raise InvalidRequest(fault, "grammar")


def _specials(tokenizer: Tokenizer, vocab_size: int) -> tuple[tuple[int, str], ...]:
    """Return ids and names of the special tokens."""
    ids = filter(tokenizer.is_special, range(vocab_size))
    return tuple((id, tokenizer.piece(id)) for id in ids)
