"""Packing of whole documents into rows of fixed length.

Two row lengths keep the shapes static (good for a compiled model) and padding small: short rows
take a story with a question or two beside it, long rows take the chats of many turns. Documents
in a row do not see each other, and each starts at position 0, as it does at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from tests.tale.corpus import Stream

SHORT, LONG = 320, 960
BUFFER = 512  # documents looked at when filling rows; more fills better, less mixes better
PADDING = -1

Row = list[int]  # document numbers


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of rows; all tensors are (rows, length).

    `document` numbers the documents of a row; padding has PADDING."""

    ids: Tensor
    positions: Tensor
    document: Tensor
    target: Tensor  # the next id where it counts, else PADDING

    @property
    def mask(self) -> Tensor:
        """Return the mask (rows, 1, length, length), True where attention is allowed."""
        same = self.document[:, :, None] == self.document[:, None, :]
        return torch.tril(same)[:, None]


def rows(
    stream: Stream, rng: np.random.Generator, length: int, *, shortest: int = 0
) -> Iterator[Row]:
    """Pack the documents with `shortest` < size ≤ `length` by best fit, in a moving buffer."""
    sizes = np.diff(stream.starts)
    order = rng.permutation(len(sizes))
    wanted = [int(i) for i in order if shortest < sizes[i] <= length]
    waiting = sorted(wanted[:BUFFER], key=lambda i: int(sizes[i]))
    upcoming = iter(wanted[BUFFER:])
    while waiting:
        row: Row = [waiting.pop(int(rng.integers(len(waiting))))]
        free = length - int(sizes[row[0]])
        while waiting and (fitting := [k for k, i in enumerate(waiting) if sizes[i] <= free]):
            row.append(waiting.pop(fitting[-1]))
            free -= int(sizes[row[-1]])
        yield row
        for document in upcoming:
            waiting.append(document)
            if len(waiting) >= BUFFER:
                break
        waiting.sort(key=lambda i: int(sizes[i]))


def batch(stream: Stream, picked: list[Row], length: int) -> Batch:
    shape = (len(picked), length)
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    document, target = np.full(shape, PADDING, np.int64), np.full(shape, PADDING, np.int64)
    for r, row in enumerate(picked):
        at = 0
        for number, index in enumerate(row):
            begin, end = int(stream.starts[index]), int(stream.starts[index + 1])
            n = end - begin
            ids[r, at : at + n] = stream.ids[begin:end]
            positions[r, at : at + n] = np.arange(n)
            document[r, at : at + n] = number
            counts = stream.counts[begin + 1 : end]
            following = stream.ids[begin + 1 : end].astype(np.int64)
            target[r, at : at + n - 1] = np.where(counts, following, PADDING)
            at += n
    return Batch(*(torch.from_numpy(array) for array in (ids, positions, document, target)))


def batches(stream: Stream, tokens_per_batch: int, seed: int) -> Iterator[Batch]:
    """Yield batches of short or long rows in random order, of about `tokens_per_batch` tokens."""
    rng = np.random.default_rng(seed)
    sizes = np.diff(stream.starts)
    long_share = float(sizes[sizes > SHORT].sum() / sizes.sum())
    sources = {
        SHORT: rows(stream, rng, SHORT),
        LONG: rows(stream, rng, LONG, shortest=SHORT),
    }
    while True:
        length = LONG if rng.random() < long_share else SHORT
        picked = list(islice(sources[length], tokens_per_batch // length))
        if len(picked) < tokens_per_batch // length:
            return
        yield batch(stream, picked, length)
