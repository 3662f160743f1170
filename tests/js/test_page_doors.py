"""Folders of static/js import only the folders that the list below allows.

A room is a folder of static/js, below local/ and look/ also each folder there, or a file beside the
folders. Rooms are listed below those they need, so no two rooms can need each other, and neither
can two files of one room. A dynamic import counts like any other.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from tests.serving import ROOT

JS = ROOT / "static/js"
IMPORT = re.compile(
    r"""(?:^(?:import|export)\s(?:[^"';]*?\sfrom\s)?|\bimport\()"(\.[^"]+)\"""", re.MULTILINE
)

ROOMS = {
    "state": "",
    "theme-first": "",
    "reload-first": "",
    "ui": "state",
    "local/shared": "",
    "local/text": "local/shared",
    "local/interventions": "local/shared local/text",
    "local/gpu": "local/interventions local/shared local/text",
    "local/inspection": "local/gpu local/interventions local/shared",
    "net": "local/gpu ui",
    "local/hub": "local/gpu local/text net",
    "local": "local/gpu local/hub local/inspection local/interventions local/shared local/text",
    "interventions": "state ui",
    "settings": "interventions state ui",
    "tools": "state",
    "turns": "interventions net settings state ui",
    "view": "state turns ui",
    "core-sample": "settings state turns ui view",
    "replay": "interventions net settings state turns ui view",
    "conversations": "interventions net replay settings state turns ui view",
    "chat": "conversations core-sample interventions net settings state tools turns ui view",
    "glossary": "ui",
    "look/shared": "core-sample glossary interventions net settings state turns ui view",
    "look/attention": "interventions look/shared net state turns ui view",
    "look/branches": "chat core-sample interventions look/shared state turns ui view",
    "look/cache": "glossary look/shared net state ui view",
    "look/filters": "core-sample look/shared settings state ui view",
    "look/compare": "chat conversations interventions look/filters look/shared net settings state"
    " turns ui view",
    "look/lens": "core-sample interventions look/shared state ui view",
    "look/loss": "interventions look/shared net state ui view",
    "look/attribution": "interventions look/loss look/shared net state turns ui",
    "look/weights": "local/gpu look/shared net state ui",
    "look/plan": "look/shared look/weights net state ui",
    "look/reach": "chat interventions look/lens look/shared net settings state ui view",
    "look/experts": "interventions look/reach look/shared state turns ui view",
    "look/schedule": "look/shared net state ui",
    "look/timeline": "core-sample look/plan look/shared state turns ui view",
    "look/tokens": "chat local/text look/shared net state turns ui view",
    "look/forward": "interventions look/shared look/weights state ui view",
    "look/retrieval": "chat interventions look/attribution look/forward look/shared net state turns"
    " ui",
    "look/lab": "chat core-sample interventions look/plan look/shared net state turns ui",
    "look/needs": "chat look/plan look/shared net state ui",
    "look/train": "core-sample interventions look/shared net state ui",
    "look": "look/attention look/attribution look/branches look/cache look/compare look/experts"
    " look/filters look/forward look/lab look/lens look/loss look/needs look/plan look/reach"
    " look/retrieval look/schedule"
    " look/shared look/timeline look/tokens look/train look/weights state ui",
    "panels": "chat conversations core-sample glossary interventions local/gpu local/hub look"
    " look/cache look/reach look/shared net settings state turns ui view",
    "start": "chat look look/compare state turns ui view",
    "tour": "chat conversations core-sample glossary interventions look look/attention look/cache"
    " look/filters look/lens look/plan look/shared look/timeline look/tokens net settings state"
    " turns ui view",
    "lessons": "look/attention look/cache look/forward look/lens look/plan look/shared"
    " look/timeline look/tokens look/weights net state tour ui",
    "words": "conversations glossary lessons look look/weights settings state ui",
    "page": "chat conversations core-sample interventions lessons look net panels replay state tour"
    " turns ui view words",
    "main": "chat conversations core-sample interventions lessons look page panels replay settings"
    " start state tour turns ui view words",
}  # fmt: skip
"""room: the rooms it may open"""


def room_of(file: str) -> str:
    """Return the room of a file below static/js."""
    *folders, name = file.split("/")
    if not folders:
        return name.removesuffix(".js")
    deep = folders[0] in ("local", "look")
    return "/".join(folders[: 2 if deep else 1])


@cache
def imports() -> dict[str, set[str]]:
    """Return file → files it imports, relative to static/js, without vendored libraries."""
    found = {}
    for path in sorted(JS.rglob("*.js")):
        file = path.relative_to(JS).as_posix()
        names = IMPORT.findall(path.read_text("utf-8"))
        paths = {os.path.normpath(Path(file).parent / name) for name in names}
        found[file] = {each for each in paths if not each.startswith("../vendor/")}
    return found


def test_imports_are_of_files_that_are_there() -> None:
    assert set().union(*imports().values()) <= set(imports())


def test_each_form_of_an_import_is_found() -> None:
    code = 'import "./a.js";\nimport {\n  b,\n} from "./b.js";\nconst c = await import("./c.js");'
    code += '\nexport { d } from "./d.js";'
    assert IMPORT.findall(code) == ["./a.js", "./b.js", "./c.js", "./d.js"]


def test_rooms_are_listed_below_those_they_need() -> None:
    above: set[str] = set()
    for room, needs in ROOMS.items():
        assert set(needs.split()) <= above, f"{room} needs rooms that are listed below it"
        above.add(room)
    assert {room_of(file) for file in imports()} == above


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_opens_only_the_doors_on_its_list(room: str) -> None:
    allowed = {room, *ROOMS[room].split()}
    used = {room}
    for file, needed in imports().items():
        if room_of(file) == room:
            for other in needed:
                used.add(room_of(other))
                assert room_of(other) in allowed, f"{file} may not import {other}"
    assert used == allowed, "doors on the list that nobody opens"


def test_no_files_need_each_other() -> None:
    needs = dict(imports())
    while needs:
        free = {file for file, needed in needs.items() if not needed}
        assert free, f"need each other: {sorted(needs)}"
        needs = {file: needed - free for file, needed in needs.items() if file not in free}
