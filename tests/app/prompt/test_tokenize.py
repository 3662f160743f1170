"""`tokenize` shows the tokens that the engine would get, the message of each, and another
tokenizer's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app import tale
from app.engine_client import LocalEngine
from app.prompt.prompts import message_ids, prompt_ids
from app.prompt.tokenizing import (
    BYTE_TOKENIZER,
    ByteTokenizer,
    TokenizeHandler,
    comparison_tokenizer,
    tokenization,
)
from app.protocol.messages import Message, PromptPiece, Segment, Tokenize, Tokenized
from gpu import InvalidRequest, ModelError, Tokenizer
from tests.app.conftest import Site, StartSite
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import BOS, CHAT_TEMPLATE, FakeTokenizer
from tests.app.page import PageClient
from tests.app.prompt.test_prompts import ATTACKS
from tests.gpu.text import made_tokenizers as made

TALE = Path(tale.model_dir())
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\\n' + m['content'] }}<|im_end|>{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}"
)
TALK = [
    Message("system", "Be brief."),
    Message("user", "Who is Mia?"),
    Message("assistant", "user"),
    Message("user", "Who is Mia?"),
]


def tokenizing(tokenizer: Any) -> TokenizeHandler:
    """Handler with an engine that is not started: only its tokenizer is needed."""
    return TokenizeHandler(LocalEngine(loader(), tokenizer), BYTE_TOKENIZER)


def of(tokenizer: Any, messages: list[Message], continue_final: bool = False) -> Tokenized:
    return tokenizing(tokenizer).answer(
        Tokenize(1, messages=messages, continue_final=continue_final)
    )


def joined(tokens: list[PromptPiece], message: int | None) -> str:
    """Return the joined text of one message's tokens, or of the template's."""
    data = b"".join(bytes.fromhex(t.bytes) for t in tokens if t.message == message)
    return data.decode("utf-8", "replace")


@pytest.fixture(params=["fake", "tale", "byte_level", "byte_fallback"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match request.param:
        case "fake":
            return FakeTokenizer(CHAT_TEMPLATE)
        case "tale":
            return Tokenizer.load(TALE)
        case "byte_level":
            config = {"bos_token": "<|begin|>", "chat_template": CHATML}
            return Tokenizer.load(made.save(tmp_path, made.byte_level(), config))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHATML}
    return Tokenizer.load(made.save(tmp_path, made.byte_fallback(), config))


# ---- what the engine would get ---------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["Once upon", "", " two", "café 🦊<|im_end|></s>", "a\n\nb"])
def test_a_prompts_tokens_are_those_of_the_engine(tokenizer: Any, prompt: str) -> None:
    answer = tokenizing(tokenizer)
    try:
        ids = prompt_ids(tokenizer, prompt)
    except InvalidRequest:  # empty, and no BOS token is added
        with pytest.raises(InvalidRequest):
            answer.answer(Tokenize(1, prompt=prompt))
        return
    tokens = answer.answer(Tokenize(1, prompt=prompt)).tokens
    assert [token.id for token in tokens] == ids
    assert [token.special for token in tokens] == [tokenizer.is_special(id) for id in ids]
    assert [token.text for token in tokens] == [tokenizer.piece(id) for id in ids]
    assert all((token.role, token.message) == ("", None) for token in tokens)
    text = b"".join(bytes.fromhex(token.bytes) for token in tokens)
    assert text == b"".join(tokenizer.token_bytes(id) for id in ids)


@pytest.mark.parametrize("continue_final", [False, True])
def test_a_conversations_tokens_are_those_of_the_engine(
    tokenizer: Any, continue_final: bool
) -> None:
    messages = TALK[:3] if continue_final else TALK
    answer = of(tokenizer, messages, continue_final)
    assert [t.id for t in answer.tokens] == message_ids(tokenizer, messages, continue_final)
    assert answer.unplaced == []


def test_plain_text_gets_no_token_that_is_not_its_own() -> None:
    text = "<s>Once</s>"
    answer = tokenizing(FakeTokenizer()).answer(Tokenize(1, text=text))
    assert not any(token.special for token in answer.tokens)
    assert joined(answer.tokens, None) == answer.rendered == text
    assert [t.id for t in answer.tokens] == [t.id for t in answer.plain.tokens]


def test_a_prompt_begins_as_the_engine_has_it() -> None:
    tokens = tokenizing(FakeTokenizer()).answer(Tokenize(1, prompt="Once")).tokens
    assert (tokens[0].id, tokens[0].special, tokens[0].text, tokens[0].bytes) == (
        BOS,
        True,
        "<s>",
        "",
    )


def test_half_a_character_is_a_token_of_its_own() -> None:
    answer = tokenizing(FakeTokenizer()).answer(Tokenize(1, text="é"))
    assert [(token.text, token.bytes) for token in answer.tokens] == [("�", "c3"), ("�", "a9")]


# ---- whose token it is -----------------------------------------------------------------------


def test_every_message_has_its_own_words(tokenizer: Any) -> None:
    """Even if a message repeats words of the template or of another message."""
    answer = of(tokenizer, TALK)
    for i, message in enumerate(TALK):
        assert joined(answer.tokens, i).strip() == message.content
        assert {t.role for t in answer.tokens if t.message == i} == {message.role}
    assert all(t.role == "" for t in answer.tokens if t.message is None)
    order = [t.message for t in answer.tokens if t.message is not None]
    assert order == sorted(order)


@pytest.mark.parametrize("attack", ATTACKS)
def test_special_token_names_in_a_message_belong_to_that_message(attack: str) -> None:
    messages = [Message("user", attack), Message("assistant", "x"), Message("user", attack)]
    answer = of(FakeTokenizer(), messages)
    assert answer.unplaced == []
    assert joined(answer.tokens, 0) == joined(answer.tokens, 2) == attack
    assert joined(answer.tokens, 1) == "x"
    assert not any(t.special for t in answer.tokens if t.message is not None)


SPACED = [
    Message("user", "  two before"),
    Message("assistant", "after\n\n"),
    Message("user", " \n "),
    Message("assistant", ""),
    Message("user", "\nboth\n"),
]


def test_white_space_is_the_messages_when_the_template_keeps_it() -> None:
    answer = of(FakeTokenizer(), SPACED)
    assert answer.unplaced == []
    assert [joined(answer.tokens, i) for i in range(5)] == [m.content for m in SPACED]


def test_white_space_that_the_template_trims_is_nobodys() -> None:
    template = CHAT_TEMPLATE.replace("message.content", "message.content | trim")
    answer = of(FakeTokenizer(template), SPACED)
    assert answer.unplaced == []
    assert [joined(answer.tokens, i) for i in range(5)] == [m.content.strip() for m in SPACED]
    assert joined(answer.tokens, None).strip("\n") == ""


def test_a_template_may_put_messages_in_another_order() -> None:
    template = "{% for m in messages | reverse %}<|user|>{{ m.content }}<|end|>{% endfor %}"
    answer = of(FakeTokenizer(template), TALK)
    assert [joined(answer.tokens, i) for i in range(4)] == [m.content for m in TALK]
    assert next(t.message for t in answer.tokens if t.message is not None) == 3


EACH = "{%% for m in messages %%}[%s]{%% endfor %%}"
REWRITES = {
    "upper case": (EACH % "{{ m.content | upper }}", []),
    "leaves out": (EACH % "{% if not loop.first %}{{ m.content }}{% endif %}", [0]),
    "says twice": (EACH % "{{ m.content }}" + "{{ messages[1].content }}", [1]),
    "the second half": (EACH % "{{ m.content.split(' is ')[-1] }}", [1, 3]),
    "counts": (EACH % "{{ m.content | length }}", [0, 1, 2, 3]),
    "refuses": (
        EACH
        % "{% if m.content | length > 13 %}{{ raise_exception('') }}{% endif %}{{ m.content }}",
        [0, 1, 2, 3],
    ),
}


@pytest.mark.parametrize(("template", "unplaced"), REWRITES.values(), ids=REWRITES)
def test_what_cannot_be_determined_is_reported(template: str, unplaced: list[int]) -> None:
    answer = of(FakeTokenizer(template), TALK)
    assert answer.unplaced == unplaced
    assert not any(t.message in unplaced for t in answer.tokens)
    for i in set(range(4)) - set(unplaced):
        assert joined(answer.tokens, i).lower() == TALK[i].content.lower()


def test_contents_with_every_mark_are_still_tokenized() -> None:
    marks = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    answer = of(FakeTokenizer(), [Message("user", marks)])
    assert answer.unplaced == [0]
    assert [t.id for t in answer.tokens] == message_ids(FakeTokenizer(), [Message("user", marks)])


# ---- beside another tokenizer ----------------------------------------------------------------


def test_counts_exclude_the_template() -> None:
    answer = of(FakeTokenizer(), [Message("user", "A café"), Message("assistant", "🦊 ")])
    assert (answer.n_chars, answer.n_bytes, answer.n_words) == (9, 13, 3)
    assert answer.compare.n_tokens == answer.n_bytes == len(answer.compare.tokens)
    assert answer.compare.tokens_per_word == 13 / 3
    assert answer.plain.n_tokens == len(answer.plain.tokens) == 1 + 1 + 2 + 1 + 4 + 1


def test_a_byte_tokenizer_needs_no_vocabulary() -> None:
    found = tokenization("bytes", ByteTokenizer(), "aé<s>")
    assert "".join(token.bytes for token in found.tokens) == "aé<s>".encode().hex()
    assert [token.text for token in found.tokens[:2]] == ["a", "�"]


def test_a_text_without_words_has_no_tokens_per_word() -> None:
    for text in ("", " \n"):
        answer = tokenizing(FakeTokenizer()).answer(Tokenize(1, text=text))
        assert answer.compare.tokens_per_word is answer.plain.tokens_per_word is None


def test_the_bundled_tokenizer_is_the_one_to_compare_with(tmp_path: Path) -> None:
    assert comparison_tokenizer(None, TALE) is BYTE_TOKENIZER
    beside = comparison_tokenizer(None, tmp_path)
    assert beside.name == tale.NAME
    assert beside.tokenizer.encode("Once", bos=False) == Tokenizer.load(TALE).encode(
        "Once", bos=False
    )


def test_another_tokenizer_can_be_given(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    made.save(folder, made.byte_fallback(), {"bos_token": "<s>"})
    for path in (folder, folder / "tokenizer.json"):
        other = comparison_tokenizer(path, TALE)
        assert other.name == "llama"
        found = tokenization(other.name, other.tokenizer, "Once </s> upon")
        assert not any(token.special for token in found.tokens)
        assert found.n_tokens == len(Tokenizer.load(folder).encode("Once </s> upon", False, False))


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": 5}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        comparison_tokenizer(path, TALE)


# ---- over the socket -------------------------------------------------------------------------


def test_the_page_is_answered_with_its_request_number(start_site: StartSite) -> None:
    site = start_site(compare=comparison_tokenizer(TALE, TALE))
    page = site.page()
    page.send_message("tokenize", request=4, prompt="Once upon")
    answer = page.until("tokenized", request=4)
    assert answer["rendered"] == "Once upon"
    assert answer["tokens"][0] == {
        "id": BOS,
        "text": "<s>",
        "bytes": "",
        "special": True,
        "role": "",
        "message": None,
    }
    assert answer["plain"]["name"] == "fake-story"
    assert answer["compare"]["name"] == TALE.name
    assert set(answer["compare"]["tokens"][0]) == {"id", "text", "bytes", "special"}


def test_texts_are_tokenized_while_the_model_loads(start_site: StartSite) -> None:
    site = start_site(load_seconds=2, wait=False)
    page = PageClient(site.port)
    site.pages.append(page)
    page.send_message("tokenize", request=1, text="Once")
    assert page.until("tokenized")["plain"]["name"] == ""


USER = {"role": "user", "content": "a"}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "invalid_request", "prompt"),
    "two": ({"prompt": "a", "text": "a"}, "invalid_request", "prompt"),
    "no messages": ({"messages": []}, "invalid_request", "messages"),
    "continue a text": ({"text": "a", "continue_final": True}, "invalid_request", "continue_final"),
    "continue a user": (
        {"messages": [USER], "continue_final": True},
        "invalid_request",
        "messages",
    ),
    "a number for a text": ({"text": 5}, "bad_message", "text"),
    "unknown role": ({"messages": [{"role": "x", "content": ""}]}, "bad_message", "messages"),
    "unknown field": ({"text": "a", "speed": 1}, "bad_message", ""),
    "too large": ({"text": "x" * 65536}, "bad_message", ""),
}


@pytest.mark.parametrize(("fields", "code", "param"), BAD.values(), ids=BAD)
def test_a_bad_tokenize_request_is_refused_by_its_number(
    site: Site, fields: dict[str, Any], code: str, param: str
) -> None:
    page = site.page()
    page.send_message("tokenize", request=9, **fields)
    error = page.until("error")
    assert (error["request"], error["code"], error["id"]) == (9, code, "")
    assert error["param"].startswith(param)
    page.send_message("tokenize", request=10, text="a")
    page.until("tokenized", request=10)


def test_steps_come_with_the_tokens_that_they_name() -> None:
    tokenizer = Tokenizer.load(TALE)
    answer = tokenizing(tokenizer).segment(Segment(3, "Once unfolding"))
    assert (answer.request, answer.algorithm) == (3, "BPE")
    assert [word.word for word in answer.words] == ["Once", "Ġunfolding"]
    assert [len(word.symbols) for word in answer.words] == [4, 10]
    ids = [id for word in answer.words for id in word.ids]
    assert ids == tokenizer.encode("Once unfolding", bos=False)
    named = {id for word in answer.words for id in (*word.symbols, *word.ids)}
    named |= {merge.id for word in answer.words for merge in word.merges}
    assert {piece.id: piece.text for piece in answer.pieces} == {
        id: tokenizer.piece(id) for id in named
    }


def test_words_are_segmented_over_the_socket(site: Site) -> None:
    page = site.page()
    page.send_message("segment", request=3, text="Once upon")
    answer = page.until("segmented", request=3)
    assert [word["word"] for word in answer["words"]] == ["Once", " upon"]
    assert [piece["text"] for piece in answer["pieces"]] == ["Once", " upon"]


@pytest.mark.parametrize(
    ("fields", "param"), [({"text": 5}, "text"), ({}, ""), ({"text": "a", "bos": True}, "")]
)
def test_a_bad_segment_request_is_refused_by_its_number(
    site: Site, fields: dict[str, Any], param: str
) -> None:
    page = site.page()
    page.send_message("segment", request=9, **fields)
    error = page.until("error")
    assert (error["request"], error["code"]) == (9, "bad_message")
    assert error["param"].startswith(param)


def test_without_a_template_messages_are_refused(start_site: StartSite) -> None:
    page = start_site(chat_template=None).page()
    page.send_message("tokenize", request=1, messages=[USER])
    assert page.until("error", request=1)["param"] == "messages"
