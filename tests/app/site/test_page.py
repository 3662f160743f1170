"""The page in an export needs no server but one for files, and is as strict as the server's."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from app import assets
from app.http.page_data import page_data
from app.http.security import CSP
from app.http.static_page import write_page


class Elements(HTMLParser):
    """Collects the start tags of a page, as (tag, attributes)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attributes}))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_page(folder, assets("static"), assets("templates"), "1.2.3")
    return folder


@pytest.fixture(scope="module")
def elements(site: Path) -> list[tuple[str, dict[str, str]]]:
    return Elements((site / "index.html").read_text()).found


def test_every_file_is_there_and_relative(
    site: Path, elements: list[tuple[str, dict[str, str]]]
) -> None:
    sources = [a[key] for _, a in elements for key in ("src", "href") if key in a]
    files = [source for source in sources if not source.startswith(("#", "https://"))]
    assert len(files) >= 6
    for file in files:
        assert (site / file).is_file(), file
    for sheet in re.findall(r"url\(([^)]+)\)", (site / "static/css/page.css").read_text()):
        assert (site / "static/css" / sheet).is_file(), sheet


def test_modules_find_each_other(site: Path) -> None:
    for module in site.rglob("*.js"):
        for name in re.findall(r"(?:from|import)\s*\(?\"(\.[^\"]+)\"", module.read_text()):
            assert (module.parent / name).is_file(), f"{module.name} imports {name}"


def test_the_policy_is_that_of_the_server(elements: list[tuple[str, dict[str, str]]]) -> None:
    """It comes before everything that it governs; only what a meta element cannot have is left
    out."""
    (place, policy), *others = [
        (i, a["content"]) for i, (_, a) in enumerate(elements)
        if a.get("http-equiv") == "Content-Security-Policy"
    ]  # fmt: skip
    assert not others
    assert not any(tag in ("link", "script", "style") for tag, _ in elements[:place])
    of_server = set(CSP.format(connect="'self'").split("; "))
    assert set(policy.split("; ")) == of_server - {"frame-ancestors 'none'"}
    assert "unsafe" not in policy


def test_it_says_that_the_engine_is_in_the_browser(
    site: Path, elements: list[tuple[str, dict[str, str]]]
) -> None:
    (engine,) = [a for tag, a in elements if a.get("name") == "tokenglass-engine"]
    assert engine["content"] == "local"
    assert engine["data-base"] == "./"
    ids = {a.get("id") for _, a in elements}
    assert set(page_data()) <= ids
    assert "models-open" not in ids
    page = (site / "index.html").read_text()
    assert "/v1/" not in page
    data = re.search(r'id="sampling-data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["settings"]
