"""Bytes of each token, derived from the decoder of a tokenizer.json.

Text is decoded from bytes and not by the tokenizer's own decoder, because that one needs whole
texts: its byte fallback turns a run of byte tokens into U+FFFD if any of them is wrong, even those
it had shown before, so streamed text would not be a prefix of the final text. Bytes are never
revised, and a token takes the same time however long the text is.

Supported are byte-level BPE (GPT-2, Llama 3), SentencePiece with or without byte fallback (Llama 1
and 2), WordPiece (BERT), and none (words joined by spaces). Decoders for which a token's text
depends on later tokens are refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gpu.errors import ModelError
from gpu.files.json_object import shown

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SUPPORTED = "ByteLevel, Metaspace, WordPiece, or Replace + ByteFallback + Fuse + Strip"
CLEAN_UP = (
    *((f" {mark}", mark) for mark in (".", "?", "!", ",")),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
"""Replacements of WordPiece's `cleanup` for a word and the space before it."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Rules that turn one token into bytes.

    byte_level     the token's characters stand for bytes, as in GPT-2
    byte_fallback  a token "<0xE2>" stands for that byte
    replacements   (from, to) in a token's text, in order
    strip          number of spaces removed from the beginning of a text
    suffix         prefix of tokens that continue a word, as "##ing"; other tokens get a space in
                   front. None if tokens contain their own spaces
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip: int = 0
    suffix: str | None = None

    def of(self, token: str) -> bytes:
        """Return the bytes of a token in the model's vocabulary (added tokens are plain text)."""
        if self.byte_level:
            try:
                return bytes(BYTE_OF_CHAR[char] for char in token)
            except KeyError:
                return token.encode()
        if self.byte_fallback and (byte := BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        if self.suffix is not None:
            goes_on = bool(self.suffix) and token.startswith(self.suffix)
            token = token.removeprefix(self.suffix) if goes_on else f" {token}"
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()

    @classmethod
    def from_decoder(cls, decoder: dict[str, Any] | None, where: str) -> TokenBytes:
        """Return the rules for the `decoder` of a tokenizer.json. Raises ModelError for an
        unsupported decoder."""
        if decoder is None:
            return cls(strip=1, suffix="")
        steps = _flat(decoder)
        kinds = [step.get("type") for step in steps]
        if kinds == ["ByteLevel"]:
            return cls(byte_level=True)
        if kinds == ["WordPiece"]:
            clean_up = CLEAN_UP if steps[0].get("cleanup") else ()
            return cls(replacements=clean_up, strip=1, suffix=str(steps[0]["prefix"]))
        replacements: list[tuple[str, str]] = []
        strip = 0
        for i, step in enumerate(steps):
            fused = "Fuse" in kinds[:i]
            if step["type"] == "Metaspace" and not fused:
                replacements.append((str(step["replacement"]), " "))
                strip += step.get("prepend_scheme") != "never"
            elif step["type"] == "Replace" and not fused and "String" in step["pattern"]:
                replacements.append((step["pattern"]["String"], step["content"]))
            elif step["type"] == "Strip" and fused and (step["content"], step["stop"]) == (" ", 0):
                strip += step["start"]
            elif step["type"] not in ("ByteFallback", "Fuse"):
                raise _unsupported(step, where)
        return cls(False, "ByteFallback" in kinds, tuple(replacements), strip)


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _flat(part)]


def _unsupported(decoder: dict[str, Any], where: str) -> ModelError:
    return ModelError(f"{where}: decoder {shown(decoder)} is not supported; supported: {SUPPORTED}")


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and
    up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


BYTE_OF_CHAR = _byte_of_char()
