"""WGSL that does the work of a kernel and writes down the memory accesses of one workgroup.

Every access to an array or variable in storage or workgroup memory is a site. A lane appends
(phase, site, index) to its part of the buffer `TRACE` whenever it reaches one; its phase is the
number of workgroup barriers it has passed. The work and its results stay the same.

Only what the shaders in gpu/shaders use is understood: arrays of one dimension, and pointers only
as arguments of atomics and `workgroupUniformLoad`. Anything else raises ValueError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpu.webgpu.wgsl_types import XYZW, SharedVariable, Space, WgslType, shared_variables

TRACE = "trace"
"""Name of the binding: a header of `HEADER_WORDS` words, then the events, two words each.

header  workgroup to trace (x, y, z), events that fit for each lane
event   phase · 2^PHASE_SHIFT + 1 + number of the site, index; zeros where a lane had no more events
"""
HEADER_WORDS = 4
PHASE_SHIFT = 12

Kind = Literal["read", "write", "update", "atomic"]
"""`update` is `a[i] += b`: a read and a write that other lanes may interrupt."""


@dataclass(frozen=True, slots=True)
class Site:
    """One access in the source of a kernel.

    n_bytes  bytes of one access; the address is that times the index
    text     the access as it is written
    """

    variable: str
    space: Space
    kind: Kind
    n_bytes: int
    text: str


@dataclass(frozen=True, slots=True)
class Instrumented:
    """Source of an instrumented kernel, and its sites by number."""

    source: str
    sites: tuple[Site, ...]


_COMMENT = re.compile(r"//[^\n]*")
_MAIN = re.compile(r"fn main\(([^)]*(?:\([^)]*\)[^)]*)*)\)\s*\{")
_BUILTIN = re.compile(r"@builtin\((\w+)\)\s*(\w+)")
_ASSIGNED = re.compile(r"(?:\.\w+|\[[^\]]*\])*\s*(=(?!=)|[-+*/%&|^]=|<<=|>>=|\+\+|--)")
_ATOMIC = re.compile(r"\batomic(\w+)\(\s*&\s*$")
_UNIFORM_LOAD = re.compile(r"\bworkgroupUniformLoad\(\s*&\s*$")
_POINTER = re.compile(r"[(,=]\s*&\s*$")
_FUNCTION = re.compile(r"\bfn\s+\w+\s*\(")
_BARRIER = re.compile(r"\bworkgroupBarrier\(\);")

_TRACER = """
@group(0) @binding(%(binding)d) var<storage, read_write> trace: array<u32>;
var<private> trace_on: bool;
var<private> trace_next: u32;
var<private> trace_end: u32;
var<private> trace_phase: u32;

fn trace_begin(group: vec3u, lane: u32) {
  trace_on = all(group == vec3u(trace[0], trace[1], trace[2]));
  trace_next = %(header)du + lane * trace[3] * 2u;
  trace_end = trace_next + trace[3] * 2u;
}

fn traced(site: u32, index: u32) -> u32 {
  if (trace_on && trace_next < trace_end) {
    trace[trace_next] = (trace_phase << %(shift)du) + 1u + site;
    trace[trace_next + 1u] = index;
    trace_next += 2u;
  }
  return index;
}

fn traced_part(site: u32, index: u32, n_parts: u32, part: u32) -> u32 {
  traced(site, index * n_parts + part);
  return index;
}
"""


def instrumented(source: str) -> Instrumented:
    """Instrument the composed source of a kernel. Raises ValueError if it is not understood."""
    source = _COMMENT.sub("", source)
    variables = {v.name: v for v in shared_variables(source)}
    body = AccessRewriter(source, variables)
    text = body.rewritten()
    names = re.findall(r"@binding\((\d+)\)", source)
    tracer = _TRACER % {
        "binding": 1 + max(map(int, names), default=-1),
        "header": HEADER_WORDS,
        "shift": PHASE_SHIFT,
    }
    text = _BARRIER.sub("workgroupBarrier(); trace_phase++;", text)
    return Instrumented(_begun(text) + tracer, tuple(body.sites))


class AccessRewriter:
    """Rewrites the accesses of a source so that they are traced, and numbers them."""

    def __init__(self, source: str, variables: dict[str, SharedVariable]) -> None:
        self._source = source
        self._variables = variables
        self.sites: list[Site] = []

    def rewritten(self) -> str:
        if not self._variables:
            return self._source
        parts, at = [], 0
        while function := _FUNCTION.search(self._source, at):
            end = _closing(self._source, self._source.index("{", function.end()), "{}")
            text = self._source[function.start() : end]
            names = [name for name in self._variables if not _hides(text, name)]
            parts += [self._source[at : function.start()], self._with_traces(text, names)]
            at = end
        return "".join([*parts, self._source[at:]])

    def _with_traces(self, text: str, names: list[str]) -> str:
        """Return `text` with every access to the variables `names` traced."""
        word = re.compile(rf"(?<![.\w])({'|'.join(names) or '(?!)'})\b")
        out, at = "", 0
        while match := word.search(text, at):
            out += text[at : match.start()]
            variable = self._variables[match[1]]
            if variable.is_array:
                at = _closing(text, match.end(), "[]")
                index = self._with_traces(text[match.end() + 1 : at - 1], names)
                kind = _kind(out, text[at:])
                out += self._element(variable, kind, text[match.start() : at], index, text[at:])
            else:
                out = self._whole(variable, text, match.end(), out) + variable.name
                at = match.end()
        return out + text[at:]

    def _element(
        self, variable: SharedVariable, kind: Kind, written: str, index: str, after: str
    ) -> str:
        """Return the traced access to an element, or to the part of it that follows in `after`."""
        part = _part(variable.element, after)
        if part is None:
            number = self._number(variable, kind, variable.element.n_bytes, written)
            return f"{variable.name}[traced({number}u, {index})]"
        number = self._number(variable, kind, 4, written)
        n_parts = len(variable.element.parts)
        return f"{variable.name}[traced_part({number}u, {index}, {n_parts}u, {part})]"

    def _whole(self, variable: SharedVariable, text: str, end: int, before: str) -> str:
        """Return `before` with an access to a variable that is no array traced ahead of its
        statement."""
        start = max(before.rfind(mark) for mark in ";{}") + 1
        if _UNIFORM_LOAD.search(before):
            # A barrier comes before and after the load, so no other access meets it.
            return before[:start] + " trace_phase++; " + before[start:]
        kind = _kind(before, text[end:])
        number = self._number(variable, kind, variable.element.n_bytes, variable.name)
        return before[:start] + f" traced({number}u, 0u); " + before[start:]

    def _number(self, variable: SharedVariable, kind: Kind, n_bytes: int, text: str) -> int:
        self.sites.append(Site(variable.name, variable.space, kind, n_bytes, text))
        return len(self.sites) - 1


def _part(element: WgslType, after: str) -> str | None:
    """Return the number of the part that is accessed, as WGSL, or None for the whole element."""
    if not element.parts:
        return None
    if after.startswith("["):
        return f"u32({after[1 : _closing(after, 0, '[]') - 1]})"
    member = re.match(r"\.(\w+)", after)
    if member is None or (element.parts == XYZW[: len(element.parts)] and len(member[1]) > 1):
        return None
    return f"{element.parts.index(member[1])}u"


def _kind(before: str, after: str) -> Kind:
    """Return the kind of an access between these texts."""
    if atomic := _ATOMIC.search(before):
        return {"Load": "read", "Store": "write"}.get(atomic[1], "atomic")  # type: ignore[return-value]
    if _POINTER.search(before):
        raise ValueError("a pointer to memory of more than one lane is not understood")
    assigned = _ASSIGNED.match(after)
    if assigned is None:
        return "read"
    return "write" if assigned[1] == "=" else "update"


def _closing(text: str, at: int, brackets: str) -> int:
    """Return the place after the bracket that closes the one at `at`."""
    if text[at] != brackets[0]:
        raise ValueError(f"expected {brackets[0]} at: {text[max(0, at - 40) : at + 10]}")
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == brackets[0]) - (text[i] == brackets[1])
        if depth == 0:
            return i + 1
    raise ValueError(f"a bracket is not closed: {text[at : at + 40]}")


def _hides(function: str, name: str) -> bool:
    """Return whether a parameter or local variable of a function has this name. Raises ValueError
    if the function uses the outer variable, too."""
    hidden = re.search(rf"\b(?:let|var|const)\s+{name}\b|\b{name}\s*:", function)
    if hidden and re.search(rf"(?<![.\w]){name}\b", function[: hidden.start()]):
        raise ValueError(f"{name} is a local variable after it was one of the whole shader")
    return hidden is not None


def _begun(source: str) -> str:
    """Return the source with a main function that starts the trace."""
    main = _MAIN.search(source)
    if main is None:
        raise ValueError("the source has no main function")
    names = dict(_BUILTIN.findall(main[1]))
    added = ""
    for builtin, kind in (("workgroup_id", "vec3u"), ("local_invocation_index", "u32")):
        if builtin not in names:
            names[builtin] = f"trace_{builtin}"
            added += f", @builtin({builtin}) trace_{builtin}: {kind}"
    parameters = (main[1].rstrip().rstrip(",") + added).removeprefix(", ")
    begin = f"trace_begin({names['workgroup_id']}, {names['local_invocation_index']});"
    return f"{source[: main.start()]}fn main({parameters}) {{\n  {begin}{source[main.end() :]}"
