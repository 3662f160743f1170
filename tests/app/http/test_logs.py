"""The server's log at its most talkative has neither texts nor the token."""

from __future__ import annotations

import contextlib
import json
import logging
import urllib.error
import urllib.request

import pytest

from app.config import Settings
from tests.app.conftest import Site, StartSite

TEXT, TOKEN = "heliotrope", "amaranthine"


def post(site: Site, route: str, body: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{site.url}{route}", body.encode(), headers)
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(request).read()


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
