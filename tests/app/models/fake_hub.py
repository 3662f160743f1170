"""Fake Hugging Face hub on loopback: the HTTP requests of `huggingface_hub`, and network faults.

GET  /api/models?search=TEXT                    names and tags of repositories
GET  /api/models/OWNER/NAME/revision/REVISION   the files of a commit
HEAD, GET /OWNER/NAME/resolve/REVISION/FILE     a small file, or a redirect to a large one
GET  /cdn/SHA256                                 a large file, by ranges; on another host
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LARGE = (".safetensors", ".bin", ".gguf")
COMMIT = "c0ffee" + 34 * "0"


@dataclass
class Repo:
    """Repository. `token` is needed to read it; `gated`: without it, the error is "gated"."""

    files: dict[str, bytes]
    commit: str = COMMIT
    token: str | None = None
    gated: bool = False
    tags: tuple[str, ...] = ("safetensors", "llama")


@dataclass
class Faults:
    """Faults by file name.

    cut     close the connection after this number of bytes, once for each entry
    damage  change a byte in the middle
    status  HTTP status of every response
    whole   ranges are ignored: every file comes whole
    """

    cut: dict[str, list[int]] = field(default_factory=dict)
    damage: set[str] = field(default_factory=set)
    status: int | None = None
    whole: bool = False


@dataclass(frozen=True)
class RecordedRequest:
    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


class FakeHub:
    """Fake hub. `repos` are by OWNER/NAME; `asked` records all requests in order; `cdn_host`: where
    it sends those who ask for a large file."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults = Faults()
        self.cdn_host = "localhost"
        self.asked: list[RecordedRequest] = []
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fetched(self, name: str) -> list[RecordedRequest]:
        """Return the GET requests that returned bytes of a file."""
        digests = {
            hashlib.sha256(repo.files[name]).hexdigest()
            for repo in self.repos.values()
            if name in repo.files
        }
        small = None if name.endswith(LARGE) else f"/{name}"
        return [
            a
            for a in self.asked
            if a.method == "GET"
            and (a.path[5:] in digests or (small is not None and a.path.endswith(small)))
        ]


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        path = self.path.partition("?")[0]
        self.hub.asked.append(RecordedRequest(self.command, path, headers))
        if self.hub.faults.status is not None:
            return self._answer(self.hub.faults.status, b"")
        if found := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            return self._large(found[1])
        if path == "/api/models":
            text = parse_qs(urlsplit(self.path).query).get("search", [""])[0]
            found_repos = [
                {"id": name, "tags": list(repo.tags), "gated": repo.gated}
                for name, repo in self.hub.repos.items()
                if text in name
            ]
            return self._answer(200, json.dumps(found_repos).encode())
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path):
            if repo := self._repo(found[1], found[2]):
                self._answer(200, json.dumps(_listing(found[1], repo)).encode())
            return None
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if repo := self._repo(found[1], found[2]):
                self._resolve(repo, found[3])
            return None
        return self._answer(404, b"")

    def _repo(self, name: str, revision: str) -> Repo | None:
        """Return the repository if it exists and the request may read it."""
        repo = self.hub.repos.get(name)
        given = self.headers.get("Authorization")
        if given is not None and not any(
            given == f"Bearer {r.token}" for r in self.hub.repos.values()
        ):
            message = "Invalid credentials in Authorization header"
            return self._answer(401, b"", **{"X-Error-Message": message})
        if repo is None or (repo.token and not repo.gated and given != f"Bearer {repo.token}"):
            return self._answer(401, b"", **{"X-Error-Code": "RepoNotFound"})
        if repo.gated and given != f"Bearer {repo.token}":
            return self._answer(403, b"", **{"X-Error-Code": "GatedRepo"})
        if revision not in ("main", repo.commit):
            return self._answer(404, b"", **{"X-Error-Code": "RevisionNotFound"})
        return repo

    def _resolve(self, repo: Repo, name: str) -> None:
        data = repo.files.get(name)
        commit = {"X-Repo-Commit": repo.commit}
        if data is None:
            return self._answer(404, b"", **{"X-Error-Code": "EntryNotFound"}, **commit)
        if name.endswith(LARGE):
            digest = hashlib.sha256(data).hexdigest()
            return self._answer(
                302,
                b"",
                Location=f"http://{self.hub.cdn_host}:{self.hub.port}/cdn/{digest}",
                **{"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))},
                **{"X-Xet-Hash": digest, "X-Xet-Refresh-Route": "/api/xet-read-token"},
                **commit,
            )
        return self._send(name, data, ETag=f'"{_git_id(data)}"', **commit)

    def _large(self, digest: str) -> None:
        for repo in self.hub.repos.values():
            for name, data in repo.files.items():
                if hashlib.sha256(data).hexdigest() == digest:
                    return self._send(name, data)
        return self._answer(404, b"")

    def _send(self, name: str, data: bytes, **headers: str) -> None:
        faults = self.hub.faults
        if name in faults.damage:
            data = data[: len(data) // 2] + b"\xa5" + data[len(data) // 2 + 1 :]
        start = 0
        asked = "" if faults.whole else self.headers.get("Range", "")
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", asked):
            start, end = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            data = data[start : end + 1]
        cut = faults.cut.get(name) if self.command == "GET" else None
        n_sent = cut.pop(0) - start if cut else len(data)
        self._answer(206 if found else 200, data, n_sent=n_sent, **headers)

    def _answer(
        self,
        status: int,
        body: bytes,
        n_sent: int | None = None,
        **headers: str,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Access-Control-Allow-Origin", "*")  # pages of other sites may read it
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[:n_sent])
        self.close_connection = n_sent is not None and n_sent < len(body)


def _listing(name: str, repo: Repo) -> dict[str, Any]:
    siblings = []
    for file, data in repo.files.items():
        entry: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": _git_id(data)}
        if file.endswith(LARGE):
            digest = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"size": len(data), "sha256": digest, "pointerSize": 135}
        siblings.append(entry)
    return {"id": name, "sha": repo.commit, "siblings": siblings, "private": False, "tags": []}


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
