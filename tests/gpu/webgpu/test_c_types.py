"""Types parsed together equal those that cffi parses one by one, and few remain for cffi."""

from __future__ import annotations

import subprocess
import sys

import pytest
from wgpu.backends.wgpu_native import ffi

from gpu.webgpu.c_types import PLAIN, parse_together

SPELLED = [
    *(f"{name}{end}" for name in PLAIN for end in ("", " *", " []", "[]")),
    "WGPUBufferDescriptor *",
    "WGPUBindGroupEntry[]",
    "WGPUCommandBuffer[]",
    "WGPULimits *",
    "WGPUStringView *",
    "WGPUStringView",
    "WGPUDevice",
]


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_type_is_what_cffi_parses_by_itself(
    spelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ffi, "_parsed_types", {})
    alone = ffi.typeof(spelled)
    ffi._parsed_types.clear()
    assert parse_together(ffi) > 100
    assert spelled in ffi._parsed_types
    assert ffi.typeof(spelled) is alone


def test_a_type_that_was_parsed_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    known = (ffi.typeof("WGPULimits *"), False)
    monkeypatch.setattr(ffi, "_parsed_types", {"WGPULimits *": known})
    parse_together(ffi)
    assert ffi._parsed_types["WGPULimits *"] is known


def test_a_cffi_without_such_a_cache_is_left_alone() -> None:
    assert parse_together(object()) == 0


COUNTING = """
import cffi.api
found = cffi.api.FFI._typeof_locked
asked = []
cffi.api.FFI._typeof_locked = lambda ffi, name: asked.append(name) or found(ffi, name)

from app import tale
from gpu import Engine, SamplingParams

engine = Engine.load(tale.model_dir())
list(engine.generate(engine.tokenizer.encode("Once"), SamplingParams(max_tokens=1)))
engine.close()
print(len(asked), *asked, sep="\\n")
"""


def test_few_types_are_parsed_by_themselves_until_the_first_token() -> None:
    """Each takes 15 ms: fails if an update of wgpu-py spells its types in a new way."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTING], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    n, *names = done.stdout.split("\n")
    assert 0 < int(n) <= 12, names
