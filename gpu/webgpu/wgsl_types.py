"""Types and variables of WGSL, as far as the shaders in gpu/shaders use them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Space = Literal["storage", "workgroup"]
XYZW = ("x", "y", "z", "w")

_VARIABLE = re.compile(
    r"^\s*(?:@group\(0\)\s*@binding\(\d+\)\s*)?var<(storage|workgroup)[^>]*>\s*(\w+)\s*:\s*([^;]+);",
    re.MULTILINE,
)
_UNSIZED = re.compile(r"(var<storage[^>]*>\s*(\w+)\s*:\s*array<)([^;,]+)(>\s*;)")
_ALIAS = re.compile(r"^alias\s+(\w+)\s*=\s*([^;]+);", re.MULTILINE)
_STRUCT = re.compile(r"^struct\s+(\w+)\s*\{([^}]*)\}", re.MULTILINE)
_MEMBER = re.compile(r"(\w+)\s*:\s*(\w+(?:<[^,}]*>)?)")
_COMMENT = re.compile(r"//[^\n]*")
_NUMBER_BYTES = {"f32": 4, "u32": 4, "i32": 4, "u64": 8, "bool": 4}


@dataclass(frozen=True, slots=True)
class WgslType:
    """A type: its bytes, and where its parts have four bytes each (a vector, a struct of numbers),
    their names."""

    n_bytes: int
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedVariable:
    """A variable that several lanes share.

    element  type of the variable, or of its elements if it is an array
    length   number of elements as WGSL, "" for the rest of a buffer; None: no array
    """

    name: str
    space: Space
    element: WgslType
    length: str | None

    @property
    def is_array(self) -> bool:
        return self.length is not None


def shared_variables(source: str) -> Iterator[SharedVariable]:
    """Yield the variables of a source in storage and workgroup memory. Raises ValueError for a type
    that is not known."""
    source = _COMMENT.sub("", source)
    aliases, structs = dict(_ALIAS.findall(source)), dict(_STRUCT.findall(source))
    for space, name, kind in _VARIABLE.findall(source):
        element, length = _element(kind.strip())
        yield SharedVariable(name, space, _type(element, aliases, structs), length)


def with_lengths(source: str, n_bytes: Mapping[str, int]) -> str:
    """Return a source whose storage arrays of these names, if they take the rest of a buffer, have
    the length of a buffer of `n_bytes`. Raises ValueError for a type that is not known."""
    sizes = {variable.name: variable.element.n_bytes for variable in shared_variables(source)}

    def declared(match: re.Match[str]) -> str:
        begin, name, element, end = match.groups()
        length = n_bytes.get(name, 0) // sizes[name]
        return f"{begin}{element}, {length}{end}" if length else match[0]

    return _UNSIZED.sub(declared, source)


def _type(name: str, aliases: dict[str, str], structs: dict[str, str]) -> WgslType:
    """Return a type. Members of a struct are taken to leave no gaps."""
    name = name.strip()
    if name in _NUMBER_BYTES:
        return WgslType(_NUMBER_BYTES[name])
    if vector := re.fullmatch(r"vec(\d)(?:[fui]|<\w+>)", name):
        n, n_bytes = int(vector[1]), 8 if "u64" in name else 4
        return WgslType(n * n_bytes, XYZW[:n] if n_bytes == 4 else ())
    if atomic := re.fullmatch(r"atomic<(\w+)>", name):
        return _type(atomic[1], aliases, structs)
    if name in aliases:
        return _type(aliases[name], aliases, structs)
    if name in structs:
        members = dict(_MEMBER.findall(structs[name]))
        sizes = [_type(kind, aliases, structs).n_bytes for kind in members.values()]
        return WgslType(sum(sizes), tuple(members) if set(sizes) == {4} else ())
    raise ValueError(f"the type {name} is not known")


def _element(kind: str) -> tuple[str, str | None]:
    """Return the element type and the length of `array<…>`, or the type itself and None."""
    array = re.fullmatch(r"array<(.*)>", kind, re.DOTALL)
    if array is None:
        return kind, None
    depth = 0
    for i, c in enumerate(array[1]):
        depth += (c == "<") - (c == ">")
        if c == "," and depth == 0:
            return array[1][:i], array[1][i + 1 :].strip()
    return array[1], ""
