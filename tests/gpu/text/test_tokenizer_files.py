"""Tokenizer settings in a model folder's files, and the files that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from gpu.errors import InvalidRequest, ModelError
from gpu.text.tokenizer import Tokenizer
from tests.gpu.text import made_tokenizers as made
from tests.gpu.text.tokenizer_families import BYTE_FALLBACK, BYTE_LEVEL, stream


def test_names_and_templates_are_read_in_every_form(tmp_path: Path) -> None:
    made.save(tmp_path, made.byte_level(), {**BYTE_LEVEL, "chat_template": "one"})
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|begin|>", "<|im_end|>")
    assert (tokenizer.eos_ids, tokenizer.chat_template) == ((2,), "one")
    assert tokenizer.vocab_size == 400
    named = [{"name": "rag", "template": "two"}, {"name": "default", "template": "three"}]
    made.save(tmp_path, made.byte_level(), {"chat_template": named})
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.bos_token, tokenizer.eos_ids) == (None, ())
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("three", None)
    made.save(tmp_path, made.byte_level(), {"chat_template": named[:1]})
    assert Tokenizer.load(tmp_path).chat_template == "two"
    (tmp_path / "chat_template.jinja").write_text("four é")
    assert Tokenizer.load(tmp_path).chat_template == "four é"


DEFAULT, TOOLS = "{{ messages[0].content }}", "{{ tools | length }}"
NAMED = {"default": DEFAULT, "tool_use": TOOLS, "rag": "{{ documents }}"}
LISTED = [{"name": name, "template": text} for name, text in NAMED.items()]
TEMPLATES: dict[str, tuple[Any, dict[str, str]]] = {
    "one in the config": (DEFAULT, {}),
    "a list in the config": (LISTED, {}),
    "an object in the config": (NAMED, {}),
    "a file": (LISTED, {"chat_template.jinja": DEFAULT}),
    "files": (
        None,
        {"chat_template.jinja": DEFAULT, "additional_chat_templates/tool_use.jinja": TOOLS},
    ),
    "only additional files": (
        "ignored",
        {f"additional_chat_templates/{name}.jinja": text for name, text in NAMED.items()},
    ),
    "a second default": (
        None,
        {"chat_template.jinja": "ignored", "additional_chat_templates/default.jinja": DEFAULT},
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_templates_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    """Files go before the config, wherever the templates are."""
    value, files = TEMPLATES[case]
    made.save(tmp_path, made.byte_level(), {"eos_token": "<|im_end|>", "chat_template": value})
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.chat_template == theirs.get_chat_template() == DEFAULT
    assert (ours.tool_template or DEFAULT) == theirs.get_chat_template(tools=[])
    theirs.save_pretrained(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert (again.chat_template, again.tool_template) == (ours.chat_template, ours.tool_template)


def test_a_template_that_is_no_file_is_refused(tmp_path: Path) -> None:
    made.save(tmp_path, made.byte_level(), BYTE_LEVEL)
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"tool_use\.jinja: cannot be read: it is a folder"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("older", [True, False])
def test_tokens_of_companion_files_are_added(tmp_path: Path, older: bool) -> None:
    new = {"<new>": 400, "<turn>": 401, "<|im_end|>": 2}
    config: dict[str, Any] = {"eos_token": "<turn>"}
    if older:
        (tmp_path / "added_tokens.json").write_text(json.dumps(new))
    else:
        config["added_tokens_decoder"] = {str(id): {"content": text} for text, id in new.items()}
    made.save(tmp_path, made.byte_level(), config)
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "a<new> b<turn>c<|im_end|>"
    assert ours.encode(text, bos=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.encode(text, bos=False)[1] == 400
    assert ours.eos_ids == (401,)
    assert ours.decode([400, 401]) == "<new>"


def test_conflicting_ids_are_refused(tmp_path: Path) -> None:
    for text, id in (("<new>", 405), ("<|im_end|>", 3)):
        made.save(tmp_path, made.byte_level(), {"added_tokens_decoder": {id: {"content": text}}})
        with pytest.raises(ModelError, match=f"expected the id {id} for the added token"):
            Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"eos_token": "</nowhere>"}, "expected a token '</nowhere>'"),
        ({"eos_token": 3}, "eos_token must be a token's text"),
        ({"pad_token": {"text": "x"}}, "pad_token must be a token's text"),
        ({"chat_template": 3}, "chat_template must be a template"),
        ({"chat_template": ["x"]}, "chat_template must be a template"),
        ({"chat_template": [{"name": "default"}]}, "chat_template must be a template"),
    ],
)
def test_a_malformed_config_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    made.save(tmp_path, made.byte_level(), config)
    with pytest.raises(ModelError, match=message):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_that_is_missing_or_corrupt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: not found"):
        Tokenizer.load(tmp_path)
    path = made.save(tmp_path, made.byte_level()) / "tokenizer.json"
    whole = path.read_bytes()
    for data in (b"", b"{}", b"\xff\x00", b"[]", whole[: len(whole) // 2], b"[" * 10_000):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=r"not a usable tokenizer: .+"):
            Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]),
        decoders.Sequence([decoders.Replace(tokenizers.Regex("x+"), " "), decoders.Fuse()]),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused(tmp_path: Path, decoder: Any) -> None:
    backend = made.byte_fallback()
    backend.decoder = decoder
    made.save(tmp_path, backend)
    with pytest.raises(ModelError, match="is not supported; supported: ByteLevel"):
        Tokenizer.load(tmp_path)


def test_metaspace_is_sentencepiece_without_bytes(tmp_path: Path) -> None:
    backend = made.byte_fallback()
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, BYTE_FALLBACK))
    assert tokenizer.decode(tokenizer.encode(" the  cat")) == " the  cat"
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, BYTE_FALLBACK))
    assert tokenizer.decode(tokenizer.encode("the cat")) == " the cat"


def test_spaces_are_stripped_as_by_the_decoder(tmp_path: Path) -> None:
    backend = made.byte_fallback()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
    )
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, BYTE_FALLBACK))
    space = [backend.token_to_id("▁")]
    cat = tokenizer.encode("cat", bos=False)  # with a space in front
    for n_spaces in range(4):
        ids = space * n_spaces + cat
        assert tokenizer.decode(ids) == backend.decode(ids) == " " * (n_spaces - 1) + "cat"
        assert "".join(stream(tokenizer, space * n_spaces, cat)) == " " * (n_spaces > 1) + "cat"


def test_byte_tokens_are_bytes_only_with_byte_fallback(tmp_path: Path) -> None:
    backend = made.byte_fallback()
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, BYTE_FALLBACK))
    ids = [backend.token_to_id("<0x41>")]
    assert tokenizer.decode(ids) == backend.decode(ids) == "<0x41>"


def test_a_byte_level_vocabulary_may_contain_plain_text(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "日本": 1, "Ġ": 2}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer.load(made.save(tmp_path, backend))
    assert tokenizer.decode([0, 2, 1]) == backend.decode([0, 2, 1]) == "a 日本"


@pytest.mark.parametrize(
    "templates",
    [[{"name": [], "template": "one"}], [{"template": "one"}], [{"name": "default"}], ["one"], 7],
)
def test_templates_that_have_no_names_are_refused(tmp_path: Path, templates: Any) -> None:
    made.save(tmp_path, made.byte_level(), {"chat_template": templates})
    with pytest.raises(ModelError, match="chat_template must be a template, an object of"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_without_its_unknown_token_is_refused_where_it_is_needed(
    tmp_path: Path,
) -> None:
    made.save(tmp_path, made.word_piece())
    file = tmp_path / "tokenizer.json"
    state = json.loads(file.read_bytes())
    state["model"]["unk_token"] = "[NONE]"
    file.write_text(json.dumps(state))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("cat")
    with pytest.raises(InvalidRequest, match=r"fails on this text.*Missing \[UNK\] token"):
        tokenizer.encode("☃")
    del state["model"]["vocab"]["a"]
    file.write_text(json.dumps(state))
    with pytest.raises(ModelError, match=r"tokenizer\.json.* is damaged \(WordPiece error"):
        Tokenizer.load(tmp_path)
