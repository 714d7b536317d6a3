"""The names that the dashboard is served under, the proxies that it trusts, and addresses that it redirects to."""

from typing import Any
from urllib.parse import urlsplit

import pytest

from outbox.admin.web import make_app
from outbox.core import Outbox
from outbox.telemetry import audit
from tests.admin.web.client import Client, anybody
from tests.admin.web.sample import failed
from tests.conftest import Configure


@pytest.fixture
def url(sqlite_url: str) -> str:
    """One database is enough where the database is not what is tested."""
    return sqlite_url


TOKEN = "A" * 43
PROXY, CLIENT = ("10.0.0.5", 50_000), ("203.0.113.7", 50_000)


def app_with(configure: Configure, **settings: Any) -> Any:
    return make_app(configure(**settings), authenticate=anybody)


def status_for(app: Any, host: str) -> int:
    return Client(app, base_url="http://ops.example.com").get("/", headers={"Host": host}).status_code


# Allowed hosts


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("ops.example.com", True),
        ("OPS.example.com:8642", True),
        ("a.internal.example.com", True),
        ("a.b.internal.example.com:80", True),
        ("[2001:db8::7]:8642", True),
        ("internal.example.com", False),
        ("example.com", False),
        ("evil.com", False),
        ("ops.example.com.evil.com", False),
        ("evil.com:ops.example.com", False),
        ("xinternal.example.com", False),
        ("", False),
        ("[", False),
        ("*.internal.example.com", True),
        ("ops.example.com@evil.com", False),
    ],
)
def test_only_allowed_hosts_are_served(configure: Configure, host: str, allowed: bool) -> None:
    app = app_with(configure, dashboard_allowed_hosts="ops.example.com, *.internal.example.com, [2001:db8::7]")
    assert status_for(app, host) == (200 if allowed else 400)


@pytest.mark.parametrize("path", ["/", "/metrics", "/static/dashboard.css", "/nothing", "/act"])
def test_no_path_is_served_under_another_name(configure: Configure, path: str) -> None:
    app = app_with(configure, dashboard_allowed_hosts="ops.example.com")
    response = Client(app).get(path, headers={"Host": "evil.com"})
    assert (response.status_code, "evil" in response.text) == (400, False)
    assert response.headers["x-frame-options"] == "DENY"


def test_two_hosts_are_refused(configure: Configure) -> None:
    app = app_with(configure, dashboard_allowed_hosts="ops.example.com")
    headers = [("Host", "ops.example.com"), ("Host", "evil.com")]
    assert Client(app).get("/", headers=headers).status_code == 400


def test_without_the_setting_any_host_is_served(configure: Configure) -> None:
    assert status_for(app_with(configure), "anything.example") == 200


# Redirects


@pytest.mark.parametrize("path", ["/events/", "//events", "/audit/", "/static", "/metrics/", "/periodic/", "/events//"])
def test_no_redirect_leads_to_the_host_of_the_request(box: Outbox, path: str) -> None:
    app = make_app(box, authenticate=anybody)
    response = Client(app).get(path, headers={"Host": "evil.example"}, follow_redirects=False)
    assert "evil.example" not in response.headers.get("location", "")
    assert "evil.example" not in response.text


def test_redirects_after_actions_and_searches_have_no_host(box: Outbox) -> None:
    event = failed()
    client = Client(make_app(box, authenticate=anybody))
    kind = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Cookie": f"outbox_csrf={TOKEN}",
        "Host": "evil.example",
    }
    body = f"action=retry&scope=selected&id={event.id}&csrf_token={TOKEN}"
    done = client.post("/act", content=body, headers=kind, follow_redirects=False)
    found = client.get(f"/events?q={event.id}", headers={"Host": "evil.example"}, follow_redirects=False)
    for response in (done, found):
        assert response.status_code == 303
        assert urlsplit(response.headers["location"]).netloc == ""
        assert not response.headers["location"].startswith("//")


# Proxies


def via_of(box: Outbox, app: Any, client: tuple[str, int], headers: Any) -> str:
    """Run an action, and return where the audit says that it came from."""
    event = failed()
    body = f"action=retry&scope=selected&id={event.id}&csrf_token={TOKEN}"
    given = [
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("Cookie", f"outbox_csrf={TOKEN}"),
        *headers,
    ]
    assert Client(app, client=client).post("/act", content=body, headers=given).status_code == 200
    return str(audit.latest(box.dialect)[0].via)


@pytest.mark.parametrize(
    ("client", "forwarded", "expected"),
    [
        (PROXY, ["198.51.100.1"], "198.51.100.1"),
        (PROXY, ["192.0.2.66, 198.51.100.1"], "198.51.100.1"),
        (PROXY, ["192.0.2.66", "198.51.100.1"], "198.51.100.1"),
        (PROXY, ["192.0.2.66, 198.51.100.1, 10.0.0.9"], "198.51.100.1"),
        (PROXY, ["198.51.100.1:4711"], "198.51.100.1"),
        (PROXY, ["[2001:db8::7]:4711"], "2001:db8::/64"),
        (PROXY, ["192.0.2.66, unknown"], "10.0.0.5"),
        (PROXY, ["192.0.2.66, unknown, 10.0.0.9"], "10.0.0.9"),
        (PROXY, [""], "10.0.0.5"),
        (PROXY, [], "10.0.0.5"),
        (CLIENT, ["198.51.100.1"], "203.0.113.7"),
        (("127.0.0.1", 1), ["198.51.100.1"], "127.0.0.1"),
    ],
)
def test_only_a_trusted_proxy_says_which_address_a_request_comes_from(
    configure: Configure, client: tuple[str, int], forwarded: list[str], expected: str
) -> None:
    box = configure(dashboard_trusted_proxies="10.0.0.0/8")
    app = make_app(box, authenticate=anybody)
    headers = [("X-Forwarded-For", value) for value in forwarded]
    assert via_of(box, app, client, headers) == f"dashboard, from {expected}"


def test_by_default_no_proxy_is_trusted(box: Outbox) -> None:
    app = make_app(box, authenticate=anybody)
    assert via_of(box, app, PROXY, [("X-Forwarded-For", "198.51.100.1")]) == "dashboard, from 10.0.0.5"


@pytest.mark.parametrize(
    ("client", "proto", "secure"),
    [
        (PROXY, "https", True),
        (PROXY, "http, https", True),
        (PROXY, "https, http", False),
        (PROXY, "http", False),
        (PROXY, "ftp", False),
        (CLIENT, "https", False),
    ],
)
def test_behind_tls_of_a_trusted_proxy_cookies_are_secure(
    configure: Configure, client: tuple[str, int], proto: str, secure: bool
) -> None:
    app = app_with(configure, dashboard_trusted_proxies="10.0.0.0/8")
    response = Client(app, client=client).get("/", headers={"X-Forwarded-Proto": proto})
    assert ("Secure" in response.headers["set-cookie"]) is secure
