"""Generations over text that a page has already: branches of another one."""

from __future__ import annotations

from typing import Any

import pytest

from app.ws.continuation import continuation_texts
from tests.app.conftest import Site, StartSite
from tests.app.fake_tokenizer import END, EOS, FakeTokenizer
from tests.app.page import PageClient

TOKENIZER = FakeTokenizer()
PARAMS = {"temperature": 0.5, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 2**64 - 39}


def write(
    page: PageClient, id: str, **fields: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages of a generation, and its tokens."""
    page.send_message("generate", id=id, **fields)
    page.until("done", id=id)
    messages = list(page.events(id))
    return messages, [m["event"] for m in messages if m["event"]["type"] == "token"]


def test_texts_are_those_of_a_stream() -> None:
    ids = TOKENIZER.encode("a ✨ fox 🦊", bos=False)
    assert "".join(continuation_texts(TOKENIZER, ids, len(ids))) == "a ✨ fox 🦊"
    star = TOKENIZER.encode("✨", bos=False)
    assert continuation_texts(TOKENIZER, ids, len(ids))[2:5] == ("", "", "✨")
    assert continuation_texts(TOKENIZER, star, 2) == ("", "✨"), "it began before"
    assert continuation_texts(TOKENIZER, [*star[:2], 262], 1) == ("\ufffd" + TOKENIZER.piece(262),)
    assert continuation_texts(TOKENIZER, [EOS, 262, EOS], 2) == (TOKENIZER.piece(262), "")
    assert continuation_texts(TOKENIZER, ids, 0) == ()


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_a_branch_that_changes_nothing_writes_the_same(
    start_site: StartSite, process: bool
) -> None:
    """The text has a character of three tokens; one branch begins in it."""
    page = start_site(process=process, delay=0.0).page()
    params = {**PARAMS, "max_tokens": 150}
    first, tokens = write(page, "a", prompt="Once upon", params=params)
    prompt = [token["id"] for token in first[0]["event"]["prompt"]]
    assert "✨" in page.text("a")
    middle = next(i for i, token in enumerate(tokens) if token["text"] == "✨") - 1
    assert tokens[middle]["text"] == ""
    for n in (1, 40, middle, middle + 1):
        ids = prompt + [token["id"] for token in tokens[:n]]
        rest = {**params, "max_tokens": 150 - n, "first_index": n}
        messages, again = write(page, f"b{n}", ids=ids, written=n, params=rest)
        texts = messages[0]["event"]["texts"]
        assert texts == [token["text"] for token in tokens[:n]]
        assert "".join(texts) + page.text(f"b{n}") == page.text("a")
        for token, before in zip(again, tokens[n:], strict=True):
            for name in ("id", "text", "logprob", "draw", "candidates"):
                assert token[name] == before[name]


def test_a_resumed_branch_sends_its_texts_again(site: Site) -> None:
    cookie = site.cookie()
    page = site.page(cookie=cookie)
    ids = TOKENIZER.encode("Once upon a time")
    messages, _ = write(page, "a", ids=ids, written=3, params={"max_tokens": 5})
    page.drop()
    again = site.page(cookie=cookie)
    again.send_message("resume", id="a")
    again.until("done")
    assert list(again.events("a")) == messages
    assert messages[0]["event"]["texts"] == [" upon", " a", " time"]


@pytest.mark.parametrize("end", [EOS, END])
def test_a_text_that_was_ended_by_hand_is_over_at_once(site: Site, end: int) -> None:
    page = site.page()
    assert page.messages[0]["model"]["eos_ids"] == [EOS, END]
    ids = [*TOKENIZER.encode("Once"), end]
    messages, tokens = write(page, "a", ids=ids, written=1, params=PARAMS)
    assert tokens == []
    accepted, done = messages[0]["event"], messages[-1]["event"]
    assert [message["seq"] for message in messages] == [1, 2]
    assert (accepted["type"], accepted["params"]["seed"]) == ("accepted", 2**64 - 39)
    assert [token["id"] for token in accepted["prompt"]] == ids
    assert (done["reason"], done["completion_tokens"], done["prompt_tokens"]) == ("eos", 0, 3)
    page.send_message("update", id="a", params={"temperature": 1})
    assert "has ended" in page.until("error")["message"]
    _, on = write(page, "b", ids=ids, written=1, params={"ignore_eos": True, "max_tokens": 2})
    assert len(on) == 2
    _, prompt = write(page, "c", ids=ids, params={"max_tokens": 2})
    assert len(prompt) == 2, "what is not written text may end another text"


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"ids": [262, 263], "written": 3},
        "written must be from 0 to 2, the number of ids, but got 3",
    ),
    (
        {"ids": [262, 263], "written": -1},
        "written must be from 0 to 2, the number of ids, but got -1",
    ),
    ({"ids": [262], "n_read": 2}, "n_read must be from 0 to 1, the number of ids, but got 2"),
    ({"prompt": "Once", "written": 1}, "written must be from 0 to 0, the number of ids, but got 1"),
    ({"ids": [262], "params": {"first_index": -1}}, "first_index must be an integer from 0"),
    ({"ids": [262], "params": {"first_index": 2**31}}, "first_index must be an integer from 0"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_an_impossible_continuation_is_refused(
    site: Site, fields: dict[str, Any], message: str
) -> None:
    page = site.page()
    page.send_message("generate", id="a", **fields)
    error = page.until("error")
    assert error["code"] == "invalid_request"
    assert message in error["message"]
    assert error["param"] in ("written", "n_read", "first_index")
