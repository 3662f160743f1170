"""Every answer passes its own check, and held-out phrasings are not used in training."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from app.tale import model_dir
from tests.tale.facts import FACTS
from tests.tale.questions import Topic, answer, ask, frame, is_right, topics

TOPICS = list(topics().values())


def test_there_are_about_a_hundred_topics_with_held_out_phrasings() -> None:
    assert len(TOPICS) >= 100
    assert all(topic.held_phrasings and topic.key_terms for topic in TOPICS)
    assert all(len(topic.answers) >= 2 for topic in TOPICS)


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_answer_is_right_for_its_topic(topic: Topic) -> None:
    rng = random.Random(7)
    for _ in range(40):
        text = answer(topic, rng)
        assert is_right(text, topic), text
        assert not set("{}|<>") & set(text), text


def test_an_answer_is_wrong_for_another_topic() -> None:
    rng = random.Random(7)
    for topic, other in pairwise(TOPICS):
        assert not is_right(answer(topic, rng), other)


def test_each_topic_is_asked_in_many_ways() -> None:
    rng = random.Random(1)
    for topic in TOPICS:
        assert len({ask(topic, rng).lower() for _ in range(400)}) >= 10, topic.name


def test_held_out_phrasings_are_never_asked_in_training() -> None:
    rng = random.Random(1)

    def bare(text: str) -> str:
        return text.lower().strip("?.! ")

    for topic in TOPICS:
        held_out = {bare(ask(topic, rng, held_out=True)) for _ in range(60)}
        trained = {bare(ask(topic, rng)) for _ in range(400)}
        assert not held_out & trained, topic.name


@pytest.mark.parametrize(
    ("noun", "asked"),
    [
        ("a token", "What is a token?"),
        ("tokens", "What are tokens?"),
        ("bias", "What is bias?"),
        ("Tokenglass", "What is Tokenglass?"),
    ],
)
def test_frames_agree_in_number(noun: str, asked: str) -> None:
    assert frame("What <is> <N>?", noun, random.Random(0)) == asked


def test_the_answers_state_the_models_own_figures() -> None:
    config = json.loads((model_dir() / "config.json").read_text(encoding="utf-8"))
    assert FACTS["layers"] == str(config["num_hidden_layers"])
    assert FACTS["heads"] == str(config["num_attention_heads"])
    assert FACTS["kv_heads"] == str(config["num_key_value_heads"])
    assert FACTS["hidden"] == str(config["hidden_size"])
    assert FACTS["vocab"] == f"{config['vocab_size']:,}"
    assert FACTS["context"] == f"{config['max_position_embeddings']:,}"
