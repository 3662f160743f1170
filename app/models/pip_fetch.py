"""Script that downloads one wheel as pip would: with its index, proxy, certificates and passwords.

Run as `python -P pip_fetch.py NAME VERSION BYTES FILE`, in a process of its own, since a request
cannot be cancelled otherwise and what pip has inside may change. pip itself would neither continue
a file that an earlier run left unfinished nor, before version 24.1, say how far it is. Nothing of
the wheel is read here.

It ends with standard input, which the server keeps open: a download that outlived a killed server
would write into the file that the next server continues.

Standard output has a line of JSON for each step: {"state": "begun"} once pip is loaded, "found"
when the index has answered, "at" with the bytes that are in FILE, and "failed" with a `kind` (one
of `no_pip`, `unreachable`, `absent`, `disk`, `size`) and a `detail`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

CHUNK_BYTES = 1 << 16
REPORT_SECONDS = 0.1


def say(state: str, **fields: Any) -> None:
    print(json.dumps({"state": state, **fields}), flush=True)


def fail(kind: str, detail: str) -> NoReturn:
    say("failed", kind=kind, detail=" ".join(detail.split())[:300])
    sys.exit(1)


def end_with_stdin() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


class Unreachable(logging.Handler):
    """Keeps why pip could not read a page of an index: it only logs that, and finds nothing."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.why = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Could not fetch URL") and not self._is_absent(record):
            self.why = text

    @staticmethod
    def _is_absent(record: logging.LogRecord) -> bool:
        """Return whether the index answered that it has no such page. The text alone does not say:
        a port and the address of an object may contain 404, too."""
        answers = [getattr(each, "response", None) for each in record.args or ()]
        return any(getattr(answer, "status_code", None) == 404 for answer in answers)


def main(name: str, version: str, n_bytes: int, file: Path) -> None:
    try:
        from pip._internal.commands import create_command
        from pip._vendor.packaging.specifiers import SpecifierSet
    except ImportError as error:
        fail("no_pip", str(error))
    say("begun")
    logger, unreachable = logging.getLogger("pip._internal.index.collector"), Unreachable()
    try:
        command: Any = create_command("download")
        options, _ = command.parse_args(
            ["--no-input", "--no-cache-dir", "--only-binary", ":all:", name]
        )
        options.retries = 0
        with command.main_context():
            session = command.get_default_session(options)
            finder = command._build_package_finder(options, session)
            logger.setLevel(logging.DEBUG)
            logger.addHandler(unreachable)
            found = finder.find_best_candidate(name, SpecifierSet(f"=={version}")).best_candidate
            if found is None:
                kind = "unreachable" if unreachable.why else "absent"
                fail(kind, unreachable.why or f"{name} {version} is not on the index")
            say("found")
            fetch(session, found.link.url_without_fragment, n_bytes, file)
    except (AttributeError, TypeError) as error:
        fail("no_pip", f"this version of pip is unknown: {error}")


def fetch(session: Any, url: str, n_bytes: int, file: Path) -> None:
    """Download what `file` lacks of its `n_bytes` bytes; a connection that broke is opened again
    if it brought anything."""
    while (before := size(file)) < n_bytes:
        why = "the connection was closed"
        try:
            receive(session, url, n_bytes, file)
        except OSError as error:  # what pip's HTTP library raises too
            if error.errno is not None and not isinstance(error, ConnectionError):
                fail("disk", error.strerror or str(error))
            why = str(error)
        if size(file) <= before:
            fail("unreachable", why)


def receive(session: Any, url: str, n_bytes: int, file: Path) -> None:
    """Append to `file` what a request brings. An answer with more than is left of `n_bytes` bytes
    ends the script, and `file` is emptied: that is another wheel, and might fill the disk."""
    before = size(file)
    headers = {"Accept-Encoding": "identity"}
    if before:
        headers["Range"] = f"bytes={before}-"
    with session.get(url, headers=headers, stream=True) as answer:
        answer.raise_for_status()
        at, reported = (before, 0.0) if answer.status_code == 206 else (0, 0.0)
        with file.open("ab" if at else "wb") as out:
            for chunk in answer.iter_content(CHUNK_BYTES):
                at += len(chunk)
                if at > n_bytes:
                    out.truncate(0)
                    fail("size", f"more than {n_bytes} bytes")
                out.write(chunk)
                if time.monotonic() - reported > REPORT_SECONDS:
                    reported = time.monotonic()
                    say("at", bytes=at)
    say("at", bytes=at)


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


if __name__ == "__main__":
    threading.Thread(target=end_with_stdin, daemon=True).start()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
