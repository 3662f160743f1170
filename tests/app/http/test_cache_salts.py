"""No client finds in the prefix cache what another one wrote."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from gpu.kv.blocks import BLOCK_TOKENS
from tests.app.conftest import Site, StartSite
from tests.app.page import PageClient
from tests.app.replicas.mortal import MortalEngine

SECRET = "Dear bank, the PIN of my card is 7 3 9 1 please change it"
N_SECRET = len(SECRET)
"""Tokens of it: a byte each."""

Opened = tuple[Site, MortalEngine]


@pytest.fixture
def opened(start_site: StartSite, tmp_path: Path) -> Opened:
    return open_site(start_site, tmp_path)


def open_site(start_site: StartSite, folder: Path, **settings: Any) -> Opened:
    """Start a server with the real scheduler and KV blocks of a scripted model."""
    engine = MortalEngine(folder, n_blocks=64)
    return start_site(client=engine, settings=Settings(port=0, **settings)), engine


def write(page: PageClient, id: str, prompt: str) -> int:
    """Return how many tokens of a prompt a page found in the cache."""
    page.send_message("generate", id=id, prompt=prompt, params={"max_tokens": 2})
    return int(page.until("done", id=id)["timings"]["cache_n"])


def complete(site: Site, prompt: str, cookie: str = "", **fields: Any) -> dict[str, Any]:
    """Return the details of the tokens of a prompt that a program sent."""
    body = json.dumps({"prompt": prompt, "max_tokens": 2, **fields}).encode()
    headers = {"Content-Type": "application/json"} | ({"Cookie": cookie} if cookie else {})
    request = urllib.request.Request(f"{site.url}/v1/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        details: dict[str, Any] = json.load(response)["usage"]["prompt_tokens_details"]
    return details


def test_a_client_finds_its_own_texts_and_not_those_of_others(opened: Opened) -> None:
    """Else `cached_tokens` told another's text token by token."""
    site, _ = opened
    mine, other = site.cookie(), site.cookie()
    page = site.page(cookie=mine)
    assert write(page, "a", SECRET) == 0
    assert write(site.page(cookie=other), "b", SECRET) == 0
    assert complete(site, SECRET, other)["cached_tokens"] == N_SECRET - 1, "its own"
    assert complete(site, SECRET)["cached_tokens"] == 0, "without a cookie"
    assert complete(site, SECRET)["cached_tokens"] == N_SECRET - 1, "of the same address"
    assert write(site.page(cookie=mine), "c", SECRET) == N_SECRET - 1, "in another tab"


def embed(site: Site, cookie: str = "", **fields: Any) -> None:
    body = json.dumps({"input": [[1, 2, 3]], **fields}).encode()
    headers = {"Content-Type": "application/json", "Cookie": cookie}
    urllib.request.urlopen(urllib.request.Request(f"{site.url}/v1/embeddings", body, headers))


def test_no_chunk_of_another_clients_text_is_moved(opened: Opened) -> None:
    """Keys and values of a chunk depend on the private text before it."""
    site, _ = opened
    mine, other = site.cookie(), site.cookie()
    write(site.page(cookie=mine), "a", SECRET)
    changed = "Hello" + SECRET[9:] + "!"
    assert complete(site, changed, other, cache_reuse=BLOCK_TOKENS)["moved_tokens"] == 0
    assert complete(site, changed, mine, cache_reuse=BLOCK_TOKENS)["moved_tokens"] > 0


def test_requests_with_the_same_salt_share_and_with_another_do_not(opened: Opened) -> None:
    """As in vLLM: whoever knows it. `echo` asks about the prompt."""
    site, engine = opened
    complete(site, SECRET, site.cookie(), cache_salt="ours")
    assert complete(site, SECRET, cache_salt="theirs")["cached_tokens"] == 0
    asked = complete(site, SECRET, cache_salt="ours", echo=True, logprobs=1)
    assert asked["cached_tokens"] == N_SECRET - 1
    embed(site, cache_salt="ours")
    assert [question.cache_salt for question in engine.questions] == ["ours", "ours"]


def test_the_server_may_share_what_all_clients_write(start_site: StartSite, tmp_path: Path) -> None:
    site, engine = open_site(start_site, tmp_path, prefix_sharing="all")
    write(site.page(cookie=site.cookie()), "a", SECRET)
    assert complete(site, SECRET)["cached_tokens"] == N_SECRET - 1
    assert {request.cache_salt for request in engine.requests} == {""}


def test_questions_have_the_salt_of_their_client(opened: Opened) -> None:
    """The prompt of a run is found by the questions about it, and by nobody else's."""
    site, engine = opened
    cookies = [site.cookie(), site.cookie()]
    for cookie in cookies:
        page = site.page(cookie=cookie)
        write(page, "a", SECRET)
        page.send_message("inspect", request=1, question={"kind": "losses", "ids": [1, 2, 3]})
        page.until("answer", request=1)
    embed(site, cookies[0])
    first, second = (request.cache_salt for request in engine.requests)
    assert [question.cache_salt for question in engine.questions] == [first, second, first]
    assert first != second
    assert all(cookie.partition("=")[2].partition(".")[0] not in first for cookie in cookies)
