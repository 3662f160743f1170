"""The files of the committed model (config, tensors, tokenizer, template, card) are consistent."""

from __future__ import annotations

import json
import struct
from typing import Any

import jinja2.sandbox
import pytest
from tokenizers import Tokenizer

from app.tale import model_dir
from tests.tale import card
from tests.tale.chats import Message
from tests.tale.facts import FACTS
from tests.tale.tokenizer import SPECIALS

MAX_BYTES = 30_000_000


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((model_dir() / name).read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(model_dir() / "tokenizer.json"))


@pytest.fixture(scope="module")
def header() -> dict[str, Any]:
    with (model_dir() / "model.safetensors").open("rb") as file:
        (n_bytes,) = struct.unpack("<Q", file.read(8))
        content: dict[str, Any] = json.loads(file.read(n_bytes))
    content.pop("__metadata__", None)
    return content


def expected_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "input_layernorm": [hidden],
        "self_attn.q_proj": [q_width, hidden],
        "self_attn.k_proj": [kv_width, hidden],
        "self_attn.v_proj": [kv_width, hidden],
        "self_attn.o_proj": [hidden, q_width],
        "post_attention_layernorm": [hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden]}
    for index in range(config["num_hidden_layers"]):
        for name, shape in layer.items():
            shapes[f"model.layers.{index}.{name}.weight"] = shape
    return shapes | {"model.norm.weight": [hidden]}


def test_tensors_have_the_names_and_shapes_of_the_config(header: dict[str, Any]) -> None:
    shapes = {name: entry["shape"] for name, entry in header.items()}
    assert shapes == expected_shapes(read("config.json"))
    assert {entry["dtype"] for entry in header.values()} == {"F16"}


def test_the_number_of_parameters_is_as_stated(header: dict[str, Any]) -> None:
    count = 0
    for entry in header.values():
        size = 1
        for length in entry["shape"]:
            size *= length
        count += size
    assert f"{count / 1e6:.1f} million" == FACTS["parameters"]


def test_the_model_is_small() -> None:
    assert (model_dir() / "model.safetensors").stat().st_size <= MAX_BYTES
    assert (model_dir() / "loss.svg").stat().st_size < 60_000


def test_the_vocabulary_is_the_models(tokenizer: Tokenizer) -> None:
    config = read("config.json")
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert [tokenizer.token_to_id(token) for token in SPECIALS] == [0, 1, 2]
    assert config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")
    assert config["eos_token_id"] in read("generation_config.json")["eos_token_id"]


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, a fox found a lantern.",
        "  two spaces\n\n\n\ttab and lines  ",
        "emoji 🦊🏮 and families 👨‍👩‍👧, accents éàü ß, 狐狸, العربية",
        "control \x00\x01\x1b[0m \u200b \ufeff end",
        "it's WE'LL 'S 12,345.67 don't",
        "",
    ],
)
def test_any_text_comes_back_unchanged(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_marks_are_single_tokens_and_common_words_too(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|>").ids == [1]
    assert len(tokenizer.encode(" lantern").ids) == 1
    assert len(tokenizer.encode("Tell me a story about a fox.").ids) <= 8


def test_the_chat_template_renders_chatml() -> None:
    template = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(
        read("tokenizer_config.json")["chat_template"]
    )
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    rendered = template.render(messages=messages, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.render(messages=messages[1:]) == "<|im_start|>user\nHi<|im_end|>\n"


def test_training_sees_chats_as_the_template_renders_them(tokenizer: Tokenizer) -> None:
    import random

    from tests.tale.corpus import encode

    chat = [Message("user", "Hi there"), Message("assistant", "Hello!\n\nA story?")]
    template = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(
        read("tokenizer_config.json")["chat_template"]
    )
    rendered = template.render(messages=[{"role": m.role, "content": m.content} for m in chat])
    tokens = encode(chat, tokenizer, random.Random(0))
    assert [token for token, _ in tokens] == tokenizer.encode(rendered).ids
    spoken = [token for token, counts in tokens if counts]
    assert tokenizer.decode(spoken, skip_special_tokens=False) == "Hello!\n\nA story?<|im_end|>"


def test_the_card_states_what_was_measured() -> None:
    text = (model_dir() / "README.md").read_text(encoding="utf-8")
    assert text == card.render(model_dir())


def test_the_evaluation_meets_its_aims() -> None:
    report = read("evaluation.json")
    stories, answers = report["stories"], report["questions"]
    assert stories["contain_character_and_thing"] >= 95
    assert stories["end_by_themselves"] >= 95
    assert stories["repeat_a_sentence_three_times"] == 0
    assert answers["right"] >= 90
    assert report["variety"]["identical_pairs"] == 0
