"""What the ids of an answer say, for people."""

from __future__ import annotations

import msgspec
import numpy as np

from app.engines import Tokenizer
from gpu.inspection import Answer

ARRAYS_OF_IDS = frozenset({"ids", "top_ids"})


def with_pieces(answer: Answer, tokenizer: Tokenizer) -> Answer:
    """`answer`; if it has arrays of token ids, with info["pieces"]: {id: its text on its own}."""
    found: set[int] = set()
    for array in answer.arrays:
        if array.name in ARRAYS_OF_IDS:
            found.update(np.unique(array.numpy()).tolist())
    if not found:
        return answer
    pieces = {str(id): tokenizer.piece(id) for id in sorted(found)}
    return msgspec.structs.replace(answer, info={**answer.info, "pieces": pieces})
