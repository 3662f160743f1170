"""Peers: other engines in the benchmark, and the protocol of those in a child process.

Each child script is standalone: another Python with only the peer and NumPy can run it. It prints
one JSON object per line: first `{"device": …}` when its model is loaded, or `{"missing": reason}`;
then, for each request `{"prompt": [id, …], "tokens": n}`,
`{"prefill_s": …, "decode_s": …}`, and for `{"logits": [id, …]}` the logits after every token. Those
of the serving benchmark answer `{"prompts": [[id, …], …], "tokens": n}` with the fields of
`StreamTimes`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpu.bench.contestants import Figures
from gpu.errors import EngineError

SCRIPTS = Path(__file__).parent / "scripts"


class PeerMissing(EngineError):
    """The peer cannot run here; the message says what to install."""


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Streams that were started together. `asked`, `times`: seconds by one clock, of each request
    and of each token of it; `cpu_s`: processor seconds of all threads."""

    asked: list[float]
    times: list[list[float]]
    cpu_s: float


class Peer(Protocol):
    """A contestant that is another engine. `device`: the device it reports."""

    name: str
    figures: Figures
    device: str

    def run(self, prompt: list[int], n_tokens: int) -> None: ...

    def close(self) -> None: ...


class ChildPeer:
    """A peer in a child process, on model files in `folder`; `close` deletes them."""

    def __init__(
        self,
        name: str,
        script: Path,
        arguments: list[str],
        python: str | None,
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        self.name = name
        self.figures = Figures()
        self._folder = folder
        self._child = subprocess.Popen(
            [python or sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(Path(folder.name) / "log").open("w", encoding="utf-8"),
            text=True,
        )
        try:
            ready = self._answer()
            if "missing" in ready:
                raise PeerMissing(ready["missing"])
        except PeerMissing:
            self.close()
            raise
        self.device: str = ready["device"]

    def run(self, prompt: list[int], n_tokens: int) -> None:
        took = self._ask({"prompt": prompt, "tokens": n_tokens})
        self.figures.prefill_tok_s.append(len(prompt) / took["prefill_s"])
        self.figures.decode_tok_s.append(n_tokens / took["decode_s"])

    def logits(self, ids: list[int]) -> list[list[float]]:
        """Return logits (len(ids), vocab_size) after every token, to check the model."""
        found: list[list[float]] = self._ask({"logits": ids})["logits"]
        return found

    def streams(self, prompts: list[list[int]], n_tokens: int) -> StreamTimes:
        """Write `n_tokens` after each prompt, all started together. Raises PeerMissing if the
        process ends."""
        return StreamTimes(**self._ask({"prompts": prompts, "tokens": n_tokens}))

    def close(self) -> None:
        assert self._child.stdin
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.wait()
        self._folder.cleanup()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin
        with suppress(BrokenPipeError):  # the missing answer is reported below
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout
        line = self._child.stdout.readline()
        if not line:
            log = (Path(self._folder.name) / "log").read_text("utf-8", "replace")
            said = log.strip().splitlines()[-1:] or ["nothing"]
            status = self._child.wait()
            raise PeerMissing(f"{self.name}'s process ended with status {status}: {said[0]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
