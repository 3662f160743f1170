"""Make the training stream of token ids, or print a preview of its text.

    python -m tests.tale.corpus --preview 5
    python -m tests.tale.corpus --documents 200000 --out FOLDER

A chat is rendered with the chat template; plain text ends with `<|endoftext|>`, and may begin with
it. The loss counts the assistant's messages (with their end mark) and plain text.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.tale import model_dir
from tests.tale.chats import MIXES, Document, draw_document

ENDOFTEXT, IM_START, IM_END = 0, 1, 2  # ids, in the order of tokenizer.SPECIALS
BEGIN_MARK_SHARE = 0.5  # share of plain texts with a mark before them
CHUNK = 2_000  # documents per task


@dataclass(frozen=True, slots=True)
class Stream:
    """Concatenated documents. `counts[i]`: whether the loss counts token i."""

    ids: NDArray[np.uint16]  # (n_tokens,)
    counts: NDArray[np.bool_]  # (n_tokens,)
    starts: NDArray[np.int64]  # (n_documents + 1,)


def encode(document: Document, tokenizer: Tokenizer, rng: random.Random) -> list[tuple[int, bool]]:
    """Return (id, counts) of each token of a document, rendered as by the chat template."""
    if isinstance(document, str):
        body = [(token, True) for token in tokenizer.encode(document).ids] + [(ENDOFTEXT, True)]
        return [(ENDOFTEXT, False), *body] if rng.random() < BEGIN_MARK_SHARE else body
    newline = tokenizer.encode("\n").ids
    tokens: list[tuple[int, bool]] = []
    for message in document:
        spoken = message.role == "assistant"
        head = [IM_START, *tokenizer.encode(f"{message.role}\n").ids]
        content = tokenizer.encode(message.content).ids
        tokens += [(token, False) for token in head]
        tokens += [(token, spoken) for token in [*content, IM_END]]
        tokens += [(token, False) for token in newline]
    return tokens


def stream_of(encoded: list[list[tuple[int, bool]]]) -> Stream:
    return Stream(
        np.array([token for tokens in encoded for token, _ in tokens], dtype=np.uint16),
        np.array([counts for tokens in encoded for _, counts in tokens], dtype=np.bool_),
        np.cumsum([0, *map(len, encoded)], dtype=np.int64),
    )


def _chunk(task: tuple[int, int, str]) -> tuple[list[int], list[bool], list[int]]:
    seed, n_documents, mix = task
    rng = random.Random(seed)
    tokenizer = Tokenizer.from_file(str(model_dir() / "tokenizer.json"))
    ids: list[int] = []
    counts: list[bool] = []
    lengths: list[int] = []
    for _ in range(n_documents):
        tokens = encode(draw_document(rng, MIXES[mix]), tokenizer, rng)
        ids += [token for token, _ in tokens]
        counts += [count for _, count in tokens]
        lengths.append(len(tokens))
    return ids, counts, lengths


def build(n_documents: int, seed: int, n_processes: int = 2, mix: str = "main") -> Stream:
    """Make a stream of `n_documents` documents; the same seed gives the same stream."""
    tasks = [(seed * 100_003 + i, CHUNK, mix) for i in range(-(-n_documents // CHUNK))]
    with Pool(n_processes) as pool:
        parts = pool.map(_chunk, tasks, chunksize=1)
    lengths = np.concatenate([np.array(part[2], dtype=np.int64) for part in parts])
    return Stream(
        np.concatenate([np.array(part[0], dtype=np.uint16) for part in parts]),
        np.concatenate([np.array(part[1], dtype=np.bool_) for part in parts]),
        np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
    )


def save(stream: Stream, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "stream.npz", ids=stream.ids, counts=stream.counts, starts=stream.starts)


def load(folder: Path) -> Stream:
    arrays = np.load(folder / "stream.npz")
    return Stream(arrays["ids"], arrays["counts"], arrays["starts"])


def preview(n_documents: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(n_documents):
        document = draw_document(rng)
        if isinstance(document, str):
            yield document
        else:
            yield "\n".join(f"[{message.role}] {message.content}" for message in document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preview", type=int, default=0, help="number of documents to print")
    parser.add_argument(
        "--documents", type=int, default=0, help="number of documents in the stream"
    )
    parser.add_argument("--out", type=Path, help="folder for the stream")
    parser.add_argument("--mix", choices=sorted(MIXES), default="main", help="mix of documents")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for text in preview(options.preview, options.seed):
        print(text, end="\n\n")
    if options.documents and options.out:
        stream = build(options.documents, options.seed, mix=options.mix)
        save(stream, options.out)
        print(f"{len(stream.starts) - 1} documents, {len(stream.ids)} tokens → {options.out}")


if __name__ == "__main__":
    main()
