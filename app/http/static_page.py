"""The page as files that any file server hosts; its engine runs in the browser."""

from __future__ import annotations

import shutil
from pathlib import Path

from flask import Flask, render_template

from app.http.page_data import page_data
from app.http.pages import style_sheet
from app.http.security import static_policy

STATIC = "static"
STYLE = "css/page.css"


def write_page(folder: Path, static: Path, templates: Path, version: str) -> None:
    """Write index.html and its files to `folder`, from the folders `static` and `templates`. All
    addresses are relative, so the folder may lie anywhere on a site."""
    shutil.rmtree(folder / STATIC, ignore_errors=True)
    shutil.copytree(static, folder / STATIC, ignore=_unused)
    (folder / STATIC / STYLE).parent.mkdir()
    (folder / STATIC / STYLE).write_text(style_sheet(static), "utf-8")
    app = Flask("tokenglass", static_folder=None, template_folder=templates)
    with app.app_context():
        page = render_template(
            "index.html",
            version=version,
            switching=False,
            data=page_data(),
            csp=static_policy(),
        )
    (folder / "index.html").write_text(page, "utf-8")


def _unused(folder: str, names: list[str]) -> list[str]:
    """Return the names in `folder` that the page does not load: style sheets are copied as one."""
    return [name for name in names if name == "css" or name.endswith(".md")]
