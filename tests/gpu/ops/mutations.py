"""Damaged files for fuzzing: bytes and JSON trees mutated by hypothesis."""

from __future__ import annotations

import copy
import json
import struct
from typing import Any

from hypothesis import strategies as st

NASTY = (
    0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, 1e308, -0.0, 5e-324, float("inf"),
    float("nan"), True, False, None, "", "\0", "\ud800", "../..", "a" * 300, [], {}, [[]],
)  # fmt: skip
LEAVES = (
    st.sampled_from(NASTY).map(copy.deepcopy)  # a copy, because `trees` may change it
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
DEEP = b"[" * 100_000


@st.composite
def trees(draw: st.DrawFn, base: Any) -> Any:
    """`base` with up to three values replaced, removed or added."""
    tree = copy.deepcopy(base)
    for _ in range(draw(st.integers(1, 3))):
        node, place = tree, None
        while isinstance(node, dict | list) and node:
            if place is not None and draw(st.integers(0, 2)) == 0:
                break
            parent = node
            places = list(node) if isinstance(node, dict) else range(len(node))
            place = draw(st.sampled_from(places))
            node = parent[place]
        if place is None:
            return draw(VALUES)
        match draw(st.integers(0, 3)):
            case 0:
                del parent[place]
            case 1 if isinstance(parent, dict):
                parent[draw(st.text(max_size=8))] = draw(VALUES)
            case _:
                parent[place] = draw(VALUES)
    return tree


def json_files(base: Any) -> st.SearchStrategy[bytes]:
    """A JSON file like `base`; some are not JSON at all."""
    return trees(base).map(as_json) | mutants(as_json(base)) | st.just(DEEP)


def as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def safetensors_files(header: Any, body: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file with a wrong header, a wrong header length, or a missing end."""
    headers = json_files(header)
    lengths = st.none() | st.integers(0, 2**64 - 1)

    def file(text: bytes, length: int | None, cut: int) -> bytes:
        n = len(text) if length is None else length
        whole = n.to_bytes(8, "little") + text + body
        return whole[: len(whole) - cut]

    whole = len(as_json(header)).to_bytes(8, "little") + as_json(header) + body
    cuts = st.just(0) | st.integers(0, len(whole))
    return st.builds(file, headers, lengths, cuts) | mutants(whole)


@st.composite
def mutants(draw: st.DrawFn, base: bytes, end: int | None = None) -> bytes:
    """`base` with up to four changes in its first `end` bytes: bytes replaced, removed or doubled,
    wrong lengths and counts."""
    data = bytearray(base)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(end or len(base), len(data))))
        size = draw(st.integers(1, 9))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + size] = draw(st.binary(min_size=size, max_size=size))
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[at : at + size]
            case _:
                format = draw(st.sampled_from(["<I", "<Q"]))
                limit = 2 ** (8 * struct.calcsize(format)) - 1
                lie = struct.pack(format, draw(st.integers(0, limit)))
                data[at : at + len(lie)] = lie
    return bytes(data)
