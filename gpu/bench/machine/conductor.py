"""Runs the parts of a report, each in processes of its own, and keeps what they find."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

import msgspec

from gpu.bench.machine.messages import RESTART, CaseProgress, DeviceReady, Message, PartOrder
from gpu.bench.machine.results import PARTS, TIME_IS_UP, PartReport, Report, Result
from gpu.bench.machine.results import START as START_CASE

WEIGHTS = {
    "ops": 4.0, "models": 4.0, "stress": 2.0, "sweep": 4.0, "attention": 1.5, "speed": 4.0,
    "peers": 1.5,
}  # fmt: skip
"""Shares of the time. What a part does not use goes to those after it."""
MOST_STARTS = 6
"""Processes of one part; a driver that fails in more cases is not tried again."""
PROGRESS_S = 5.0
POLL_S = 0.5
"""Longest wait at a time, so that Ctrl+C is noticed on every system."""
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gpu.bench.machine.child import main; main()"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds without a message after which a process is ended: `silent`, or `silent_peers` where
    other engines compile; `late`: after its time was up."""

    silent: float = 60.0
    silent_peers: float = 180.0
    late: float = 15.0


def child_command() -> list[str]:
    """Return the command of a process that runs a part."""
    paths = [os.path.abspath(path) for path in sys.path]
    return [sys.executable, "-c", START, json.dumps(paths)]


@dataclass
class Conductor:
    """Runs what is left of a report within `seconds`.

    keep    writes the report; called after every part, and now and then within one
    tell    shows a line of progress
    """

    report: Report
    adapter: str
    seconds: float
    keep: Callable[[], None]
    tell: Callable[[str], None]
    free: int | None = None
    limits: Limits = Limits()
    command: Sequence[str] = field(default_factory=child_command)

    def run(self, parts: Sequence[str] = PARTS) -> None:
        """Run the parts that are not finished. Ctrl+C ends the process of a part and is passed
        on."""
        began, before = time.perf_counter(), self.report.seconds
        try:
            for name in self.report.left(parts):
                spent = time.perf_counter() - began
                self._run_part(name, (self.seconds - spent) * self._share(name))
                self.report.seconds = before + time.perf_counter() - began
                self.keep()
        finally:
            self.report.seconds = before + time.perf_counter() - began

    def _share(self, name: str) -> float:
        """Return the share of a part in the time that is left."""
        after = PARTS[PARTS.index(name) :]
        return WEIGHTS[name] / sum(WEIGHTS[n] for n in self.report.left(after))

    def _run_part(self, name: str, seconds: float) -> None:
        part, began = self.report.parts.setdefault(name, PartReport()), time.perf_counter()
        part.results = [result for result in part.results if result.name != START_CASE]
        before, cases, why = part.seconds, list[str](), TIME_IS_UP
        for start in range(MOST_STARTS):
            left = max(0.0, seconds - (time.perf_counter() - began))
            if start and not left:
                break
            run = _Listener(self, name, part, left)
            run.run()
            cases = run.cases or cases
            part.seconds = before + time.perf_counter() - began
            self.keep()
            if run.is_last:
                break
        else:
            why = f"{MOST_STARTS} processes of this part crashed or failed before"
        named = {result.name for result in part.results}
        for case in cases:
            if case not in named:
                part.add(Result(case, "pending", note=why))
        self.tell(f"{name}: {_summary(part)}")


@dataclass
class _Listener:
    """Runs one process of a part for `seconds` and keeps what it says.

    cases    of the part, once the process has listed them
    case     that runs; "" between two
    is_last  whether no other process should follow
    """

    of: Conductor
    name: str
    part: PartReport
    seconds: float
    cases: list[str] = field(default_factory=list)
    case: str = ""
    is_last: bool = False

    def run(self) -> None:
        order = PartOrder(self.name, self.of.adapter, self.seconds, self.part.done, self.of.free)
        with _Process(self.of.command, order) as process:
            ended = self._listen(process)
            if ended:
                process.end()
            status = process.wait()
            if status == RESTART or (status == 0 and not ended):
                self.is_last = status == 0
                return
            why = ended or f"its process ended ({_exit_name(status)}{process.last_words()})"
        self.is_last = not self.cases  # it would not start the next time either
        if why == TIME_IS_UP and self.cases:
            self.is_last = True
            return
        result = Result(self.case or START_CASE, "crashed", note=why)
        self.part.add(result)
        self._tell_bad(result)

    def _listen(self, process: _Process) -> str:
        """Keep what the process says until it ends. Return why it has to be ended, "" if not."""
        limits, now = self.of.limits, time.perf_counter
        silent = limits.silent_peers if self.name == "peers" else limits.silent
        deadline, told = now() + self.seconds + limits.late, now()
        heard = now()
        while True:
            message = process.next(POLL_S)
            if message is None:
                return ""
            if now() >= deadline:
                return TIME_IS_UP
            if isinstance(message, str):
                if now() - heard >= silent:
                    return f"it gave no sign for {silent:g} s"
                continue
            heard = now()
            self._take(message)
            if now() - told > PROGRESS_S:
                told = now()
                n = sum(not result.is_pending for result in self.part.results)
                self.of.tell(f"{self.name}: {n} of {len(self.cases)}{_doing(message)}")
                self.of.keep()

    def _take(self, message: Message) -> None:
        if isinstance(message, DeviceReady):
            self.cases = message.cases
        elif isinstance(message, CaseProgress):
            self.case = message.case
        else:
            self.case = ""
            self.part.add(message.result)
            if message.result.is_bad:
                self._tell_bad(message.result)

    def _tell_bad(self, result: Result) -> None:
        self.of.tell(f"{self.name}: {result.name}: {result.status}: {result.note}")


class _Process:
    """A process that runs cases, and a thread that reads what it says."""

    def __init__(self, command: Sequence[str], order: PartOrder) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl+C in the terminal must reach the parent only
        )
        self._said: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: that shows when it is read
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._log.close()

    def next(self, seconds: float) -> Message | str | None:
        """Return the next message; None at the end, "silent" if there was none for so long."""
        try:
            return self._said.get(timeout=seconds)
        except queue.Empty:
            return "silent"

    def wait(self) -> int:
        return self._process.wait()

    def end(self) -> None:
        """Kill the process and every process that it started."""
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def last_words(self) -> str:
        """Return the last line of its standard error."""
        self._log.seek(0)
        lines = self._log.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(msgspec.DecodeError):  # a line that was cut off by a crash
                self._said.put(msgspec.json.decode(line, type=Message))
        self._said.put(None)


def _summary(part: PartReport) -> str:
    counts = {"done": 0, "bad": 0, "left out": 0, "pending": 0}
    for result in part.results:
        counts["bad" if result.is_bad else result.status.replace("ok", "done")] += 1
    parts = [f"{n} {what}" for what, n in counts.items() if n]
    return f"{', '.join(parts)}, {part.seconds:.0f} s"


def _exit_name(status: int) -> str:
    """Return the signal that ended a process, or its exit status."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"status {status}"


def _doing(message: Message) -> str:
    if not isinstance(message, CaseProgress):
        return ""
    return f", now {message.case}" + (f" ({message.doing})" if message.doing else "")
