"""docs/mutants.md: the table of all mutants and the tests that notice them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.mutants.mutant import KEY_DIGITS, Mutant
from tests.mutants.running import Verdict

INTRODUCTION = """\
# Mutation check

`make mutants` breaks one thing at a time in a copy of the checkout, {n} things in all, and runs the
tests that should notice. It writes these tables: what is broken, which test failed first, and how
many seconds of testing that took, {minutes:.0f} minutes for all. Each of those tests passes without
the fault. A test that hangs was stopped at a time limit. A row keeps its result until the mutant is
changed, or the list of tests that it runs (both are named by `key`): `make mutants` runs only what
has no result, and `python -m tests.mutants --fresh --report docs/mutants.md` runs everything again.
"""
HEAD = """
## {room}

| mutant | what is broken | file | noticed by | s | key |
|---|---|---|---|--:|---|
"""
ROW = re.compile(
    r"^\| `[^`]+` \| .* \| `[^`]+` "
    r"\| (?:`(?P<test>[^|]+)`|(?P<other>[^`|]+?))(?P<hangs> \(hangs\))? "
    rf"\| (?P<seconds>[\d.]+) \| `(?P<key>[0-9a-f]{{{KEY_DIGITS}}})` \|$",
    re.MULTILINE,
)
Rooms = Mapping[str, Iterable[Mutant]]


def read_report(path: Path) -> dict[str, Verdict]:
    """Return a report's verdicts by the key of their mutant; none if there is no report."""
    text = path.read_text("utf-8") if path.exists() else ""
    return {
        row["key"]: Verdict(
            (row["test"] or row["other"]).replace("&#124;", "|"),
            float(row["seconds"]),
            row["hangs"] is not None,
        )
        for row in ROW.finditer(text)
    }


def report(rooms: Rooms, verdicts: Mapping[str, Verdict]) -> str:
    """Return the Markdown of all mutants that have a verdict."""
    judged = {
        room: [mutant for mutant in mutants if mutant.key in verdicts]
        for room, mutants in rooms.items()
    }
    keys = [mutant.key for mutants in judged.values() for mutant in mutants]
    minutes = sum(verdicts[key].seconds for key in keys) / 60
    parts = [INTRODUCTION.format(n=len(keys), minutes=minutes)]
    for room, mutants in judged.items():
        if mutants:
            rows = [_row(mutant, verdicts[mutant.key]) for mutant in mutants]
            parts.append(HEAD.format(room=room) + "\n".join(rows) + "\n")
    return "".join(parts)


def _row(mutant: Mutant, verdict: Verdict) -> str:
    noticed = verdict.noticed_by.replace("|", "&#124;")
    if "::" in noticed:
        noticed = f"`{noticed}`"
    if verdict.hangs:
        noticed += " (hangs)"
    return (
        f"| `{mutant.name}` | {mutant.breaks} | `{mutant.file}` | {noticed} "
        f"| {verdict.seconds:.0f} | `{mutant.key}` |"
    )
