"""C types of wgpu-native, parsed in one declaration to start faster.

cffi parses a type when it is first named, and reads every typedef of the header again for it: 15 ms
for each of the sixty types that wgpu-py names before the first token, nearly a second per start.
One declaration that names them all takes as long as three types.
"""

from __future__ import annotations

from typing import Any

PLAIN = ("char", "uint8_t", "uint32_t", "uint64_t", "intptr_t", "uintptr_t")
"""Basic C types that wgpu-py names."""

FUNCTIONS = "WGPUProc"
"""Prefix of the library's function types, which wgpu-py never names."""


def parse_together(ffi: Any) -> int:
    """Parse every named type of `ffi`, its pointers and arrays, as wgpu-py spells them, into cffi's
    cache; return the number of names. 0: this cffi caches types in another way."""
    parsed = getattr(ffi, "_parsed_types", None)
    if not isinstance(parsed, dict):
        return 0
    named = [name for name in ffi.list_types()[0] if not name.startswith(FUNCTIONS)]
    names = [*named, *PLAIN]
    parameters = ", ".join(f"{name} *, {name}(*)[]" for name in names)
    types = ffi.typeof(f"void(*)({parameters})").args
    for name, pointer, to_array in zip(names, types[::2], types[1::2], strict=True):
        array = to_array.item
        for spelled, found in (
            (name, pointer.item),
            (f"{name} *", pointer),
            (f"{name}[]", array),
            (f"{name} []", array),
        ):
            parsed.setdefault(spelled, (found, False))  # False: not a function type
    return len(names)
