"""Makes the .model files in this folder and golden.json: the ids that SentencePiece and
`transformers` give.

Needs both packages, which the tests do not:

    pip install sentencepiece==0.2.3 transformers==5.23.0 tokenizers protobuf
    PYTHONPATH=. python tests/gpu/text/sentence_piece/make.py
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer

from tests.gpu.text.sentence_piece.texts import CONTROL_TEXTS, TEXTS

HERE = Path(__file__).parent
CORPUS = [
    "Once upon a time there was a little cat who liked to sit in the sun.",
    "The cat said: «Привет, мир!» and 你好世界 and こんにちは, then slept — naïve café.",
    "Emoji: 🙂 🙂 ok? Numbers 1234567890 and\ttabs, and lines; if a: print(b)",
    "A bird sang to the little cat, and the cat listened until the sun went down.",
    "שלום עולם. مرحبا بالعالم. नमस्ते दुनिया.",
] * 3
COMMON = {"num_threads": 1, "minloglevel": 2, "hard_vocab_limit": False}
AS_IT_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
RULES = {
    "Ａ": "A",
    "ﬁ": "fi",
    "e\u0301": "é",
    "～": "~",
    "…": "...",
    "\n": " ",
    "\t": " ",
    "\u200b": "",
}
MODELS: dict[str, dict[str, Any]] = {
    "bpe": {
        **AS_IT_IS,
        "model_type": "bpe",
        "vocab_size": 460,
        "byte_fallback": True,
        "character_coverage": 0.99,
        "user_defined_symbols": ["<sep>"],
        "control_symbols": ["<turn>"],
        "split_digits": True,
    },
    "bpe-spaces": {
        **AS_IT_IS,
        "model_type": "bpe",
        "vocab_size": 480,
        "byte_fallback": True,
        "character_coverage": 0.99,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<sep>", "\n\n", *("▁" * n for n in range(2, 17))],
        "control_symbols": ["<turn>"],
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
    },
    "unigram": {"model_type": "unigram", "vocab_size": 240, "character_coverage": 1.0},
    "unigram-bytes": {
        "model_type": "unigram",
        "vocab_size": 480,
        "byte_fallback": True,
        "character_coverage": 0.99,
        "normalization_rule_name": "identity",
    },
}
CONVERTED = {
    "bpe": {"tokenizer_class": "LlamaTokenizer", "legacy": False},
    "bpe-spaces": {"tokenizer_class": "GemmaTokenizer"},
}
"""tokenizer_config.json of the models that `transformers` converts."""


def train(name: str, settings: dict[str, Any]) -> bytes:
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        if "normalization_rule_name" not in settings:
            for old, new in RULES.items():
                sides = (" ".join(f"{ord(char):X}" for char in side) for side in (old, new))
                rules.write("\t".join(sides) + "\n")
            rules.flush()
            settings = {**settings, "normalization_rule_tsv": rules.name}
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS), model_writer=out, **COMMON, **settings
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    model.normalizer_spec.ClearField("normalization_rule_tsv")  # the temporary file's name
    (HERE / f"{name}.model").write_bytes(model.SerializeToString())
    return model.SerializeToString()


def converted_ids(name: str, config: dict[str, Any]) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / f"{name}.model", Path(folder) / "tokenizer.model")
        (Path(folder) / "config.json").write_text('{"model_type": "llama"}')
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        texts = [*TEXTS, *CONTROL_TEXTS]
        return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def main() -> None:
    golden: dict[str, Any] = {"sentencepiece": {}, "transformers": {}}
    for name, settings in MODELS.items():
        processor = sentencepiece.SentencePieceProcessor(model_proto=train(name, settings))
        golden["sentencepiece"][name] = [processor.encode(text) for text in TEXTS]
    for name, config in CONVERTED.items():
        golden["transformers"][name] = {"config": config, "ids": converted_ids(name, config)}
    (HERE / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
