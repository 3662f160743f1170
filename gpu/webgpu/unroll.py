"""Loops of a shader unrolled in its source, for compilers that would keep the loop, and in memory
the arrays that it indexes.

A shader marks such a loop,

    for (var j = 0u; j < TILE_N; j++) { sums[j] += w[j]; } // unroll

and gets a block for each round:

    { const j = 0u; sums[j] += w[j]; }
    { const j = 1u; sums[j] += w[j]; }
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from gpu.webgpu.constant_expressions import constants_of, evaluate

MAX_COPIES = 256
"""Most copies of a body, counting those of the loops around it. A loop with more stays a loop, as
compilers take longer for longer sources; tiles of today need up to 64."""

_MARKED = re.compile(r"^( *)(for .*) // unroll\b.*$", re.MULTILINE)
_LOOP = re.compile(r"^( *)unroll (.*)", re.MULTILINE)
_HEADER = re.compile(
    r"for \(var (\w+) = (0x[0-9a-fA-F]+|\d+)([ui]?); \1 < ([^;]+); \1(?:\+\+| \+= ([^;{]+))\) {"
)
_COMMENT = re.compile(r"\s*//.*")
_COMMENT_OR_BRACE = re.compile(r"//.*|[{}]")
_JUMP = re.compile(r"\b(break|continue)\b")
_ASSIGNED = r"(?<![.\w])%s\s*(=(?!=)|[-+*/%%&|^]=|<<=|>>=|\+\+|--)"


@cache
def unrolled(source: str) -> str:
    """Return a composed source with the marked loops unrolled. Raises ValueError for one that does
    not run from an integer to a constant in constant steps, has a `break` or `continue`, or assigns
    its variable."""
    return _unrolled(_MARKED.sub(r"\1unroll \2", source), constants_of(source), 1)


@cache
def unmarked(source: str) -> str:
    """Return a composed source with its loops as they are, and without the marks."""
    return _MARKED.sub(r"\1\2", source)


def _unrolled(text: str, constants: Mapping[str, str], n_around: int) -> str:
    """Unroll the loops of a text of which there will be `n_around` copies."""
    parts, at = list[str](), 0
    while loop := _LOOP.search(text, at):
        begin = loop.start(2)
        try:
            header = _HEADER.match(text, begin)
            if header is None:
                raise ValueError("it is not like for (var i = 0u; i < N; i++) { … }")
            end = _block_end(text, header.end())
            body = _COMMENT.sub("", text[header.end() : end - 1])
            copies = _copies(header, body, constants, n_around)
        except ValueError as error:
            raise ValueError(f"cannot unroll {loop[2]}: {error}") from error
        parts += [text[at:begin].removesuffix("unroll "), f"\n{loop[1]}".join(copies)]
        at = end
    return "".join([*parts, text[at:]])


def _block_end(text: str, at: int) -> int:
    """Return the place after the brace that closes the one before `at`."""
    depth = 1
    for token in _COMMENT_OR_BRACE.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise ValueError("a brace is not closed")


def _copies(
    header: re.Match[str], body: str, constants: Mapping[str, str], n_around: int
) -> list[str]:
    """Return the copies of a loop's body, or the loop if there would be too many."""
    name, first, suffix, bound, step = header.groups()
    if jump := _JUMP.search(body):
        raise ValueError(f"it has a {jump[1]}")
    if re.search(_ASSIGNED % name, body):
        raise ValueError(f"it assigns {name}")
    begin, end = evaluate(first, constants), evaluate(bound, constants)
    values = range(begin, end, evaluate(step or "1", constants))
    n_copies = n_around * len(values)
    if n_copies > MAX_COPIES:
        return [f"{header[0]}{_unrolled(body, constants, n_around)}}}"]
    return [
        f"{{ const {name} = {value}{suffix};"
        f"{_unrolled(body, {**constants, name: str(value)}, n_copies)}}}"
        for value in values
    ]
