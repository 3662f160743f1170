"""Evaluate the exported f16 model on held-out requests and questions.

    python -m tests.tale.evaluate

Writes `evaluation.json` beside the weights; `card.py` turns it into the model card. Pairs of
character and thing, wordings of requests and phrasings of questions are held out of the training
data. All seeds are fixed, so the figures are reproducible.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from app.tale import model_dir
from tests.tale import cast, corpus, judge, questions, sample
from tests.tale.chats import about_story, draw_document, say, story_turn
from tests.tale.model import Tale
from tests.tale.packing import batches
from tests.tale.requests import Told, draw_story, story_about
from tests.tale.train import HELD_OUT_SEED, loss_of

SEED = 20_26
TEMPERATURE, TOP_P = 0.8, 0.95
STORY_TOKENS = 300
SHOWN = 5
SAME_REQUESTS = (
    "Tell me a story about a fox who finds a lantern.",
    "Tell me a story about a bear and a drum.",
    "Tell me a bedtime story about the moon.",
    "Write a story about a snail called Mila.",
    "Tell me a story.",
)

Report = dict[str, Any]


def held_out_requests(n: int) -> list[Told]:
    rng = random.Random(SEED)
    return [draw_story(rng, held_out=True) for _ in range(n)]


def story_report(model: Tale, tokenizer: Tokenizer, n: int = 100) -> Report:
    """Count stories that contain what was requested, end by themselves, or repeat themselves."""
    asked = held_out_requests(n)
    told = sample.complete(
        model,
        tokenizer,
        [sample.ask(request.request) for request in asked],
        temperature=TEMPERATURE,
        top_p=TOP_P,
        max_tokens=STORY_TOKENS,
        seed=SEED,
    )
    texts = [text for text, _, _ in told]
    pair = [
        judge.contains(text, (request.hero.noun.lower(), request.thing.lower()))
        for text, request in zip(texts, asked, strict=True)
    ]
    everything = [
        judge.contains(text, request.asked) for text, request in zip(texts, asked, strict=True)
    ]
    return {
        "n": n,
        "contain_character_and_thing": sum(pair),
        "contain_everything_asked": sum(everything),
        "end_by_themselves": sum(ended for _, _, ended in told),
        "repeat_a_sentence_three_times": sum(judge.most_repeated(text) >= 3 for text in texts),
        "mean_tokens": round(sum(count for _, count, _ in told) / n, 1),
        "missed": [r.request for r, ok in zip(asked, everything, strict=True) if not ok],
        "samples": [
            {"request": request.request, "story": text}
            for request, text in zip(asked[:SHOWN], texts[:SHOWN], strict=True)
        ],
    }


def unseen_report(model: Tale, tokenizer: Tokenizer, n: int = 50) -> Report:
    """Count stories that contain the requested words, which are not in the training data."""
    rng = random.Random(SEED)
    words = cast.lexicon()
    pairs = [
        (rng.choice(words["unseen characters"]), rng.choice(words["unseen things"]))
        for _ in range(n)
    ]
    asked = [story_about(noun, thing, rng, held_out=True) for noun, thing in pairs]
    texts = sample.complete(
        model,
        tokenizer,
        [sample.ask(request.request) for request in asked],
        temperature=TEMPERATURE,
        top_p=TOP_P,
        max_tokens=STORY_TOKENS,
        seed=SEED,
    )
    told = list(zip([text for text, _, _ in texts], pairs, strict=True))
    return {
        "n": n,
        "contain_character": sum(judge.contains(text, (noun,)) for text, (noun, _) in told),
        "contain_thing": sum(judge.contains(text, (thing,)) for text, (_, thing) in told),
        "contain_both": sum(judge.contains(text, pair) for text, pair in told),
    }


def held_out_questions(n: int) -> list[tuple[questions.Topic, str]]:
    """Draw n held-out phrasings, spread over all topics."""
    rng = random.Random(SEED)
    topics = list(questions.topics().values())
    rng.shuffle(topics)
    picked = [topics[i % len(topics)] for i in range(n)]
    return [(topic, questions.ask(topic, rng, held_out=True)) for topic in picked]


def question_report(model: Tale, tokenizer: Tokenizer, n: int = 100) -> Report:
    """Count right greedy answers to held-out phrasings, by key terms and by the nearest topic."""
    asked = held_out_questions(n)
    answers = sample.complete(
        model,
        tokenizer,
        [sample.ask(question) for _, question in asked],
        temperature=0.0,
        max_tokens=160,
    )
    right = [
        questions.is_right(text, topic)
        for (topic, _), (text, _, _) in zip(asked, answers, strict=True)
    ]
    pairs = [
        {"topic": topic.name, "question": question, "answer": text}
        for (topic, question), (text, _, _) in zip(asked, answers, strict=True)
    ]
    return {
        "n": n,
        "topics": len(questions.topics()),
        "right": sum(right),
        "wrong": [pair for pair, ok in zip(pairs, right, strict=True) if not ok],
        "samples": pairs[:SHOWN],
    }


def chat_report(model: Tale, tokenizer: Tokenizer, n: int = 50) -> Report:
    """Count second turns that recall the hero's name, and unknown questions that are declined."""
    rng = random.Random(SEED)
    named: list[tuple[str, str]] = []
    while len(named) < n:
        told = draw_story(rng, held_out=True)
        question, answer = about_story(told, rng)
        if told.hero.name is not None and told.hero.name in answer.content:
            named.append((sample.render([*story_turn(told), question]), told.hero.name))
    unknown = [sample.ask(say("unknown", rng)) for _ in range(n)]
    names = sample.complete(model, tokenizer, [p for p, _ in named], temperature=0, max_tokens=60)
    refusals = sample.complete(model, tokenizer, unknown, temperature=0, max_tokens=60)
    return {
        "n": n,
        "name_recalled": sum(
            name in text for (_, name), (text, _, _) in zip(named, names, strict=True)
        ),
        "unknown_declined": sum("how language models work" in text for text, _, _ in refusals),
    }


def variety_report(model: Tale, tokenizer: Tokenizer, n: int = 8) -> Report:
    """Measure the similarity of stories for the same request: 4-gram overlap, number distinct."""
    by_request = {}
    for number, request in enumerate(SAME_REQUESTS):
        texts = sample.complete(
            model,
            tokenizer,
            [sample.ask(request)] * n,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            seed=SEED + 1000 * number,
        )
        by_request[request] = [text for text, _, _ in texts]
    overlaps = {r: round(judge.overlap(texts), 4) for r, texts in by_request.items()}
    return {
        "samples_per_request": n,
        "mean_pairwise_4gram_overlap": round(sum(overlaps.values()) / len(overlaps), 4),
        "by_request": overlaps,
        "identical_pairs": sum(len(texts) - len(set(texts)) for texts in by_request.values()),
    }


def perplexity_report(model: Tale, tokenizer: Tokenizer, n_documents: int = 400) -> Report:
    """Measure the perplexity of newly generated documents over the tokens that count."""
    rng = random.Random(HELD_OUT_SEED + 1)
    encoded = [corpus.encode(draw_document(rng), tokenizer, rng) for _ in range(n_documents)]
    stream = corpus.stream_of(encoded)
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for batch in batches(stream, 3840, seed=0):
            counted = int((batch.target >= 0).sum())
            total += loss_of(model, batch, precise=True).item() * counted
            tokens += counted
    return {
        "tokens": tokens,
        "loss": round(total / tokens, 4),
        "perplexity": round(math.exp(total / tokens), 3),
    }


REPORTS: dict[str, Callable[[Tale, Tokenizer], Report]] = {
    "stories": story_report,
    "questions": question_report,
    "unseen_words": unseen_report,
    "variety": variety_report,
    "chats": chat_report,
    "held_out_text": perplexity_report,
}


def report(name: str) -> Report:
    """Compute one report with one thread, so that two run at the same time on two cores."""
    torch.set_num_threads(1)
    return REPORTS[name](*sample.open_bundled())


def evaluate(folder: Path) -> Report:
    model, _ = sample.open_bundled()
    with get_context("spawn").Pool(2) as pool:
        reports = pool.map(report, REPORTS, chunksize=1)
    return {
        "sampling": {"temperature": TEMPERATURE, "top_p": TOP_P, "seed": SEED},
        "parameters": model.n_parameters(),
        "weights_bytes": (folder / "model.safetensors").stat().st_size,
        **dict(zip(REPORTS, reports, strict=True)),
    }


def main() -> None:
    result = evaluate(model_dir())
    path = model_dir() / "evaluation.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in REPORTS:
        figures = {k: v for k, v in result[name].items() if isinstance(v, int | float)}
        print(name, figures)


if __name__ == "__main__":
    main()
