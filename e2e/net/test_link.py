"""The page works from a link, for which browsers withhold a SameSite=Strict cookie."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.site import Site


@pytest.mark.quick
def test_a_link_on_another_site_opens_the_page_with_its_session(
    page: Page, site: Callable[..., Site]
) -> None:
    url = site().url
    page.goto(url)
    (cookie,) = page.context.cookies(url)
    page.goto(f"data:text/html,<a href='{url}'>there</a>")
    page.click("a")
    page.wait_for_url(url)
    expect(page).to_have_title(re.compile("Tokenglass"))
    assert page.context.cookies(url) == [cookie], "the link must not replace the session"


def test_a_first_visit_by_a_link_gets_a_session(page: Page, site: Callable[..., Site]) -> None:
    url = site().url
    page.goto(f"data:text/html,<a href='{url}'>there</a>")
    page.click("a")
    expect(page).to_have_title(re.compile("Tokenglass"))
    (cookie,) = page.context.cookies(url)
    assert re.fullmatch(r"tokenglass_[0-9]+", str(cookie.get("name")))


def test_what_a_link_says_after_the_hash_arrives(page: Page, site: Callable[..., Site]) -> None:
    url = f"{site().url}#look=plan"
    page.goto(f'data:text/html,<a href="{url.replace("#", "%23")}">there</a>')
    page.click("a")
    expect(page.get_by_test_id("look")).to_be_visible()
    place = page.evaluate("location.hash")  # the page adds its model to it once it knows it
    assert "look=plan" in place.removeprefix("#").split("&")
