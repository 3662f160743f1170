"""Folder of a small embedding model with random weights and a tokenizer of eight words, and a fake
engine that has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from app.models.encoders import EncoderFolders
from tests.app.fake_encoder import INFO
from tests.app.fake_engine import FakeEngine, loader
from tests.gpu.models import random_bert

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "query", ":")


def load_with(
    folders: EncoderFolders, name: str, progress: Callable[[float, str], None]
) -> FakeEngine:
    """Load a fake engine that has an embedding model of this name if there is a folder of one."""
    info = replace(INFO, name=name) if folders.embedding else None
    return loader(delay=0.01, embedding=info)(progress)


def write_encoder(folder: Path) -> Path:
    path = random_bert.write(folder, max_seq_length=6)
    vocab = {word: id for id, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(WORDS[:4]))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=128)  # as the published MiniLM
    tokenizer.save(str(path / "tokenizer.json"))
    return path
