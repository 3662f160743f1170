"""/tokenize, /detokenize and /apply-template, with the fields of llama-server and of vLLM."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.http.client_limits import EXTENSION, ClientLimits
from app.openai.long_requests import LONG_BYTES
from tests.app.conftest import StartSite
from tests.app.fake_tokenizer import CHAT_TEMPLATE, TOOL_TEMPLATE, FakeTokenizer
from tests.app.page import PATIENCE_S, wait_until

HELLO = [{"role": "user", "content": "Hi"}]


TOOLS = [{"type": "function", "function": {"name": "add"}}]


def post(client: FlaskClient, route: str, status: int = 200, **body: Any) -> dict[str, Any]:
    response = client.post(route, json=body)
    assert response.status_code == status, response.text
    assert response.json is not None
    return response.json


def test_a_prompt_is_tokenized_as_in_vllm(http: FlaskClient) -> None:
    answer = post(http, "/tokenize", prompt="Once upon", return_token_strs=True)
    ids = FakeTokenizer().encode("Once upon")
    assert answer["tokens"] == ids
    assert answer["count"] == len(ids)
    assert answer["max_model_len"] == 512
    assert "".join(answer["token_strs"]) == "<s>Once upon"


def test_content_is_tokenized_as_in_llama_server(http: FlaskClient) -> None:
    answer = post(http, "/tokenize", content="Once café", with_pieces=True)
    ids = FakeTokenizer().encode("Once café", bos=False)
    assert [token["id"] for token in answer["tokens"]] == ids
    data = b"".join(
        piece.encode() if isinstance(piece := token["piece"], str) else bytes(piece)
        for token in answer["tokens"]
    )
    assert data.decode().strip() == "Once café"


def test_only_a_prompt_begins_with_the_first_token_by_itself(http: FlaskClient) -> None:
    plain = post(http, "/tokenize", content="Once")["tokens"]
    begun = post(http, "/tokenize", content="Once", add_special=True)["tokens"]
    assert begun == post(http, "/tokenize", prompt="Once")["tokens"]
    assert plain == post(http, "/tokenize", prompt="Once", add_special_tokens=False)["tokens"]


def test_messages_are_tokenized_as_a_run_would_read_them(http: FlaskClient) -> None:
    answer = post(http, "/tokenize", messages=HELLO)
    run = post(http, "/v1/chat/completions", messages=HELLO, max_tokens=1)
    assert answer["count"] == run["usage"]["prompt_tokens"]


def test_tokens_become_text_again(http: FlaskClient) -> None:
    ids = FakeTokenizer().encode("Once upon a café", bos=False)
    answer = post(http, "/detokenize", tokens=ids)
    assert answer["content"] == answer["prompt"]
    assert answer["content"].strip() == "Once upon a café"
    assert post(http, "/detokenize", tokens=[])["content"] == ""


def test_the_template_is_applied(http: FlaskClient) -> None:
    text = post(http, "/apply-template", messages=HELLO)["prompt"]
    assert "Hi" in text
    assert (
        post(http, "/tokenize", content=text)["tokens"]
        == (post(http, "/tokenize", messages=HELLO)["tokens"])
    )
    begun = [*HELLO, {"role": "assistant", "content": "Well"}]
    continued = post(
        http, "/apply-template", messages=begun, continue_final_message=True,
        add_generation_prompt=False,
    )["prompt"]  # fmt: skip
    assert continued.endswith("Well")


@pytest.mark.parametrize(
    ("route", "body", "param", "said"),
    [
        ("/tokenize", {}, "content", "exactly one of content, prompt and messages"),
        ("/tokenize", {"content": "a", "prompt": "b"}, "content", "exactly one"),
        ("/tokenize", {"content": 3}, "content", "Expected `str | null`"),
        ("/tokenize", {"text": "a"}, "text", "unknown field"),
        ("/tokenize", {"messages": [{"role": "judge", "content": "a"}]}, "messages[0].role", ""),
        ("/tokenize", {"messages": HELLO, "add_generation_prompt": False},
         "add_generation_prompt", "not supported"),
        ("/detokenize", {}, "tokens", "missing required field"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]", ">= 0"),
        ("/detokenize", {"tokens": [1, 10**9]}, "tokens[1]", "ids go from 0 to"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]", "Expected `int`"),
        ("/apply-template", {"messages": []}, "messages", ""),
        ("/tokenize", {"content": "a", "tools": TOOLS}, "tools", "belong to messages"),
        ("/apply-template", {"messages": HELLO, "tools": TOOLS * 2},
         "tools[1].function.name", "give each its own"),
        ("/apply-template", {"messages": HELLO, "documents": []}, "documents", "unknown field"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_by_name(
    http: FlaskClient, route: str, body: dict[str, Any], param: str, said: str
) -> None:
    error = post(http, route, 400, **body)["error"]
    assert error["param"] == param, error
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


def test_tools_are_part_of_the_prompt(start_site: StartSite) -> None:
    client = start_site(chat_template=TOOL_TEMPLATE).app.test_client()
    text = post(client, "/apply-template", messages=HELLO, tools=TOOLS)["prompt"]
    assert '{"name": "add", "parameters": {"type": "object", "properties": {}}}' in text
    tokens = post(client, "/tokenize", messages=HELLO, tools=TOOLS)["tokens"]
    assert post(client, "/tokenize", content=text)["tokens"] == tokens


def test_a_model_without_a_template_has_none_to_apply(start_site: StartSite) -> None:
    client = start_site(chat_template=None).app.test_client()
    error = post(client, "/apply-template", 400, messages=HELLO)["error"]
    assert "no chat template" in error["message"]
    assert post(client, "/tokenize", content="Once")["count"] > 0


def test_tokenizer_info_names_the_special_tokens_and_the_template(http: FlaskClient) -> None:
    info = http.get("/tokenizer_info").json
    assert info is not None
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")
    assert info["chat_template"] == CHAT_TEMPLATE
    for name in ("bos_token", "eos_token"):
        body = {"prompt": info[name], "add_special_tokens": False}
        tokenized = http.post("/tokenize", json=body).json
        assert tokenized is not None
        assert tokenized["count"] == 1, "clients learn its id so"


LONG_ROUTES = {
    "/tokenize": "prompt",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/v1/responses": "input",
    "/v1/chat/completions": "messages",
    "/apply-template": "messages",
}
"""Routes that read texts, and the field that has one."""


def test_long_texts_take_turns_and_short_ones_do_not_wait(start_site: StartSite) -> None:
    """Each takes the server's threads from the texts that are written; no client may have more of
    them than it may have runs."""
    site = start_site(n_slots=2, queue=2)
    client_limits: ClientLimits = site.app.extensions[EXTENSION]
    go, active, most_active = threading.Event(), list[int](), list[int]()

    class Slow(FakeTokenizer):
        def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
            active.append(len(text))
            most_active.append(len(active))
            assert len(text) < LONG_BYTES or go.wait(PATIENCE_S)
            active.pop()
            return super().encode(text[:9], bos, specials)

    def ask(route: str, text: str) -> int:
        body = {LONG_ROUTES[route]: text}
        if route in ("/v1/chat/completions", "/apply-template"):
            body = {"messages": [{"role": "user", "content": text}]}
        return site.app.test_client().post(route, json=body).status_code

    def n_places() -> int:
        return sum(map(len, client_limits._places.values()))

    site.engine.tokenizer = Slow()
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, route, "x" * LONG_BYTES) for route in list(LONG_ROUTES)[:3]]
        try:
            wait_until(lambda: n_places() == 3 and bool(active))
            assert [ask(route, "x" * LONG_BYTES) for route in LONG_ROUTES] == [429] * 6
            assert max(most_active) == 1
            assert ask("/tokenize", "short") == 200
        finally:
            go.set()
    assert [one.result() for one in asked] == [200] * 3
    assert max(most_active) == 2, "the short one beside a long one"
    wait_until(lambda: not n_places())
