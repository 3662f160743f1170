"""Server as a user starts it: a separate process on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOAD_SECONDS = 180
END_SECONDS = 20
CHECKOUT = (sys.executable, "-m", "app")
"""Command of this checkout."""


@contextmanager
def serving(
    *options: str | Path, command: Sequence[str | Path] = CHECKOUT, cwd: Path = ROOT
) -> Iterator[str]:
    """Run `command serve --port 0 options`; yield its address, ending in "/", when it is ready.

    The output of the server is shown if a test fails.
    """
    environment = {k: v for k, v in os.environ.items() if cwd == ROOT or k != "PYTHONPATH"}
    environment["TOKENGLASS_CACHE"] = os.devnull  # without a cache folder, nothing is autotuned
    server = subprocess.Popen(
        [*map(str, command), "serve", "--port", "0", *map(str, options)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    settled = threading.Event()

    def read() -> None:
        for line in server.stdout or ():
            lines.append(line)
            print(line, end="")
            if line.startswith("Ready"):
                settled.set()
        settled.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        settled.wait(LOAD_SECONDS)
        printed = "".join(lines)
        assert "Ready" in printed, f"the server did not start:\n{printed}"
        assert "Loading the model …\n" in printed, f"it did not say that it loads:\n{printed}"
        found = re.search(r"http://[\d.]+:\d+/", printed)
        assert found, f"the server did not say where it is:\n{printed}"
        yield found.group()
    finally:
        server.terminate()
        try:
            server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
