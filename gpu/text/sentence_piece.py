"""Conversion of SentencePiece tokenizers to the `tokenizers` library: BPE, which merges by the
pieces' scores, and Unigram, which takes the pieces with the greatest sum of scores.

Spaces of a text become "▁". One is added before the text, and before what follows a control token,
as `transformers` does in its `legacy` form (the SentencePiece library itself has no control tokens
inside a text).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from gpu.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces; GGUF's `tokenizer.ggml.token_type` uses the same numbers."""
UNIGRAM, BPE = "unigram", "bpe"
SPACE = "▁"
MOST_CHARS = 1024
"""Longest piece: all its splits into two pieces are tried."""


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """Content of a SentencePiece model.

    texts, scores, types   of every piece, by id
    kind                   UNIGRAM or BPE; others are refused
    byte_fallback          text without a piece becomes its bytes, "<0xE2>"
    space_after            "▁" ends a word instead of beginning it; refused
    charsmap               SentencePiece's compiled table of replacements before splitting, or b""
    add_prefix             a "▁" is added before a text
    join_spaces            runs of spaces count as one, those at the ends as none
    escape_spaces          spaces become "▁"; the opposite is refused
    bos_id, eos_id         -1 for none
    """

    texts: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    kind: str = BPE
    byte_fallback: bool = True
    space_after: bool = False
    charsmap: bytes = b""
    add_prefix: bool = True
    join_spaces: bool = False
    escape_spaces: bool = True
    bos_id: int = -1
    eos_id: int = -1

    @property
    def named(self) -> dict[str, AddedToken]:
        """The special tokens that the model has names for."""
        unknown = self.types.index(UNKNOWN) if UNKNOWN in self.types else -1
        ids = {"bos_token": self.bos_id, "eos_token": self.eos_id, "unk_token": unknown}
        return {
            name: AddedToken(self.texts[id], special=True)
            for name, id in ids.items()
            if 0 <= id < len(self.texts) and self.types[id] in (CONTROL, UNKNOWN)
        }


def make_backend(
    pieces: SentencePieces, where: str, *, prefix_first_only: bool = False
) -> tokenizers.Tokenizer:
    """Return the tokenizer. Raises ModelError for an unsupported one.

    prefix_first_only  no "▁" after a control token, nor before a text that begins with a space,
                       as `transformers` without `legacy`
    """
    _check(pieces, where)
    try:
        made = tokenizers.Tokenizer(_model(pieces))
        spaces = _normalizers(pieces, prefix_first_only)
        made.normalizer = normalizers.Sequence(spaces)
        made.pre_tokenizer = pre_tokenizers.Sequence(_pre_tokenizers(pieces, prefix_first_only))
        made.decoder = decoders.Sequence(_decoders(pieces))
        _add_tokens(made, pieces)
    except Exception as error:
        raise ModelError(f"{where}: not a usable tokenizer: {error}") from None
    return made


def _check(pieces: SentencePieces, where: str) -> None:
    def refused(what: str) -> ModelError:
        return ModelError(f"{where}: {what}")

    n_pieces = len(pieces.texts)
    if not n_pieces or len(set(pieces.texts)) != n_pieces:
        raise refused("expected one or more pieces, all different")
    if max(map(len, pieces.texts)) > MOST_CHARS:
        raise refused(f"a piece has more than {MOST_CHARS} characters, the most supported")
    if pieces.kind not in (UNIGRAM, BPE):
        raise refused(f"model type {pieces.kind} is not supported; supported: unigram, bpe")
    if not all(map(math.isfinite, pieces.scores)):
        raise refused("a piece has a score that is not finite; the file is damaged")
    if pieces.kind == UNIGRAM and UNUSED in pieces.types:
        raise refused("unused pieces are not supported in a unigram model")
    if pieces.space_after or not pieces.escape_spaces:
        raise refused("its handling of spaces is not supported; expected ▁ before words")
    if pieces.kind == UNIGRAM and UNKNOWN not in pieces.types:
        raise refused("expected a piece for unknown text, but there is none")


def _model(pieces: SentencePieces) -> Any:
    unknown = pieces.types.index(UNKNOWN) if UNKNOWN in pieces.types else None
    if pieces.kind == UNIGRAM:
        scored = list(zip(pieces.texts, map(float, pieces.scores), strict=True))
        return models.Unigram(scored, unknown, pieces.byte_fallback)
    return models.BPE(
        vocab={text: id for id, text in enumerate(pieces.texts)},
        merges=_merges(pieces),
        unk_token=None if unknown is None else pieces.texts[unknown],
        fuse_unk=True,
        byte_fallback=pieces.byte_fallback,
    )


def _merges(pieces: SentencePieces) -> list[tuple[str, str]]:
    """Return every split of a piece into two others, in merge order: by descending score of the
    piece, then by the ids of the parts.

    Control tokens and the like are not text, so they are neither parts nor made of parts.
    """
    usable = {
        text: id
        for id, (text, type) in enumerate(zip(pieces.texts, pieces.types, strict=True))
        if type == NORMAL or (type == USER_DEFINED and SPACE in text)
    }
    merges = []
    for piece, id in usable.items():
        cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        ways = [(usable[a], usable[b], a, b) for a, b in cuts if a in usable and b in usable]
        merges += [(-pieces.scores[id], id, *way) for way in sorted(ways)]
    return [(a, b) for *_, a, b in sorted(merges)]


def _normalizers(pieces: SentencePieces, prefix_first_only: bool) -> list[Any]:
    steps: list[Any] = []
    if pieces.charsmap:
        steps.append(normalizers.Precompiled(pieces.charsmap))
    if pieces.join_spaces:
        steps.append(normalizers.Replace(Regex(r"\A +|(?<! ) +\z"), ""))
        steps.append(normalizers.Replace(Regex(r" {2,}"), " "))
    if pieces.add_prefix and not prefix_first_only:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    if pieces.join_spaces:
        steps.append(normalizers.Replace(Regex(rf"(?<!{SPACE}){SPACE}+\z"), ""))
    return steps


def _pre_tokenizers(pieces: SentencePieces, prefix_first_only: bool) -> list[Any]:
    """Return the pre-tokenizers. For Unigram they split "<0x41>" and names of control tokens after
    their first character, because `tokenizers` would find them in a text as pieces."""
    steps: list[Any] = []
    if pieces.add_prefix and prefix_first_only:
        steps.append(pre_tokenizers.Metaspace(SPACE, "first", split=False))
    if pieces.kind == UNIGRAM:
        kinds = zip(pieces.texts, pieces.types, strict=True)
        names = [text for text, type in kinds if type in (UNKNOWN, CONTROL, BYTE)]
        cuts = [f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names]
        steps.append(pre_tokenizers.Split(Regex("|".join(cuts)), "merged_with_previous"))
    return steps


def _decoders(pieces: SentencePieces) -> list[Any]:
    bytes_too = [decoders.ByteFallback()] if pieces.byte_fallback else []
    strip = [decoders.Strip(" ", 1, 0)] if pieces.add_prefix else []
    return [decoders.Replace(SPACE, " "), *bytes_too, decoders.Fuse(), *strip]


def _add_tokens(made: tokenizers.Tokenizer, pieces: SentencePieces) -> None:
    """Add the pieces that are matched in a text before it is split.

    User-defined pieces with "▁" are matched after spaces were replaced. That is not done if
    normalisation has more steps, which would be applied to these pieces too.
    """
    kinds = list(zip(pieces.texts, pieces.types, strict=True))
    plain_spaces = not (pieces.charsmap or pieces.add_prefix or pieces.join_spaces)
    made.add_tokens(
        [
            AddedToken(text, normalized=plain_spaces and SPACE in text)
            for text, type in kinds
            if type == USER_DEFINED
        ]
    )
    made.add_special_tokens([text for text, type in kinds if type in (CONTROL, UNKNOWN)])
