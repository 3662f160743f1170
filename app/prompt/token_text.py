"""Text of the token ids in the answer to a question."""

from __future__ import annotations

import msgspec
import numpy as np

from app.engine_client import Tokenizer
from gpu.inspection.requests import Answer

ID_ARRAYS = frozenset({"ids", "top_ids", "near_ids", "forbidden_ids"})


def with_token_text(answer: Answer, tokenizer: Tokenizer) -> Answer:
    """Return `answer` with info["pieces"], {id: its text}, if it has arrays of token ids."""
    ids: set[int] = set()
    for array in answer.arrays:
        if array.name in ID_ARRAYS:
            ids.update(np.unique(array.numpy()).tolist())
    if not ids:
        return answer
    pieces = {str(id): tokenizer.piece(id) for id in sorted(ids)}
    return msgspec.structs.replace(answer, info={**answer.info, "pieces": pieces})
