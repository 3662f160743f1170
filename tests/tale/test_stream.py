"""Packing the training stream loses nothing and mixes no documents."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import torch
from tokenizers import Tokenizer

from app.tale import model_dir
from tests.tale import cast, corpus, packing
from tests.tale.chats import draw_document
from tests.tale.corpus import Stream


def small_stream(n_documents: int = 300) -> Stream:
    rng = random.Random(4)
    tokenizer = Tokenizer.from_file(str(model_dir() / "tokenizer.json"))
    encoded = [corpus.encode(draw_document(rng), tokenizer, rng) for _ in range(n_documents)]
    return corpus.stream_of(encoded)


def test_the_same_seed_gives_the_same_documents() -> None:
    assert [draw_document(random.Random(1)) for _ in range(5)] == [
        draw_document(random.Random(1)) for _ in range(5)
    ]


def test_documents_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import random, zlib; from tests.tale.chats import draw_document; r = random.Random(8);"
        "print(zlib.crc32(repr([draw_document(r) for _ in range(40)]).encode()))"
    )
    sums = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(model_dir().parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(sums) == 1


def test_no_held_out_pair_is_asked_for_in_the_stream() -> None:
    rng = random.Random(6)
    things = sorted(cast.things(), key=len, reverse=True)
    for _ in range(800):
        document = draw_document(rng)
        if isinstance(document, str):
            continue
        for message in document:
            text = message.content.lower()
            if message.role == "user" and " a story about a " in text:
                about = text.split(" a story about a ", 1)[1].strip(".!?")
                hero, _, thing = about.partition(" and a ")
                if hero in cast.characters() and thing in things:
                    assert not cast.is_held_out(hero, thing), text


def test_documents_fit_the_longest_row() -> None:
    stream = small_stream()
    assert int(np.diff(stream.starts).max()) <= packing.LONG


def test_rows_hold_each_document_once_and_fill_well() -> None:
    stream = small_stream()
    rows = list(packing.rows(stream, np.random.default_rng(0), packing.SHORT))
    sizes = np.diff(stream.starts)
    placed = sorted(i for row in rows for i in row)
    assert placed == [i for i in range(len(sizes)) if sizes[i] <= packing.SHORT]
    assert sum(int(sizes[i]) for i in placed) > 0.8 * packing.SHORT * len(rows)


def test_a_batch_keeps_documents_apart() -> None:
    stream = small_stream()
    rows = list(packing.rows(stream, np.random.default_rng(0), packing.SHORT))[:4]
    batch = packing.batch(stream, rows, packing.SHORT)
    assert batch.mask.shape == (4, 1, packing.SHORT, packing.SHORT)
    for r, row in enumerate(rows):
        for number, index in enumerate(row):
            inside = batch.document[r] == number
            n = int(stream.starts[index + 1] - stream.starts[index])
            assert int(inside.sum()) == n
            assert batch.positions[r][inside].tolist() == list(range(n))
            allowed = batch.mask[r, 0][inside]
            assert not allowed[:, ~inside].any()
            assert torch.equal(allowed[:, inside], torch.ones(n, n).tril().bool())
            assert int(batch.target[r][inside][-1]) == packing.PADDING
