"""The server's log at its most talkative has no text and no token; its lines name the request."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import sys
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from app.config import Settings
from app.http.request_ids import HEADER, add_request_id
from app.server import log_to_stderr
from tests.app.conftest import Site, StartSite

TEXT, TOKEN = "heliotrope", "amaranthine"


def post(site: Site, route: str, body: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{site.url}{route}", body.encode(), headers)
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(request).read()


def get_id(site: Site, route: str, given: str = "") -> str:
    """Return the id in the response to a request that has the id `given`, if any."""
    request = urllib.request.Request(f"{site.url}{route}", headers={HEADER: given} if given else {})
    try:
        with urllib.request.urlopen(request) as response:
            return str(response.headers[HEADER])
    except urllib.error.HTTPError as error:
        return str(error.headers[HEADER])


def test_every_response_has_the_id_of_its_request(site: Site) -> None:
    ids = {get_id(site, route) for route in ("/", "/health", "/v1/models", "/nowhere", "/nowhere")}
    assert len(ids - {""}) == 5
    assert get_id(site, "/health", "proxy-7:a.b") == "proxy-7:a.b"
    for forged in ("two words", "[x]: forged", "a" * 65):
        assert len(get_id(site, "/health", forged)) == 16


def test_lines_of_the_log_name_the_request(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.handler.addFilter(add_request_id)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of the server")

    monkeypatch.setitem(site.app.view_functions, "health", fail)
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(f"{site.url}/health")
    request_id = failed.value.headers[HEADER]
    assert f"see request {request_id} in its log" in failed.value.read().decode()
    lines = [record for record in caplog.records if "unexpected error" in record.getMessage()]
    assert [getattr(record, "request", None) for record in lines] == [f" [{request_id}]"]
    other = threading.Thread(target=logging.getLogger("app").error, args=("of no request",))
    other.start()
    other.join()
    assert getattr(caplog.records[-1], "request", None) == ""


def test_the_log_has_no_control_characters(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is chosen by whoever sends it, and the log may be read on a terminal."""
    root, written = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    log_to_stderr("debug")
    try:
        with socket.create_connection(("127.0.0.1", urlsplit(site.url).port)) as client:
            client.sendall(b"GET /a\x1b[2Jb\x9b31m HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 404 " in client.recv(4096)
    finally:
        root.setLevel(level)
    assert "GET /a�[2Jb�31m 404" in written.getvalue()


def test_no_text_and_no_token_is_logged(
    start_site: StartSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    site = start_site(settings=Settings(port=0, token=TOKEN), wait=False)
    page = site.page(headers={"Authorization": f"Bearer {TOKEN}"})
    page.send_message("generate", id="a", prompt=TEXT, params={"max_tokens": 3})
    written = page.until("done") and page.text("a")
    page.send_message("generate", id=TEXT * 9, prompt=TEXT, params={"temperature": TEXT})
    page.until("error")
    for route, body in (
        ("/v1/completions", {"prompt": TEXT, "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
        ("/v1/chat/completions", {"messages": TEXT, TEXT: TEXT}),
        ("/tokenize", {"prompt": TEXT}),
        ("/v1/embeddings", {"input": TEXT}),
    ):
        post(site, route, json.dumps(body))
        post(site, f"{route}?token={TOKEN}&q={TEXT}", TEXT)
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "POST /v1/completions" in logged, "at this level requests are logged"
    assert written
    for secret in (TEXT, TOKEN, written):
        assert secret not in logged
