"""Tokenizers and their answers on many texts, as the browser's text modules should give them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from app.local.model_files import COPIED, ChatFormat
from gpu.errors import InvalidRequest
from gpu.text.tokenizer import Tokenizer
from tests.golden import trained_models
from tests.gpu.text import made_tokenizers as made
from tests.gpu.text.multilingual import TEXTS
from tests.gpu.text.tokenizer_families import FAMILIES, random_text, stream

NAMES = [
    "<|im_start|>user\nHi<|im_end|>\n",
    "a<|im_end|>b <|begin|><|endoftext|>",
    " <s>x</s> <unk>",
    "<|begin_of_text|><|eot_id|> <|eot_id",
    "[SEP] [CLS]x",
    "<|im_<|im_end|>end|>",
]
"""Names of special tokens inside of texts, whole and in part."""
KINDS: dict[str, Any] = {
    **{model.name: model.folder for model in trained_models()},
    **FAMILIES,
    "unigram": (made.unigram, {"bos_token": "<s>", "eos_token": "</s>"}),
    "unigram with bytes": (made.unigram_bytes, {"eos_token": "</s>"}),
    "unigram without a byte": (partial(made.unigram_bytes, lacking=0x9F), {"eos_token": "</s>"}),
    "word_piece": (made.word_piece, {"eos_token": "[SEP]"}),
}
"""Folder of a model, or constructor of a tokenizer and its tokenizer_config.json."""


def texts() -> list[str]:
    """Return 300 texts."""
    rng = random.Random(7)
    known = [*TEXTS, *NAMES]
    return known + [random_text(rng) for _ in range(300 - len(known))]


def folder_of(kind: str, parent: Path) -> Path:
    """Return a folder with the tokenizer of a kind."""
    found = KINDS[kind]
    if isinstance(found, Path):
        return found
    make, config = found
    folder = parent / kind
    folder.mkdir()
    return made.save(folder, make(), config)


def files_of(folder: Path) -> dict[str, Any]:
    """Return the files that an export has of a tokenizer, parsed."""
    there = (name for name in COPIED if (folder / name).is_file())
    return {name: json.loads((folder / name).read_text("utf-8")) for name in there}


def chat_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return `chat` of the manifest of an export."""
    chat: dict[str, Any] = json.loads(msgspec.json.encode(ChatFormat.of(tokenizer)))
    return chat


def answers(tokenizer: Tokenizer, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return ids and streamed text of each text."""
    return [answer(tokenizer, text) for text in texts]


def answer(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    ids = tokenizer.encode(text, bos=False)
    cut = len(ids) // 3
    try:
        plain: Any = tokenizer.encode(text, specials=False)
    except InvalidRequest as error:
        plain = str(error)
    try:
        steps: Any = json.loads(msgspec.json.encode(tokenizer.segment(text[:100])))
    except InvalidRequest as error:
        steps = str(error)
    return {
        "ids": tokenizer.encode(text),
        "plain": plain,
        "inside": tokenizer.encode_with_offsets(text, False, True, True)[0],
        "pieces": stream(tokenizer, ids[:cut], ids[cut:]),
        "text": tokenizer.decode(ids),
        "steps": steps,
    }


def vocabulary(tokenizer: Tokenizer) -> list[list[Any]]:
    """Return piece, bytes and whether it is special of every id, and of two unknown ones."""
    ids = range(tokenizer.vocab_size + 2)
    return [
        [tokenizer.piece(i), tokenizer.token_bytes(i).hex(), tokenizer.is_special(i)] for i in ids
    ]
