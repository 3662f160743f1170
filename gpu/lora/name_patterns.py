"""Regular expressions for names of modules in an adapter's config.

A config is untrusted, and matching some patterns takes longer than anybody waits, without a way to
stop it. So a pattern is matched here only if that takes at most (length of the name)^MAX_REPEATS
steps, and any other in a process of its own with limits on time and memory.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject

MAX_PATTERN = 1 << 16
"""Most characters of a pattern; those that list every module have some thousand."""
QUICK_PATTERN = 1000
"""Most characters of a pattern that is matched in this process."""
MAX_REPEATS = 3
"""Most repetitions in such a pattern, none of them of a group."""
MAX_SECONDS = 10
MEMORY_BYTES = 1 << 30
COMPILE_ERRORS = (re.error, RecursionError, OverflowError)

MATCH = """
import json, re, sys
seconds, memory, patterns, names = json.load(sys.stdin)
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
except (ImportError, ValueError, OSError):
    pass  # the reader has a clock
found = []
for pattern, method in patterns:
    try:
        matches = getattr(re.compile(pattern), method)
    except (re.error, RecursionError, OverflowError):
        found.append(None)
    else:
        found.append([i for i, name in enumerate(names) if matches(name)])
print(json.dumps(found))
"""


class NamePattern:
    """Names that a pattern matches: `name in pattern`."""

    def __init__(self, pattern: str, method: str, compiled: re.Pattern[str] | None) -> None:
        self.pattern = pattern
        self.method = method
        self._compiled = compiled
        self._known: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        if self._compiled is None:
            return name in self._known
        return getattr(self._compiled, self.method)(name) is not None

    def resolve(self, names: Collection[str]) -> None:
        """Keep the names that it matches."""
        self._known = frozenset(names)


class NamePatterns:
    """Compiler of the patterns of one config. `names`: all that they will be asked about."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = tuple(names)
        self._slow: list[tuple[NamePattern, JsonObject, str]] = []

    def compile(self, fields: JsonObject, key: str, pattern: str) -> NamePattern:
        """Return the pattern at `key` of `fields`, which whole names match."""
        return self._compile(fields, key, pattern, pattern, "fullmatch")

    def compile_end(self, fields: JsonObject, pattern: str) -> NamePattern:
        """Return the pattern that is a key of `fields`, which ends of names match, as PEFT's
        `get_pattern_key` does."""
        return self._compile(fields, pattern, pattern, rf"(.*\.)?({pattern})$", "match")

    def _compile(
        self, fields: JsonObject, key: str, pattern: str, whole: str, method: str
    ) -> NamePattern:
        if len(pattern) > MAX_PATTERN:
            raise fields.error(key, f"a regular expression of at most {MAX_PATTERN:,} characters")
        repeats = len(re.findall(r"[*+{]", pattern))
        is_quick = len(pattern) <= QUICK_PATTERN and not re.search(r"\)[*+{]", pattern)
        if not is_quick or repeats > MAX_REPEATS:
            found = NamePattern(whole, method, None)
            self._slow.append((found, fields, key))
            return found
        try:
            return NamePattern(whole, method, re.compile(whole))
        except COMPILE_ERRORS:
            raise fields.error(key, "a regular expression") from None

    def resolve(self) -> None:
        """Match the patterns that are not quick. Raises ModelError for those that are no regular
        expressions, or take too long."""
        if not self._slow:
            return
        patterns = [(pattern.pattern, pattern.method) for pattern, _, _ in self._slow]
        _, fields, key = self._slow[0]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", MATCH],
                input=json.dumps([MAX_SECONDS, MEMORY_BYTES, patterns, self._names]),
                capture_output=True,
                text=True,
                timeout=MAX_SECONDS,
                check=True,
            )
            results = json.loads(done.stdout)
        except (subprocess.SubprocessError, ValueError):
            raise ModelError(
                f"{fields.where}: {key}: matching its regular expressions takes more than "
                f"{MAX_SECONDS} seconds or {MEMORY_BYTES >> 20} MiB; name the modules instead"
            ) from None
        for (pattern, fields, key), found in zip(self._slow, results, strict=True):
            if found is None:
                raise fields.error(key, "a regular expression")
            pattern.resolve([self._names[i] for i in found])
