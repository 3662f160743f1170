"""The page, its files and the health check."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from app import assets
from app.http.pages import STYLE_SHEETS, style_sheet
from tests.app.conftest import Site, StartSite


def test_the_page_is_served_and_not_cached(http: FlaskClient) -> None:
    response = http.get("/")
    assert response.status_code == 200
    assert response.mimetype == "text/html"
    assert response.headers["Cache-Control"] == "no-cache"
    assert "Tokenglass" in response.text


def test_no_two_elements_of_the_page_have_one_id(http: FlaskClient) -> None:
    ids = Counter(re.findall(r'\sid="([^"]+)"', http.get("/").text))
    assert len(ids) > 100
    assert [id for id, n in ids.items() if n > 1] == []


def test_the_style_sheets_come_as_one_file(http: FlaskClient) -> None:
    style = http.get("/static/css/page.css")
    assert style.mimetype == "text/css"
    folder = assets("static") / "css"
    sheets = {
        path.relative_to(folder).with_suffix("").as_posix(): path.read_text("utf-8")
        for path in folder.rglob("*.css")
    }
    assert set(STYLE_SHEETS) == set(sheets)
    assert style.text == "\n".join(sheets[name] for name in STYLE_SHEETS)
    tag = {"If-None-Match": style.headers["ETag"]}
    assert http.get("/static/css/page.css", headers=tag).status_code == 304


def test_the_style_sheets_write_what_safari_reads() -> None:
    """It drops a `text-decoration` of several values, and has `user-select` under its old name."""
    style = style_sheet(assets("static"))
    decorations = re.findall(r"text-decoration: ([^;]+);", style)
    assert decorations
    assert [value for value in decorations if " " in value] == []
    unprefixed = re.findall(r"\n\s*user-select: (\w+)", style)
    assert unprefixed
    assert re.findall(r"-webkit-user-select: (\w+)", style) == unprefixed


def static_files() -> list[str]:
    root = assets("static")
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_files_are_revalidated_by_their_etag(http: FlaskClient) -> None:
    for name in static_files():
        first = http.get(f"/static/{name}")
        assert first.status_code == 200, name
        assert "no-cache" in first.headers["Cache-Control"], name
        again = http.get(f"/static/{name}", headers={"If-None-Match": first.headers["ETag"]})
        assert again.status_code == 304, name
        if Path(name).suffix == ".js":
            assert first.mimetype == "text/javascript", name


def test_the_icon_is_where_browsers_look_for_it(http: FlaskClient) -> None:
    answer = http.get("/favicon.ico")
    assert answer.status_code == 200
    assert answer.mimetype == "image/svg+xml"


@pytest.mark.parametrize(
    "path", ["/static/../app/config.py", "/static/%2e%2e/app/config.py", "/static/%2fetc%2fpasswd"]
)
def test_unknown_paths_are_not_found(http: FlaskClient, path: str) -> None:
    assert http.get(path, follow_redirects=True).status_code == 404


def test_health(http: FlaskClient) -> None:
    response = http.get("/health")
    assert (response.status_code, response.json) == (200, {"status": "ok"})


def test_health_while_loading(loading_site: Site) -> None:
    response = loading_site.app.test_client().get("/health")
    assert response.status_code == 503
    assert response.json is not None
    assert response.json["status"] == "loading"
    assert 0 <= response.json["progress"] < 1
    assert "loading" in response.json["error"]["message"]


def test_health_of_a_failed_engine(start_site: StartSite) -> None:
    site = start_site(fail="no such GPU", wait=False)
    site.engine.close()
    response = site.app.test_client().get("/health")
    assert response.status_code == 503
    assert response.json is not None
    assert response.json["status"] == "failed"
    assert "no such GPU" in response.json["error"]["message"]
