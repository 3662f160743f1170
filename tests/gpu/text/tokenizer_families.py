"""Tokenizers of different families, and texts for the tests of all of them."""

from __future__ import annotations

import random

from gpu.text.decode_stream import DecodeStream
from gpu.text.tokenizer import Tokenizer
from tests.gpu.text import made_tokenizers as made

BYTE_LEVEL = {"bos_token": "<|begin|>", "eos_token": {"content": "<|im_end|>", "special": True}}
BYTE_FALLBACK = {"bos_token": "<s>", "eos_token": "</s>"}
LLAMA3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
FAMILIES = {
    "byte_level": (made.byte_level, BYTE_LEVEL),
    "llama3": (made.llama3, LLAMA3),
    "byte_fallback": (made.byte_fallback, BYTE_FALLBACK),
}
"""Constructor and tokenizer_config.json of each family."""


def stream(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> list[str]:
    decode = DecodeStream(tokenizer, prompt)
    return [decode.push(id) for id in ids] + [decode.flush()]


def random_text(rng: random.Random) -> str:
    ranges = ((0, 0x7F), (0x20, 0x7E), (0x80, 0x7FF), (0x800, 0xD7FF), (0x1F300, 0x1FAFF))
    pieces = ["▁", "cat ", " the ", "\u200d", "👩‍👩‍👧", "\n\n", "<0x41>", "</s>", "<|im_end|>"]
    return "".join(
        rng.choice(pieces) if rng.random() < 0.3 else chr(rng.randint(*rng.choice(ranges)))
        for _ in range(rng.randrange(40))
    )
