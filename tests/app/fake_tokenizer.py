"""Tokenizer of the fake engine: special tokens, every byte, and the words of one text.

Any text survives encode and decode. Characters outside ASCII take several tokens, as with a real
vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpu import Segmentation, TextChunk, TextEncoding
from gpu.text.segmentation import WordSteps

BOS, EOS, USER, ASSISTANT, SYSTEM, END = range(6)
SPECIAL = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
FIRST_BYTE = len(SPECIAL)
FIRST_WORD = FIRST_BYTE + 256

CHAT_TEMPLATE = """\
{% for message in messages %}
<|{{ message.role }}|>{{ message.content }}<|end|>
{%- endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""

TOOL_TEMPLATE = """\
{% if tools %}<|system|>Call functions as <tool_call>{"name": …}</tool_call>.
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|end|>{% endif %}
{% for message in messages %}
{% if message.role == "tool" %}<|user|>{{ message.name }} {{ message.tool_call_id }}:
{%- else %}<|{{ message.role }}|>{% endif %}{{ message.content }}
{% for call in message.tool_calls %}
<tool_call>{{ call.function | tojson }}</tool_call>
{% endfor %}<|end|>
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
"""Template with tools, in the form of Hermes."""

STORY = (
    "Once upon a time there was a little fox named Mia. Mia lived in the old forest, under a "
    'hill with three tall trees. One day she found a small red lamp in the grass. "What is '
    'this?" she said. The lamp was warm, and it began to glow.\n\n"I am the lamp of the '
    'forest," said a soft voice. "I show the way to those who are lost." Mia looked at the '
    "trees and at the long dark path. She was not lost, but her friend Tom the owl was. So she "
    "took the lamp and went into the dark. The light was golden ✨ and the leaves began to sing. "
    'Soon she heard a small cry. "Tom!" said Mia. "I am here!" Tom was so happy that he flew '
    "around the lamp three times. Together they went home, and the café of the badger was still "
    "open. They had warm milk and cake, and the lamp stood on the table and smiled. 🦊\n\n"
    'The next day the lamp was gone, but the path was not dark any more. "It is with someone '
    'who needs it," said Mia. And Tom said that this was how it should be. '
)


class FakeTokenizer:
    """Fake of `gpu.Tokenizer`. `chat_template` is None for a model that only continues text.
    `marks` are more special tokens."""

    n_stripped_spaces = 0

    def __init__(
        self, chat_template: str | None = CHAT_TEMPLATE, marks: Sequence[str] = ()
    ) -> None:
        self.chat_template = chat_template
        self.tool_template: str | None = None
        self.special_tokens = {"bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS]}
        self.eos_ids = (EOS, END)
        words = dict.fromkeys(re.findall(r" ?[A-Za-z]+|\n\n", STORY))
        self._pieces = [text.encode() for text in SPECIAL]
        self._pieces += [bytes([value]) for value in range(256)]
        self._pieces += [word.encode() for word in words]
        self._words = {word: FIRST_WORD + at for at, word in enumerate(words)}
        first_mark = len(self._pieces)
        self._pieces += [mark.encode() for mark in marks]
        self._special = {text: id for id, text in enumerate(SPECIAL)}
        self._special |= {text: first_mark + at for at, text in enumerate(marks)}
        self._special_ids = frozenset(self._special.values())
        self._split_special = re.compile("|".join(map(re.escape, self._special)))

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
        return self.encode_with_offsets(text, bos, specials)[0]

    def encode_with_offsets(
        self, text: str, bos: bool = True, specials: bool = True, inside: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        found: list[tuple[int, tuple[int, int]]] = []
        at = 0
        for match in self._split_special.finditer(text) if specials else ():
            found += self._plain(text, at, match.start())
            found.append((self._special[match.group()], match.span()))
            at = match.end()
        found += self._plain(text, at, len(text))
        if bos and (not found or found[0][0] != BOS):
            found.insert(0, (BOS, (0, 0)))
        return [id for id, _ in found], [span for _, span in found]

    def encode_batch(
        self, chunks: Sequence[TextChunk], offsets: bool = False
    ) -> list[TextEncoding]:
        found = [self.encode_with_offsets(c.text, False, c.specials, c.inside) for c in chunks]
        return [TextEncoding(ids, places if offsets else []) for ids, places in found]

    def segment(self, text: str) -> Segmentation:
        words = [
            WordSteps(text[start:end], [], [], [], [id])
            for id, (start, end) in self._plain(text, 0, len(text))
        ]
        return Segmentation("WordLevel", words)

    def _plain(self, text: str, start: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
        for match in re.compile(r" ?[A-Za-z]+|\n\n|.", re.DOTALL).finditer(text, start, end):
            word = self._words.get(match.group())
            data = match.group().encode("utf-8", "replace")
            for id in (FIRST_BYTE + value for value in data) if word is None else (word,):
                yield id, match.span()

    def token_bytes(self, id: int) -> bytes:
        return b"" if self.is_special(id) else self._pieces[id]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes(id) for id in ids).decode("utf-8", "replace")

    def piece(self, id: int) -> str:
        return self._pieces[id].decode("utf-8", "replace")

    def is_special(self, id: int) -> bool:
        return id in self._special_ids
