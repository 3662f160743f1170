"""Embedding model of the fake engine: what it says of itself, and its texts."""

from __future__ import annotations

from app.prompt.encoder_texts import EncoderTexts
from gpu import EmbeddingInfo, SentenceConfig
from tests.app.fake_tokenizer import FakeTokenizer

CLS, SEP = 301, 302
MOST = 12
INFO = EmbeddingInfo(
    name="little-encoder", n_layers=2, hidden_size=24, vocab_size=400, max_tokens=MOST,
    pooling="mean", normalize=True, n_bytes=1,
)  # fmt: skip


class EncoderTokenizer(FakeTokenizer):
    prefix, suffix = (CLS,), (SEP,)


TEXTS = EncoderTexts(EncoderTokenizer(), SentenceConfig(prompts={"query": "find "}))


def ids_of(text: str) -> list[int]:
    """Return the ids of a text as the embedding model gets them."""
    inside = FakeTokenizer().encode(text, bos=False, specials=False)
    return [CLS, *inside[: MOST - 2], SEP]
