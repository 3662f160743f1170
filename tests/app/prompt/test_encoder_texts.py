"""Texts for encoders have the ids that transformers gives them."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from app.prompt.encoder_texts import EncoderTexts
from app.retrieval.chunks import ChunkSettings, chunks_of
from gpu import SentenceConfig, Tokenizer
from tests.gpu.text import made_tokenizers

MOST = 512


def write_bert(folder: Path) -> Path:
    backend = made_tokenizers.word_piece()
    ends = [(token, backend.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    backend.post_processor = processors.BertProcessing(*ends)
    return made_tokenizers.save(folder, backend, {"sep_token": "[SEP]", "cls_token": "[CLS]"})


def write_t5(folder: Path) -> Path:
    """Write a tokenizer whose vocabulary has the names of gaps as pieces, too, as T5's."""
    gaps = ("<extra_id_1>", "<extra_id_0>")
    pieces = [("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁the", -3.0), ("▁cat", -3.5)]
    pieces += [(char, -6.0) for char in "_<>01adeirtx"]
    backend = tokenizers.Tokenizer(models.Unigram([*pieces, *((gap, 0.0) for gap in gaps)], 1))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = [AddedToken(name, normalized=False) for name in ("</s>", "<unk>", *gaps)]
    backend.add_special_tokens(special)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    return made_tokenizers.save(folder, backend, {"eos_token": "</s>"})


def test_names_of_special_tokens_in_a_text_are_special_tokens(tmp_path: Path) -> None:
    """SPECTER reads title[SEP]abstract; all that T5 1.1, mT5 and UMT5 can do is to fill gaps."""
    for write, text, special in (
        (write_bert, "The cat[SEP]a little [CLS] sun.", "[SEP]"),
        (write_t5, "the <extra_id_0> cat<extra_id_1>", "<extra_id_0>"),
    ):
        folder = tmp_path / special
        folder.mkdir()
        texts = EncoderTexts(Tokenizer.load(write(folder)), SentenceConfig())
        [ids] = texts.encode([text], "", MOST)
        assert ids == AutoTokenizer.from_pretrained(folder)(text).input_ids
        assert special in map(texts.tokenizer.piece, ids[1:-1])
        [chunk] = chunks_of(texts, text, ChunkSettings(100, 0), 1, has_pages=False)
        n_ends = len(texts.tokenizer.prefix) + len(texts.tokenizer.suffix)
        assert chunk.tokens == len(ids) - n_ends
