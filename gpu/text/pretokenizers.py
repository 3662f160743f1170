"""Pretokenizers of byte-level BPE: how a text is split into words before merging, by their names in
GGUF files (`tokenizer.ggml.pre`). Patterns are those of the tokenizers that the names stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_CASED = (  # letters of scripts that have cases
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90"
    "-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    "\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    "[\r\n]",
    rf"\s?[{_CASED}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"(?<!\s)\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """A pretokenizer's settings.

    patterns    each splits what those before it left; none: GPT-2's own pattern
    digits      every digit is a word, before GPT-2's pattern
    composed    the text is normalised to NFC first
    whole_words a word in the vocabulary is one token, regardless of merges
    begins      texts begin with the beginning-of-sequence token unless the file says otherwise
    """

    patterns: Sequence[str] = ()
    digits: bool = False
    composed: bool = False
    whole_words: bool = False
    begins: bool = False

    def steps(self) -> list[Any]:
        """Return the library's pre-tokenizers, of which the last maps bytes to characters."""
        steps: list[Any] = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        own = not self.patterns
        return [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own)]


_LLAMA3_PRETOKENIZER = Pretokenizer((_LLAMA3,), whole_words=True, begins=True)
PRETOKENIZERS = {
    "default": Pretokenizer(),
    "gpt-2": Pretokenizer(),
    "phi-2": Pretokenizer(),
    "mpt": Pretokenizer(composed=True),
    "olmo": Pretokenizer(composed=True),
    "smollm": Pretokenizer(digits=True),
    "starcoder": Pretokenizer(digits=True),
    "refact": Pretokenizer(digits=True),
    "command-r": Pretokenizer(digits=True, composed=True),
    "llama-bpe": _LLAMA3_PRETOKENIZER,
    "llama3": _LLAMA3_PRETOKENIZER,
    "llama-v3": _LLAMA3_PRETOKENIZER,
    "falcon3": _LLAMA3_PRETOKENIZER,
    "lfm2": _LLAMA3_PRETOKENIZER,
    "dbrx": Pretokenizer((_LLAMA3,)),
    "smaug-bpe": Pretokenizer((_LLAMA3,)),
    "qwen2": Pretokenizer((_QWEN2,), composed=True),
    "deepseek-r1-qwen": Pretokenizer((_QWEN2,), composed=True),
    "qwen35": Pretokenizer((_QWEN35,)),
    "tekken": Pretokenizer((_TEKKEN,), whole_words=True, begins=True),
    "gpt-4o": Pretokenizer((_GPT4O,)),
    "llama4": Pretokenizer((_GPT4O,)),
    "deepseek-llm": Pretokenizer(_DEEPSEEK_LLM),
    "deepseek-coder": Pretokenizer(_DEEPSEEK_CODER),
    "deepseek-v3": Pretokenizer(_DEEPSEEK_V3),
}
"""Pretokenizers by their names in GGUF files."""
