"""Texts of the golden ids in this folder."""

from __future__ import annotations

import random

from tests.gpu.text import multilingual

ALPHABET = [*" \n\tabcthe THE.,'0123ééпр你好🙂▁", "the ", "cat ", "  ", "   ", "little", "<0x41>"]


def _random_texts(n: int) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices(ALPHABET, k=rng.randrange(30))) for _ in range(n)]


TEXTS = [text.replace("</s>", "") for text in multilingual.TEXTS] + _random_texts(60)
"""Without names of control tokens, which SentencePiece does not recognise in a text."""
CONTROL_TEXTS = ["a</s>b c", "<s>a", "The<turn> cat <turn>sat</s>", "a<sep>b", "<turn><turn>\n"]
