"""Storage types of GGUF tensors: their blocks, and unpacking to float32.

Blocks are unpacked by the `gguf` package (llama.cpp's own, gguf-py/gguf/quants.py). A new type also
needs a row in `NEAREST` of `gpu.checkpoint.auto_dtype`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GgufType:
    """A storage type: `block_size` weights of a row take `type_size` bytes."""

    name: str
    block_size: int
    type_size: int


TYPES = {
    0: GgufType("F32", 1, 4),
    1: GgufType("F16", 1, 2),
    30: GgufType("BF16", 1, 2),
    8: GgufType("Q8_0", 32, 34),
    2: GgufType("Q4_0", 32, 18),
    3: GgufType("Q4_1", 32, 20),
    6: GgufType("Q5_0", 32, 22),
    7: GgufType("Q5_1", 32, 24),
    20: GgufType("IQ4_NL", 32, 18),
    10: GgufType("Q2_K", 256, 84),
    11: GgufType("Q3_K", 256, 110),
    12: GgufType("Q4_K", 256, 144),
    13: GgufType("Q5_K", 256, 176),
    14: GgufType("Q6_K", 256, 210),
    23: GgufType("IQ4_XS", 256, 136),
    21: GgufType("IQ3_S", 256, 110),
    18: GgufType("IQ3_XXS", 256, 98),
    22: GgufType("IQ2_S", 256, 82),
    17: GgufType("IQ2_XS", 256, 74),
    16: GgufType("IQ2_XXS", 256, 66),
    29: GgufType("IQ1_M", 256, 56),
    19: GgufType("IQ1_S", 256, 50),
}
"""Types by their number in the file."""
TYPES_BY_NAME = {type.name: type for type in TYPES.values()}
QUANT_TYPES = tuple(type.name for type in TYPES.values() if type.block_size > 1)
"""Names of the types with blocks of weights."""


def dequantize_rows(type: str, rows: npt.NDArray[np.uint8]) -> F32:
    """Unpack uint8 (…, bytes of a row) of a type in `QUANT_TYPES` to float32 (…, weights of a row).

    Damaged scales give non-finite numbers, which the caller must check.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):
        found: Any = dequantize(np.ascontiguousarray(rows), GGMLQuantizationType[type])
    return np.asarray(found, np.float32)
