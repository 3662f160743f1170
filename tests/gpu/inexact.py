"""Shaders of a device that computes as badly as WGSL allows.

WGSL bounds the errors of division, roots and exponentials (w3.org/TR/WGSL, "Floating Point
Accuracy"), and software drivers stay far below these bounds. `inexact` moves every such result by
most of its bound, so that a result that rests on a better driver shows. Products, sums, comparisons
and `round` are alike everywhere, and a fused multiply-add may be a product and a sum.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

WAYS = ("up", "down", "mixed", "unfused")
"""Results too large, too small, or quotients too large and others too small; or no fused
multiply-adds. Equal operations err alike, as on a device."""
SIGNS = {"up": (1, 1), "down": (-1, -1), "mixed": (1, -1)}
"""Of quotients, and of functions."""

ULP = 2.0**-23
"""A factor of 1 ± ULP moves a float32 by one to two units in the last place (by half of that to one
where its significand is near 2)."""
FACTORS = {"/": 1, "inverseSqrt": 1, "sqrt": 2, "exp": 1, "exp2": 1}
"""Steps of `ULP` in the factor of a result. The bounds in units in the last place: 2.5 for a
division, 2 for inverseSqrt, both for sqrt, 3 + 2|x| for exp and exp2."""
GROWING = ("exp", "exp2")
"""Functions whose error grows with |x|: the argument is moved by one step, too."""
LOGARITHMS = ("log", "log2")
LOGARITHM = """
fn inexact_{name}(x: f32, sign: f32) -> f32 {{
  return {name}(x) + sign * select(1.7e-7, 4.7e-7, x >= 0.5 && x <= 2.0);
}}
"""
"""Within 2⁻²¹ in [0.5, 2], elsewhere within 3 units in the last place, of 0.69 at least."""
EXACT = {
    "abs", "all", "any", "atomicAdd", "atomicLoad", "atomicMax", "atomicMin", "atomicOr",
    "atomicStore", "bitcast", "ceil", "clamp", "countOneBits", "dot", "dot4I8Packed", "floor",
    "fma", "max", "min", "mix", "pack2x16float", "pack4xI8", "quadBroadcast", "quadSwapX",
    "quadSwapY", "round", "select", "sign", "storageBarrier", "subgroupBroadcast", "textureLoad",
    "unpack2x16float", "unpack4xI8", "workgroupBarrier", "workgroupUniformLoad",
}  # fmt: skip
"""Functions that round as the products and sums they stand for, or not at all."""
TYPES = re.compile(r"(array|bool|[fiu](16|32|64)|vec[234]\w*|mat\dx\d\w*)\Z")
KEYWORDS = {"if", "for", "while", "switch", "return", "loop"}

_COMMENT = re.compile(r"//[^\n]*")
_CALL = re.compile(r"(?<![@.\w])([A-Za-z_]\w*)(?:<[\w<> ]*>)?\(")
_DEFINED = re.compile(r"\b(?:fn|struct|alias)\s+(\w+)")
_CONSTANT = re.compile(r"^(?:const|override)\b[^\n]*", re.MULTILINE)
_ASSIGNED = re.compile(r"(\w+)\s*/=\s*")
_DIVISION = re.compile(r"/\s*")
_OF_LITERALS = re.compile(r"[(=,]\s*[\d.]+\s*/\s*[\d.]+\Z")
_OPERAND = re.compile(r"-?[\w.]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_DECLARED = re.compile(
    r"(?:(?:const|override|let|var)\s+|(?<=[(,{])\s*)(\w+)\s*(?::\s*(\w+)|=(?!=)\s*([^;]+);)"
)


def inexact(source: str, way: str) -> str:
    """Return a composed source as a device computes it that is inexact in one of `WAYS`. Raises
    ValueError for a function whose accuracy is not listed here."""
    source = _ASSIGNED.sub(r"\1 = \1 / ", _COMMENT.sub("", source))
    if unknown := called(source) - EXACT - FACTORS.keys() - set(LOGARITHMS):
        raise ValueError(f"the accuracy of {', '.join(sorted(unknown))} is not listed")
    if way == "unfused":
        return _unfused(source)
    edits = list[tuple[int, int, str]]()
    for operation, begin, end in sorted(inexact_places(source), key=lambda place: place[1:]):
        edits += _insertions(operation, begin, end, SIGNS[way][operation != "/"])
    parts, at = list[str](), 0
    for place, _, text in sorted(edits):
        parts += [source[at:place], text]
        at = place
    logarithms = (LOGARITHM.format(name=name) for name in LOGARITHMS)
    return "".join([*parts, source[at:], *logarithms])


def called(source: str) -> set[str]:
    """Return the built-in functions that a source without comments calls."""
    names = set(_CALL.findall(source)) - set(_DEFINED.findall(source)) - KEYWORDS
    return {name for name in names if not TYPES.match(name)}


def inexact_places(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield each inexact operation of a composed source without comments: its name, where it
    begins, and where its last operand ends."""
    integers = _integer_names(source)
    constants = [match.span() for match in _CONSTANT.finditer(source)]
    for match in _DIVISION.finditer(source):
        begin, end = match.start(), _operand_end(source, match.end())
        is_constant = any(first <= begin < stop for first, stop in constants)
        if is_constant or _OF_LITERALS.search(source, max(0, begin - 20), end):
            continue
        if not _is_integer(source[match.end() : end], integers):
            yield "/", begin, end
    for match in _CALL.finditer(source):
        if match[1] in FACTORS or match[1] in LOGARITHMS:
            yield match[1], match.start(), _closing(source, match.end() - 1)


def _insertions(operation: str, begin: int, end: int, sign: int) -> list[tuple[int, int, str]]:
    """Return the texts that make an operation inexact: (place, order at the place, text)."""
    if operation in LOGARITHMS:
        return [(begin, begin, "inexact_"), (end - 1, -begin, f", {sign}.0")]
    if operation == "/":
        return [(end, -begin, _factor("/", sign))]
    found = [(begin, begin, "("), (end, -begin, _factor(operation, sign) + ")")]
    if operation in GROWING:  # most arguments are negative
        opened = begin + len(operation) + 1
        found += [(opened, begin, "("), (end - 1, -begin, ")" + _factor("/", -sign))]
    return found


def _factor(operation: str, sign: int) -> str:
    return f" * {1 + sign * FACTORS[operation] * ULP!r}"


def _integer_names(source: str) -> set[str]:
    """Return the names that are declared as integers everywhere in a source."""
    declared = defaultdict[str, list[str]](list)
    for name, kind, value in _DECLARED.findall(source):
        declared[name].append({"u32": "0u", "i32": "0u"}.get(kind, kind) or value)
    found = set[str]()
    while more := {
        name
        for name in declared.keys() - found
        if all(_is_integer(value, found) for value in declared[name])
    }:
        found |= more
    return found


def _is_integer(expression: str, names: set[str]) -> bool:
    """Return whether an expression has integer literals, or consists of these names. A float taken
    for an integer is missed; an integer taken for a float does not compile."""
    if re.search(r"\b\d+u\b", expression) or expression.isdecimal():
        return True
    return {*_NAME.findall(expression)} <= names and "." not in expression


def _operand_end(source: str, at: int) -> int:
    """Return where the operand that begins at `at` ends, with what is called, indexed or taken of
    it."""
    if match := _OPERAND.match(source, at):
        at = match.end()
    while source[at] in "([." and not source.startswith("..", at):
        member = _OPERAND.match(source, at + 1) if source[at] == "." else None
        at = member.end() if member else _closing(source, at)
    return at


def _closing(source: str, at: int) -> int:
    """Return the place after the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(source)):
        depth += (source[i] in "([") - (source[i] in ")]")
        if depth == 0:
            return i + 1
    raise ValueError(f"a bracket is not closed: {source[at : at + 40]}")


def _unfused(source: str) -> str:
    """Return the source with every `fma` as a product and a sum."""
    while match := re.search(r"(?<![.\w])fma\(", source):
        end = _closing(source, match.end() - 1)
        a, b, c = _arguments(source[match.end() : end - 1])
        source = f"{source[: match.start()]}(({a}) * ({b}) + ({c})){source[end:]}"
    return source


def _arguments(text: str) -> list[str]:
    """Split arguments at their commas."""
    found, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            found.append("")
        else:
            found[-1] += c
    return found
