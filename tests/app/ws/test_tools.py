"""Tools over the WebSocket: descriptions, calls and results of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import Site, StartSite
from tests.app.fake_tokenizer import CHAT_TEMPLATE, TOOL_TEMPLATE, FakeTokenizer

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Sum of two numbers",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
ASKED = {"role": "user", "content": "2 + 3?"}
ARGUMENTS = '{"a": 2, "b": 3}'
CALLED = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": ARGUMENTS}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}
CALL = f'Let me see.\n<tool_call>\n{{"name": "add", "arguments": {ARGUMENTS}}}\n</tool_call>'
GREEDY = {"temperature": 0, "max_tokens": 400}


@pytest.mark.parametrize("chat_template", [TOOL_TEMPLATE, CHAT_TEMPLATE], ids=["tools", "none"])
def test_the_end_of_a_run_names_its_calls(start_site: StartSite, chat_template: str) -> None:
    site = start_site(text=CALL, ends=True, chat_template=chat_template, context=4096)
    page = site.page()
    page.send_message("generate", id="a", messages=[ASKED], tools=[ADD], params=GREEDY)
    done = page.until("done")
    assert done["content"] == "Let me see."
    (call,) = done["tool_calls"]
    assert (call["name"], call["arguments"]) == ("add", ARGUMENTS)
    answered = [ASKED, {**CALLED, "tool_calls": [{**CALLED["tool_calls"][0], "id": call["id"]}]}]  # type: ignore[index]
    answered.append({**RESULT, "tool_call_id": call["id"]})
    page.send_message("generate", id="b", messages=answered, tools=[ADD], params=GREEDY)
    accepted = page.until("accepted", id="b")
    prompt = "".join(token["text"] for token in accepted["prompt"])
    assert "5" in prompt[prompt.index(ARGUMENTS) + len(ARGUMENTS) :]


def test_a_required_call_has_a_grammar(start_site: StartSite) -> None:
    page = start_site(text=CALL, ends=True, context=4096).page()
    fields = {"messages": [ASKED], "tools": [ADD], "params": GREEDY}
    for id, choice, has_grammar in (("a", "required", True), ("b", "auto", False)):
        page.send_message("generate", id=id, tool_choice=choice, **fields)
        accepted = page.until("accepted", id=id)
        assert ("grammar" in accepted) == has_grammar
        page.until("done", id=id)
    grammar = next(page.events("a"))["event"]["grammar"]
    assert (grammar["kind"], grammar["n_read"]) == ("lark", 0)
    page.send_message("generate", id="c", tool_choice="none", **fields)
    accepted = page.until("accepted", id="c")
    assert "add" not in "".join(token["text"] for token in accepted["prompt"])


def test_a_run_without_tools_has_no_calls(start_site: StartSite) -> None:
    page = start_site(text=CALL, ends=True, context=4096).page()
    page.send_message("generate", id="a", messages=[ASKED], params=GREEDY)
    done = page.until("done")
    assert "tool_calls" not in done
    assert "content" not in done


@pytest.mark.parametrize("n_before", [0, 20], ids=["once", "twice"])
def test_a_call_that_was_begun_before_a_continuation_is_read_whole(
    start_site: StartSite, n_before: int
) -> None:
    """`n_before` tokens of the answer were given to an earlier continuation already."""
    at = CALL.index("name")
    site = start_site(text=CALL[at:], ends=True, chat_template=TOOL_TEMPLATE, context=4096)
    page = site.page()
    begun = FakeTokenizer().encode(CALL[:at], bos=False)
    ids = [*FakeTokenizer().encode("2 + 3?"), *begun]
    continued = {"written": len(begun) - n_before, "n_read": len(begun) if n_before else 0}
    page.send_message("generate", id="a", ids=ids, **continued, tools=[ADD], params=GREEDY)
    assert len(page.until("accepted")["texts"]) == continued["written"]
    done = page.until("done")
    (call,) = done["tool_calls"]
    assert (call["name"], call["arguments"]) == ("add", ARGUMENTS)
    assert done["content"] == "Let me see."


def test_tools_count_among_the_tokens_of_a_prompt(site: Site) -> None:
    page = site.page()
    page.send_message("count", request=1, messages=[ASKED])
    plain = page.until("counted", request=1)["tokens"]
    page.send_message("count", request=2, messages=[ASKED], tools=[ADD])
    described = page.until("counted", request=2)["tokens"]
    assert described > plain + 50
    page.send_message("tokenize", request=3, messages=[ASKED, CALLED, RESULT], tools=[ADD])
    tokenized = page.until("tokenized", request=3)
    roles = {token["message"]: token["role"] for token in tokenized["tokens"]}
    assert (roles[0], roles[1], roles[2]) == ("user", "assistant", "tool")


TOO_DEEP: dict[str, Any] = {}
for _ in range(70):
    TOO_DEEP = {"items": TOO_DEEP}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a result without a call": ({"messages": [ASKED, RESULT]}, "messages[1].tool_call_id"),
    "a result without an id": (
        {"messages": [ASKED, CALLED, {"role": "tool", "content": "5"}]},
        "messages[2].tool_call_id",
    ),
    "an id in a user's message": (
        {"messages": [{**ASKED, "tool_call_id": "c1"}]},
        "messages[0].tool_call_id",
    ),
    "calls in a user's message": (
        {"messages": [{**CALLED, "role": "user"}]},
        "messages[0].tool_calls",
    ),
    "two calls of one id": (
        {"messages": [ASKED, {**CALLED, "tool_calls": CALLED["tool_calls"] * 2}, RESULT]},  # type: ignore[operator]
        "messages[1].tool_calls[1].id",
    ),
    "two functions of one name": (
        {"messages": [ASKED], "tools": [ADD, ADD]},
        "tools[1].function.name",
    ),
    "a schema that is too deep": (
        {
            "messages": [ASKED],
            "tools": [{"type": "function", "function": {"name": "a", "parameters": TOO_DEEP}}],
        },
        "tools[0].function.parameters",
    ),
    "a call of nothing": ({"messages": [ASKED], "tool_choice": "required"}, "tool_choice"),
    "a grammar beside tools": (
        {"messages": [ASKED], "tools": [ADD], "grammar": {"kind": "regex", "text": "a"}},
        "grammar",
    ),
}


@pytest.mark.parametrize(("fields", "param"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_by_name(site: Site, fields: dict[str, Any], param: str) -> None:
    page = site.page()
    page.send_message("generate", id="a", **fields)
    error = page.until("error")
    assert (error["code"], error["param"], error["id"]) == ("invalid_request", param, "a")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "function", "content": "5"}]},
        {"messages": [ASKED], "tools": [{"type": "web_search"}]},
        {"messages": [ASKED], "tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"messages": [ASKED], "tools": [ADD] * 129},
        {"messages": [ASKED], "tools": [ADD], "tool_choice": "sometimes"},
        {"messages": [{**CALLED, "tool_calls": [{"id": "c"}]}]},
    ],
)
def test_a_message_of_another_form_is_refused(site: Site, fields: dict[str, Any]) -> None:
    page = site.page()
    page.send_message("generate", id="a", **fields)
    assert page.until("error")["code"] == "bad_message"
