"""The documents name only files, commands, options and messages that exist."""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from app import create_app
from app.cli.main import COMMANDS
from app.config import Settings, setting_specs
from app.models.known import known_models
from app.protocol import messages
from gpu.config import MODEL_TYPES
from gpu.kv.formats import KV_FORMATS
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.serving import ROOT

DOCS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
ROOMS = ("app/", "gpu/", "static/", "templates/", "tests/", "e2e/", "docs/", ".github/")
PLACEHOLDER = re.compile(r"[<>*{}…]|\bNAME\b")


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def anchor(heading: str) -> str:
    """Return GitHub's anchor of a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {anchor(heading) for heading in headings}


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_path_in_a_document_exists(path: Path) -> None:
    named = [
        name
        for code in re.findall(r"`([^`\n]+)`", path.read_text("utf-8"))
        for name in re.findall(r"[\w./-]+", code if not PLACEHOLDER.search(code) else "")
        if name.startswith(ROOMS)
    ]
    missing = [name for name in named if not (ROOT / name.rstrip(".")).exists()]
    assert not missing


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", path.read_text("utf-8")):
        name, _, section = link.partition("#")
        if name.startswith(("http:", "https:")):
            continue
        target = path.parent / name if name else path
        assert target.exists(), link
        if section:
            assert section in anchors(target), link


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_command_in_a_document_exists(path: Path) -> None:
    text = path.read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    code = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code += re.findall(r"`([^`\n]+)`", text)
    for line in "\n".join(code).splitlines():
        for target in re.findall(r"^make ([a-z-]+)", line):
            assert target in targets, line
        for module in re.findall(r"python -m ((?:app|gpu|tests|e2e)[\w.]*)", line):
            assert importlib.util.find_spec(module), line
        for command in re.findall(r"^tokenglass ([a-z]+)", line):
            assert command in COMMANDS, line


def test_every_mark_in_a_document_exists() -> None:
    """pytest runs nothing for an unknown one, without an error."""
    pyproject = tomllib.loads(text_of("pyproject.toml"))
    marks = {mark.split(":")[0] for mark in pyproject["tool"]["pytest"]["ini_options"]["markers"]}
    text = "".join(path.read_text("utf-8") for path in DOCS if path.name != "CHANGELOG.md")
    named = re.findall(r"pytest(?: [^\s`]+)*?\s+-m\s+(?:\"([^\"]+)\"|(\w+))", text)
    assert len(named) > 1
    for words in named:
        assert set(re.findall(r"\w+", " ".join(words))) - {"and", "or", "not"} <= marks, words


def test_every_document_is_listed() -> None:
    text = text_of("docs/architecture.md")
    for path in DOCS:
        if path.name != "architecture.md" and path != ROOT / "README.md":
            name = Path(os.path.relpath(path, ROOT / "docs")).as_posix()
            assert f"]({name})" in text


def test_every_instrument_is_described_for_the_browsers_engine_too() -> None:
    text = text_of("docs/instruments.md").partition("## While the model runs in the browser")[2]
    parts = {name for row in re.findall(r"^\| ([^|]+) \|", text, re.M) for name in row.split(", ")}
    listed = re.findall(r'tab: "(.+)",\n +title: "(.+)"', text_of("static/js/look/instruments.js"))
    assert len(listed) > 15
    for names in listed:
        assert parts & {*names}, names


def test_the_map_has_every_folder_of_the_code() -> None:
    text = text_of("docs/architecture.md")
    for path in [*(ROOT / "app").iterdir(), *(ROOT / "gpu").iterdir()]:
        if (path / "__init__.py").exists() or path.name == "shaders":
            assert f"`{path.parent.name}/{path.name}/`" in text
    for path in (ROOT / "static" / "js").iterdir():
        assert path.suffix or f"`static/js/{path.name}/`" in text


def test_every_file_in_the_drawing_exists() -> None:
    drawing = text_of("docs/token-path.svg")
    bases = [ROOT, *(ROOT / name for name in ("static/js", "app", "gpu", "gpu/shaders"))]
    names = re.findall(r"[\w/-]+\.(?:py|js|wgsl)\b", drawing)
    assert len(names) > 20
    missing = [name for name in names if not any((base / name).is_file() for base in bases)]
    assert not missing


def test_commands_lists_every_command_and_every_setting() -> None:
    text = text_of("docs/commands.md")
    for name in COMMANDS:
        assert f"`tokenglass {name}" in text
    rows = {flag for row in text.splitlines() for flag in re.findall(r"`(--[\w-]+)`", row[:60])}
    wanted = {flag for spec in setting_specs() for flag in (spec.flag, spec.no_flag) if flag}
    assert wanted <= rows


def test_api_lists_every_route() -> None:
    app = create_app(Settings(), FakeEngine(FakeOptions()), switching=object(), trainer=object())
    text = text_of("docs/api.md")
    for rule in app.url_map.iter_rules():
        if not rule.rule.startswith(("/static/", "/favicon")):
            name = re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule)
            assert name in text, rule.rule


@pytest.mark.parametrize(
    "kind", [*get_args(messages.FromPage), *get_args(messages.ToPage)], ids=lambda k: k.__name__
)
def test_api_lists_every_message(kind: type[msgspec.Struct]) -> None:
    assert f"`{kind.__struct_config__.tag}`" in text_of("docs/api.md")


def test_models_lists_every_architecture_storage_type_and_offered_model() -> None:
    text = text_of("docs/models.md")
    for name in MODEL_TYPES:
        assert f"| `{name}` |" in text
    for name in KV_FORMATS:
        assert f"`{name}`" in text
    for model in known_models():
        assert f"`{model.name}`" in text


def test_the_lessons_are_listed_with_their_addresses() -> None:
    lesson = re.compile(r'name: "([\w-]+)", question: "([^"]+)", measures: "([^"]+)"')
    text = text_of("docs/learn/README.md")
    lessons = lesson.findall(text_of("static/js/lessons/list.js"))
    assert lessons
    for name, question, measures in lessons:
        assert f"| {question} | `#lesson={name}` | {measures} |" in text


def test_every_idea_of_the_articles_has_a_place() -> None:
    """Names in italics are texts of the page; lessons are those of the list."""
    rows = re.findall(r"^\| (.+?) \| (.*) \|$", text_of("docs/learn/articles.md"), re.MULTILINE)
    ideas = [(idea, place) for idea, place in rows if idea not in ("Idea", "---")]
    assert len(ideas) == len({idea for idea, _ in ideas}) > 50
    files = (path for folder in ("static/js", "templates") for path in (ROOT / folder).rglob("*.*"))
    page = "".join(path.read_text("utf-8") for path in files if path.suffix in (".js", ".html"))
    lessons = text_of("static/js/lessons/list.js")
    for idea, place in ideas:
        assert place, f"{idea} has no place"
        for name in re.findall(r"\*([^*]+)\*", place):
            assert re.search(rf"[\"'`>]{re.escape(name)}[\"'`<]", page), f"{idea}: {name}"
        for name in re.findall(r"lesson `([^`]+)`", place):
            assert f'name: "{name}"' in lessons, f"{idea}: {name}"
