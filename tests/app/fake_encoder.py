"""Embedding model and encoder-decoder of the fake engine: what they say of themselves, and their
texts."""

from __future__ import annotations

from app.prompt.encoder_texts import EncoderTexts
from gpu import EmbeddingInfo, EncoderDecoderInfo, SentenceConfig
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
    inside = FakeTokenizer().encode(text, bos=False)
    return [CLS, *inside[: MOST - 2], SEP]


PAD, END = 303, 304
SEQ2SEQ_INFO = EncoderDecoderInfo(
    name="little-t5", n_layers=3, n_decoder_layers=2, n_heads=3, hidden_size=24, vocab_size=400,
    max_tokens=16, max_written=8, start_id=PAD, kv_token_bytes=384, n_bytes=1,
)  # fmt: skip


class Seq2SeqTokenizer(FakeTokenizer):
    prefix, suffix = (), (END,)


SEQ2SEQ_TEXTS = EncoderTexts(Seq2SeqTokenizer(), SentenceConfig())


def seq2seq_ids(text: str) -> list[int]:
    """Return the ids of a text as the encoder-decoder gets them."""
    return [*FakeTokenizer().encode(text, bos=False), END]
