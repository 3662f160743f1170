"""The C types of wgpu-native, parsed together.

cffi parses a type the first time it is named, and reads every typedef of the header again to do so:
15 ms for each of the sixty types that wgpu-py names until the first token, most of a second of
every start. One declaration that names them all is read in the time of three.
"""

from __future__ import annotations

from typing import Any

PLAIN = ("char", "uint8_t", "uint32_t", "uint64_t", "intptr_t", "uintptr_t")
"""Types of the language that wgpu-py names."""

FUNCTIONS = "WGPUProc"
"""How the types of the library's functions begin, which nobody names."""


def parse_together(ffi: Any) -> int:
    """Parse every type that `ffi` has a name for, pointers to it and arrays of it, spelled as
    wgpu-py does; how many names those are. 0: this cffi remembers types in some other way, and
    parses each by itself as before."""
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
            parsed.setdefault(spelled, (found, False))  # False: it is no function
    return len(names)
