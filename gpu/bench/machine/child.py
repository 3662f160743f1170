"""Process that runs one part of a report: a driver that crashes or hangs takes no more with it.

After a case that raises an error the process ends, because the device may be lost: the parent
starts another one for the rest.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from gpu.bench.machine import attention_speed, peers, speed, stress, sweep
from gpu.bench.machine.context import Case, Context, Outcome, PartCases, rounded
from gpu.bench.machine.messages import RESTART, CaseProgress, DeviceReady, Done, Message, PartOrder
from gpu.bench.machine.results import TIME_IS_UP, Result
from gpu.checks import models, ops
from gpu.checks.difference import WrongResult
from gpu.checks.rig import Rig
from gpu.webgpu.device import Device

SAY_S = 1.0
"""Least seconds between two messages about the same case."""
LONGEST_NOTE = 400

Say = Callable[[Message], None]


def main() -> None:
    """Run the part that a `PartOrder` on standard input names; exit with `RESTART` if another
    process should run the rest."""
    say = _own_output()
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=PartOrder)
    logging.basicConfig(level=logging.ERROR)
    deadline = time.perf_counter() + order.seconds
    context = Context(Device.open(order.adapter), order.adapter, deadline, order.free)
    if not run(PARTS[order.part](context), order.done, context, say):
        sys.stdout.flush()
        os._exit(RESTART)  # a lost device may hang when its objects are freed
    os._exit(0)


def run(cases: Iterator[Case], done: list[str], context: Context, say: Say) -> bool:
    """Run the cases that are not done; return False after one that raised an error."""
    found = list(cases)
    say(DeviceReady([name for name, _ in found]))
    for name, function in found:
        if name in done:
            continue
        if context.seconds_left <= 0:
            say(Done(Result(name, "pending", note=TIME_IS_UP)))
            continue
        say(CaseProgress(name))
        context.say = _limited(partial(_say_at, say, name))
        began = time.perf_counter()
        try:
            outcome = function()
        except Exception as error:  # drivers fail in ways of their own
            seconds = rounded(time.perf_counter() - began)
            note = f"{type(error).__name__}: {error}"[:LONGEST_NOTE]
            say(Done(Result(name, "failed", seconds, note=note)))
            return False
        seconds = rounded(time.perf_counter() - began)
        say(Done(Result(name, outcome.status, seconds, outcome.figures, outcome.note)))
        gc.collect()  # models and their buffers refer to each other
    return True


def check_cases(checks: dict[str, Callable[[Rig], None]], context: Context) -> Iterator[Case]:
    """Yield a case for each check; all share a rig."""
    rig = Rig(context.device)
    for name, check in checks.items():
        yield name, partial(run_check, check, rig)


def run_check(check: Callable[[Rig], None], rig: Rig) -> Outcome:
    """Return what a check finds; it ends at the first wrong result."""
    rig.found.clear()
    wrong = ""
    try:
        check(rig)
    except WrongResult as error:
        wrong = str(error)
    figures = {
        "numbers": float(sum(found.numbers for found in rig.found)),
        "error": rounded(max((found.error for found in rig.found), default=0.0), 2),
        "of_bound": rounded(max((found.of_bound for found in rig.found), default=0.0), 2),
    }
    return Outcome(figures, "wrong" if wrong else "ok", wrong[:LONGEST_NOTE])


PARTS: dict[str, PartCases] = {
    "ops": partial(check_cases, ops.CHECKS),
    "models": partial(check_cases, models.CHECKS),
    "stress": stress.cases,
    "sweep": sweep.cases,
    "attention": attention_speed.cases,
    "speed": speed.cases,
    "peers": peers.cases,
}


def _own_output() -> Say:
    """Return a function that writes a message; what drivers print goes to standard error."""
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return lambda message: _write(output.write, msgspec.json.encode(message) + b"\n")


def _write(write: Callable[[bytes], int | None], data: bytes) -> None:
    while data:
        data = data[write(data) or 0 :]


def _say_at(say: Say, name: str, doing: str) -> None:
    say(CaseProgress(name, doing))


def _limited(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return `say`, called at most every `SAY_S` seconds."""
    last = 0.0

    def limited(text: str) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= SAY_S:
            last = now
            say(text)

    return limited
