"""Host, Origin, token, cookie and headers, on HTTP and on the WebSocket's upgrade."""

from __future__ import annotations

import re
import socket

import pytest
from flask.testing import FlaskClient
from simple_websocket import ConnectionError as RefusedError

from app.config import Settings
from app.http.security import ARRIVED, MAX_BODY_BYTES, Guard
from tests.app.conftest import Site, StartSite
from tests.app.page import PageClient

OUR_HOSTS = [
    "localhost",
    "localhost:8000",
    "LOCALHOST:8000",
    "127.0.0.1",
    "127.0.0.1:9999",
    "127.8.9.10",
    "[::1]",
    "[::1]:8000",
]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "127.evil.example",
    "localhost.evil.example",
    "localhost.",
    "xlocalhost",
    "10.0.0.1",
    "0.0.0.0",
    "[::ffff:6.6.6.6]",
    "[::ffff:6.6.6.6]:5000",
    "localhost:port",
    "localhost:8000:8000",
    "local host",
    "localhost@evil.example",
    "evil.example#localhost",
    "",
]


@pytest.mark.parametrize("host", OUR_HOSTS)
def test_our_hosts_are_served(http: FlaskClient, host: str) -> None:
    assert http.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/models", "/static/css/ui/base.css", "/nothing"]
)
def test_foreign_hosts_are_refused_everywhere(http: FlaskClient, host: str, path: str) -> None:
    response = http.get(path, environ_overrides={"HTTP_HOST": host})
    assert response.status_code in (400, 403)
    assert "tokenglass_" not in response.headers.get("Set-Cookie", "")


def test_host_names_can_be_added() -> None:
    guard = Guard(Settings(allow_host=("Box.lan",)))
    assert guard.allows_host("box.lan:8000")
    assert not guard.allows_host("other.lan:8000")


@pytest.mark.parametrize(
    ("allowed", "header"),
    [
        ("Box.lan:8000", "box.lan"),
        ("box.lan", "box.lan:8000"),
        ("10.0.0.7:8000", "10.0.0.7"),
        ("[fd00::1]", "[fd00::1]:8000"),
        ("[fd00::1]:8000", "[fd00::1]"),
        ("FD00::1", "[fd00::1]"),
    ],
)
def test_names_are_added_in_any_form(allowed: str, header: str) -> None:
    guard = Guard(Settings(allow_host=(allowed,)).validate())
    assert guard.allows_host(header)
    assert not guard.allows_host(f"x{header}")
    assert not guard.allows_host("[fd00::2]")


@pytest.mark.parametrize("host", ["box.lan", "box.lan:8000"])
def test_what_a_refusal_advises_helps(http: FlaskClient, host: str) -> None:
    refused = http.get("/health", headers={"Host": host})
    assert refused.json is not None
    message = refused.json["error"]["message"]
    found = re.fullmatch("the Host header names '(.*)', .* --allow-host and that name", message)
    assert found is not None
    assert found.group(1) == "box.lan"
    assert Guard(Settings(allow_host=(found.group(1),))).allows_host(host)


@pytest.mark.parametrize(
    ("allowed", "sent"),
    [
        ("https://Chat.example.org:443", "https://chat.example.org"),
        ("http://box.lan:80", "http://box.lan"),
        ("http://box.lan:8080", "http://box.lan:8080"),
    ],
)
def test_an_origin_may_be_named_with_its_default_port(allowed: str, sent: str) -> None:
    """Browsers leave that out."""
    guard = Guard(Settings(allow_origin=(allowed,)).validate())
    assert guard.allows_origin(sent, "localhost")
    assert not guard.allows_origin(f"{sent}1", "localhost")


def test_a_server_for_others_takes_any_address_but_not_any_name() -> None:
    guard = Guard(Settings(host="0.0.0.0", token="t"))
    assert guard.allows_host("192.168.1.5:8000")
    assert guard.allows_host(socket.gethostname())
    assert not guard.allows_host("evil.example")


FOREIGN_ORIGINS = [
    "null",
    "http://evil.example",
    "http://localhost:3000",
    "http://localhost.evil.example",
    "http://127.0.0.1",
    "file://localhost",
    "localhost",
    "http://localhost/",
    "http://localhost@evil.example",
    "http://user@localhost",
    "https://localhost",
    "https://localhost:443",
    "ws://localhost",
    "http://localhost http://evil.example",
    "",
]


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/v1/completions")])
def test_foreign_origins_are_refused(
    http: FlaskClient, origin: str, method: str, path: str
) -> None:
    response = http.open(path, method=method, headers={"Origin": origin}, json={"prompt": "a"})
    assert response.status_code == 403
    assert response.json is not None
    assert "origin" in response.json["error"]["message"]


def test_our_origin_and_none_are_served(http: FlaskClient) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    assert http.post("/v1/completions", json=body).status_code == 200
    own = {"Origin": "http://localhost"}
    assert http.post("/v1/completions", json=body, headers=own).status_code == 200


# ---- behind a proxy ----------------------------------------------------------------------------

PROXY = "https://chat.example.org"


@pytest.fixture
def proxied(start_site: StartSite) -> Site:
    return start_site(settings=Settings(port=0, allow_origin=(PROXY, "http://Box.lan:8080")))


@pytest.mark.parametrize("origin", [PROXY, "http://box.lan:8080"])
@pytest.mark.parametrize("host", ["localhost", "chat.example.org", "box.lan:8080"])
def test_the_page_of_a_proxy_is_ours_when_it_is_named(
    proxied: Site, origin: str, host: str
) -> None:
    """It does not matter whether the proxy forwards the browser's Host or sets its own."""
    client = proxied.app.test_client()
    headers = {"Origin": origin, "Host": host}
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://chat.example.org",
        "https://chat.example.org:8443",
        "https://evil.chat.example.org",
        "https://box.lan:8080",
        "https://localhost",
        "null",
    ],
)
def test_a_proxy_opens_no_other_origin(proxied: Site, origin: str) -> None:
    client = proxied.app.test_client()
    response = client.get("/v1/models", headers={"Origin": origin, "Host": "localhost"})
    assert response.status_code == 403
    assert response.json is not None
    assert "--allow-origin" in response.json["error"]["message"]


def test_a_websocket_comes_through_a_proxy(proxied: Site) -> None:
    page = proxied.page(origin=PROXY)
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 2})
    assert page.until("done")["reason"] == "length"


def test_the_page_of_a_proxy_with_tls_may_open_its_socket_and_keeps_its_cookie_there(
    proxied: Site,
) -> None:
    client = proxied.app.test_client()
    page = client.get("/", headers={"Host": "chat.example.org"})
    assert " wss://chat.example.org" in page.headers["Content-Security-Policy"]
    assert "Secure" in page.headers["Set-Cookie"]
    plain = proxied.app.test_client().get("/", headers={"Host": "localhost:8000"})
    assert "Secure" not in plain.headers["Set-Cookie"]


LINK = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}
OWN = {**LINK, "Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize("site_header", ["cross-site", "same-site"])
def test_other_sites_may_link_to_the_page_and_embed_nothing(
    http: FlaskClient, site_header: str
) -> None:
    link = {**LINK, "Sec-Fetch-Site": site_header}
    image = {"Sec-Fetch-Site": site_header, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    frame = {**link, "Sec-Fetch-Dest": "iframe"}
    assert http.get("/", headers=link).status_code == 200
    assert http.get("/", headers=image).status_code == 403
    assert http.get("/", headers=frame).status_code == 403
    assert http.post("/", headers=link).status_code == 403
    assert http.get("/v1/models", headers=link).status_code == 403


def test_a_link_does_not_replace_the_session_it_cannot_see(http: FlaskClient) -> None:
    """A browser omits a SameSite=Strict cookie on a link, so the page is requested once more."""
    first = http.get("/", headers=LINK)
    assert first.headers["Refresh"] == "1; url=./"
    assert "Set-Cookie" not in first.headers
    assert first.text == ARRIVED
    again = http.get("/", headers=OWN)
    assert "Refresh" not in again.headers
    assert "Tokenglass" in again.text


@pytest.mark.parametrize("origin", [*FOREIGN_ORIGINS, None])
def test_a_websocket_needs_our_origin(site: Site, origin: str | None) -> None:
    with pytest.raises(RefusedError) as refusal:
        PageClient(site.port, origin=origin)
    assert refusal.value.status_code == 403


def test_a_websocket_of_a_foreign_host_is_refused(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as sock:
        sock.sendall(
            b"GET /ws HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n"
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 403 ")


def test_a_plain_request_for_the_websocket_is_not_served(http: FlaskClient) -> None:
    assert http.get("/ws").status_code in (400, 404)


# ---- token -----------------------------------------------------------------------------------

TOKEN = "correct horse"


@pytest.fixture
def locked(start_site: StartSite) -> Site:
    return start_site(settings=Settings(port=0, token=TOKEN))


def paths(site: Site) -> list[str]:
    """Return every path of the application, so that new routes are covered too."""
    return [rule.rule.replace("<path:filename>", "css") for rule in site.app.url_map.iter_rules()]


def test_the_token_is_needed_on_every_route_but_health(locked: Site) -> None:
    client = locked.app.test_client()
    assert client.get("/health").status_code == 200
    others = [path for path in paths(locked) if path != "/health"]
    assert {"/", "/ws", "/v1/completions", "/v1/models", "/static/css"} <= set(others)
    for path in [*others, "/unknown", "/health/", "/health/x"]:
        for method in ("GET", "POST", "OPTIONS"):
            response = client.open(path, method=method)
            assert response.status_code == 401, (method, path)
            assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    [
        "",
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        "Bearer é",
    ],
)
def test_a_wrong_token_is_refused(locked: Site, header: str) -> None:
    response = locked.app.test_client().get("/v1/models", headers={"Authorization": header})
    assert response.status_code == 401


def test_the_token_opens_the_api(locked: Site) -> None:
    client = locked.app.test_client()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/v1/models", headers=headers).status_code == 200


def test_the_token_in_the_address_becomes_a_cookie(locked: Site) -> None:
    client = locked.app.test_client()
    assert client.get("/?token=wrong").status_code == 401
    assert client.get(f"/v1/models?token={TOKEN}").status_code == 401
    response = client.get("/", query_string={"token": TOKEN})
    assert (response.status_code, response.headers["Location"]) == (303, "./")
    cookie = response.headers["Set-Cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path" not in cookie, "a proxy may serve another one below another path"
    assert client.get("/").status_code == 200
    assert client.get("/v1/models").status_code == 200


def test_a_link_to_a_locked_page_gives_nothing_away(locked: Site) -> None:
    client = locked.app.test_client()
    response = client.get("/", headers=LINK)
    assert response.text == ARRIVED
    assert "Set-Cookie" not in response.headers
    assert client.get("/", headers=OWN).status_code == 401
    arrival = client.get("/", query_string={"token": TOKEN}, headers=LINK)
    assert arrival.status_code == 303
    assert client.get("/", headers=OWN).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/unknown"])
def test_a_refused_request_never_gets_a_cookie(locked: Site, path: str) -> None:
    client = locked.app.test_client()
    for headers in ({}, LINK, OWN, {"Host": "evil.example"}, {"Origin": "null"}):
        assert "Set-Cookie" not in client.get(path, headers=headers).headers


def test_a_websocket_needs_the_token_too(locked: Site) -> None:
    with pytest.raises(RefusedError) as refusal:
        PageClient(locked.port)
    assert refusal.value.status_code == 401
    authorized = {"Authorization": f"Bearer {TOKEN}"}
    locked.page(headers=authorized)
    locked.page(headers=authorized, origin=None)


def test_a_cookie_of_another_server_opens_nothing(locked: Site, start_site: StartSite) -> None:
    other = start_site().cookie()
    name, _, value = other.partition("=")
    client = locked.app.test_client()
    client.set_cookie("tokenglass_default", value)
    assert name.startswith("tokenglass_")
    assert client.get("/").status_code == 401


# ---- headers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/unknown"])
def test_every_response_has_the_security_headers(http: FlaskClient, path: str) -> None:
    headers = http.get(path, headers={"Host": "localhost:8000"}).headers
    csp = headers["Content-Security-Policy"]
    assert "default-src 'none'" in csp
    assert "connect-src 'self' ws://localhost:8000;" in csp
    assert "unsafe" not in csp
    assert "*" not in csp
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_refusal_has_the_security_headers_and_does_not_echo_the_host(http: FlaskClient) -> None:
    response = http.get("/", headers={"Host": "evil.example"})
    assert "evil" not in str(response.headers)
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]


def test_the_page_needs_nothing_that_the_policy_forbids(http: FlaskClient) -> None:
    page = http.get("/").text
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    for tag in re.findall(r"<script[^>]*>", page):
        assert "src=" in tag or 'type="application/json"' in tag, "data is not run"
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page)


def test_the_cookie_is_per_port_and_not_replaced(http: FlaskClient) -> None:
    first = http.get("/", headers={"Host": "localhost:8000"}).headers["Set-Cookie"]
    assert first.startswith("tokenglass_8000=")
    again = http.get("/", headers={"Host": "localhost:8000"})
    assert "Set-Cookie" not in again.headers
    other = http.get("/", headers={"Host": "localhost:9000"}).headers["Set-Cookie"]
    assert other.startswith("tokenglass_9000=")


def test_a_body_past_the_bound_is_refused(http: FlaskClient) -> None:
    response = http.post("/v1/completions", data=b"x" * (MAX_BODY_BYTES + 1))
    assert response.status_code == 413


def test_token_and_cookie_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("app.http.security.hmac.compare_digest", compare)
    guard = Guard(Settings(port=0, token=TOKEN))
    assert guard.is_token(TOKEN)
    assert not guard.is_token("correct house")
    assert compared == [(TOKEN.encode(), TOKEN.encode()), (b"correct house", TOKEN.encode())]
    session, _, signature = guard.new_cookie().partition(".")
    assert guard.session_in(f"{session}.{signature}") == session
    assert compared[-1] == (signature.encode(), signature.encode())
