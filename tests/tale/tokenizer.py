"""Make the tokenizer: byte-level BPE trained on generated text, ChatML marks, chat template.

    python -m tests.tale.tokenizer

Byte-level, so that any text comes back unchanged. The pre-tokeniser keeps a leading space with
its word and digits apart, as most current models do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from app.tale import model_dir
from tests.tale.chats import draw_document

VOCAB_SIZE = 4096
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPLIT = (
    r"'(?i:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def texts(seed: int, n_documents: int) -> Iterator[str]:
    """Yield contents of generated documents, and some of every printable ASCII character."""
    rng = random.Random(seed)
    for _ in range(n_documents):
        document = draw_document(rng)
        if isinstance(document, str):
            yield document
        else:
            yield from (message.content for message in document)
            yield from (message.role + "\n" for message in document)


def train_tokenizer(seed: int = 1, n_documents: int = 40_000) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(seed, n_documents), trainer)
    return tokenizer


def tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "chat_template": CHAT_TEMPLATE,
    }


def save(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.dumps(tokenizer_config(), indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")


def main() -> None:
    tokenizer = train_tokenizer()
    save(tokenizer, model_dir())
    print(f"{tokenizer.get_vocab_size()} tokens → {model_dir() / 'tokenizer.json'}")


if __name__ == "__main__":
    main()
