"""Texts as an encoder takes them, the way sentence-transformers makes them: a prompt in front, the
special tokens at both ends, and no more tokens than it was trained for. Names of special tokens in
a text are special tokens, which some models need: SPECTER reads title[SEP]abstract, and T5 fills
gaps that are called <extra_id_0>."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu import InvalidRequest, SentenceConfig, TextChunk, TokenizerLike


@dataclass(frozen=True, slots=True)
class EncoderTexts:
    """Tokenizer and settings of an encoder."""

    tokenizer: TokenizerLike
    sentence: SentenceConfig

    def prompt(self, name: str | None) -> str:
        """Return the text to put in front of a text: that of this name, or the default one. Raises
        InvalidRequest for a name that there is none of."""
        prompts = self.sentence.prompts
        chosen = self.sentence.default_prompt if name is None else name
        if chosen is None:
            return ""
        if chosen not in prompts:
            names = ", ".join(prompts) or "none"
            raise InvalidRequest(
                f"there is no prompt {name!r:.80}; this embedding model has: {names}", "prompt_name"
            )
        return prompts[chosen]

    def encode(self, texts: Sequence[str], prompt: str, max_tokens: int) -> list[list[int]]:
        """Return the ids of texts; what exceeds `max_tokens` is cut off. Raises what the tokenizer
        raises."""
        chunks = [TextChunk(f"{prompt}{text}") for text in texts]
        begin, end = self.tokenizer.prefix, self.tokenizer.suffix
        most = max_tokens - len(begin) - len(end)
        return [
            [*begin, *encoding.ids[:most], *end] for encoding in self.tokenizer.encode_batch(chunks)
        ]


@dataclass(slots=True)
class EncoderInputs:
    """Texts of the embedding model and of the encoder-decoder; None: there is no such model. A page
    may load another embedding model, so requests read it from here each time."""

    embedding: EncoderTexts | None = None
    encoder_decoder: EncoderTexts | None = None
