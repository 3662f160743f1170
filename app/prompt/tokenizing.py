"""How a text is cut into tokens, for people: as the engine gets it, and as other tokenizers do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from app import spans, tale
from app.engines import EngineClient, Tokenizer
from app.limited_tokenizer import load_tokenizer
from app.prompts import encoded_parts, prompt_ids, rendered_parts
from app.protocol import Cut, Message, Piece, PromptPiece, Tokenize, Tokenized
from gpu import InvalidRequest


class Cutter(Protocol):
    """What a second tokenizer must do."""

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]: ...
    def piece(self, id: int) -> str: ...
    def token_bytes(self, id: int) -> bytes: ...
    def is_special(self, id: int) -> bool: ...


class Bytes:
    """The tokenizer without a vocabulary: every byte of UTF-8 is a token."""

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
        return list(text.encode())

    def piece(self, id: int) -> str:
        return self.token_bytes(id).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        return bytes([id])

    def is_special(self, id: int) -> bool:
        return False


@dataclass(frozen=True)
class Compared:
    """The tokenizer that a model's is compared with."""

    name: str
    cutter: Cutter


BYTES = Compared("bytes", Bytes())


def compared(path: Path | None, model: Path) -> Compared:
    """The one at `path`, a tokenizer.json, a tokenizer.model or a model's folder. Without a path:
    the bundled model's beside another model, and bytes beside that. Raises `ModelError`."""
    if path is None:
        bundled = Path(tale.model_dir())
        if model.resolve() == bundled:
            return BYTES
        return Compared(tale.NAME, load_tokenizer(bundled))
    whole = path.resolve()
    folder = whole.parent if whole.name in ("tokenizer.json", "tokenizer.model") else whole
    return Compared(folder.name, load_tokenizer(path))


class _Read(NamedTuple):
    """What the engine gets of a text, and where it comes from. `plain`: without the template."""

    rendered: str
    tokens: list[PromptPiece]
    unplaced: list[int]
    plain: str


class Tokenizing:
    """Answers `tokenize`, also while the engine is not ready."""

    def __init__(self, engine: EngineClient, compare: Compared) -> None:
        self._engine = engine
        self._compare = compare

    @property
    def _tokenizer(self) -> Tokenizer:
        """Of the model that is served now."""
        return self._engine.tokenizer

    def of(self, message: Tokenize) -> Tokenized:
        """Raises `InvalidRequest` for a message with no text or more than one, and as
        `app.prompts.prompt_ids` does."""
        read = self._read(message)
        hello = self._engine.hello
        return Tokenized(
            request=message.request,
            rendered=read.rendered,
            tokens=read.tokens,
            unplaced=read.unplaced,
            n_chars=len(read.plain),
            n_bytes=len(read.plain.encode()),
            n_words=len(read.plain.split()),
            plain=cut("" if hello is None else hello.model.name, self._tokenizer, read.plain),
            compare=cut(self._compare.name, self._compare.cutter, read.plain),
        )

    def _read(self, message: Tokenize) -> _Read:
        prompt, messages, text = message.prompt, message.messages, message.text
        if sum(given is not None for given in (prompt, messages, text)) != 1:
            raise InvalidRequest("give exactly one of prompt, messages and text", "prompt")
        if message.continue_final and messages is None:
            raise InvalidRequest("continue_final goes with messages", "continue_final")
        if messages is not None:
            return self._conversation(messages, message.continue_final)
        if prompt is not None:
            tokens = self._pieces(prompt_ids(self._tokenizer, prompt))
            return _Read(prompt, tokens, [], prompt)
        assert text is not None
        ids = self._tokenizer.encode(text, bos=False, specials=False)
        return _Read(text, self._pieces(ids), [], text)

    def _pieces(self, ids: Sequence[int]) -> list[PromptPiece]:
        return [PromptPiece(*piece_of(self._tokenizer, id)) for id in ids]

    def _conversation(self, messages: Sequence[Message], continue_final: bool) -> _Read:
        parts = rendered_parts(self._tokenizer, messages, continue_final)
        whole = "".join(part.text for part in parts.parts)
        owners = spans.owners(self._tokenizer, messages, continue_final, parts, whole)
        tokens: list[PromptPiece] = []
        start = 0
        encodings = encoded_parts(self._tokenizer, parts.parts, offsets=True)
        for (text, _), (ids, offsets) in zip(parts.parts, encodings, strict=True):
            for id, (first, end) in zip(ids, offsets, strict=True):
                owner = owners.of(start + first, start + end)
                role = "" if owner is None else messages[owner].role
                tokens.append(PromptPiece(*piece_of(self._tokenizer, id), role, owner))
            start += len(text)
        plain = "\n".join(message.content for message in messages)
        return _Read(whole, tokens, owners.unplaced, plain)


def piece_of(cutter: Cutter, id: int) -> tuple[int, str, str, bool]:
    """The fields of `Piece`."""
    return id, cutter.piece(id), cutter.token_bytes(id).hex(), cutter.is_special(id)


def cut(name: str, cutter: Cutter, text: str) -> Cut:
    """A plain text as `cutter` cuts it: nothing is added to it and no name in it is special."""
    ids = cutter.encode(text, bos=False, specials=False)
    n_words = len(text.split())
    return Cut(
        name=name,
        n_tokens=len(ids),
        tokens_per_word=len(ids) / n_words if n_words else None,
        tokens=[Piece(*piece_of(cutter, id)) for id in ids],
    )
