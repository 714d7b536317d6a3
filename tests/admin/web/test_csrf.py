"""CSRF protection: only the dashboard's own forms can change events."""

import pytest
from starlette.routing import Route

from outbox.admin.web import make_app
from outbox.core import Outbox
from outbox.storage.models import OutboxEvent
from tests.admin.web.browser import Browser, form_to
from tests.admin.web.client import Client, anybody
from tests.support.table import change, emit_one


@pytest.fixture
def url(sqlite_url: str) -> str:
    """One database is enough where the database is not what is tested."""
    return sqlite_url


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def failed_event() -> str:
    event = emit_one()
    change(event, status="failed", next_attempt_at=None)
    return str(event.id)


def token(browser: Browser, id: str) -> str:
    page = browser.get("/confirm", action="retry", scope="selected", id=id)
    return dict(form_to(page, "/act").fields)["csrf_token"]


def post(client: Client, id: str, token: str, **headers: str) -> int:
    body = f"action=retry&scope=selected&id={id}&csrf_token={token}"
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/act", content=body, headers=FORM | names, follow_redirects=False).status_code


def status(id: str) -> str:
    return str(OutboxEvent.get_by_id(id).status)


def test_the_form_that_was_shown_works(browser: Browser) -> None:
    id = failed_event()
    assert post(browser.client, id, token(browser, id)) == 303
    assert status(id) == "pending"


@pytest.mark.parametrize("wrong", ["", "x", "A" * 43])
def test_a_wrong_token_changes_nothing(browser: Browser, wrong: str) -> None:
    id = failed_event()
    token(browser, id)
    assert post(browser.client, id, wrong) == 403
    assert status(id) == "failed"


def test_a_token_without_the_cookie_changes_nothing(browser: Browser) -> None:
    id = failed_event()
    given = token(browser, id)
    browser.client.cookies.clear()
    assert post(browser.client, id, given) == 403
    assert post(browser.client, id, "") == 403
    assert status(id) == "failed"


@pytest.mark.parametrize("cookie", ["", "x", "é" * 43], ids=["empty", "short", "foreign"])
def test_a_cookie_in_another_form_is_no_token(browser: Browser, cookie: str) -> None:
    id = failed_event()
    sent = f"outbox_csrf={cookie}".encode()
    body = f"action=retry&scope=selected&id={id}&csrf_token={cookie}"
    answer = browser.client.post("/act", content=body, headers={**FORM, "Cookie": sent})
    assert answer.status_code == 403
    assert status(id) == "failed"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example.com"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site", "Origin": "http://127.0.0.1:8642"},
    ],
)
def test_a_request_from_another_origin_is_refused(browser: Browser, headers: dict[str, str]) -> None:
    id = failed_event()
    assert post(browser.client, id, token(browser, id), **headers) == 403
    assert status(id) == "failed"


@pytest.mark.parametrize(
    "headers",
    [{"Sec_Fetch_Site": "same-origin"}, {"Origin": "http://127.0.0.1:8642"}, {"Origin": "https://127.0.0.1:8642"}],
)
def test_a_request_from_the_same_origin_is_accepted(browser: Browser, headers: dict[str, str]) -> None:
    id = failed_event()
    assert post(browser.client, id, token(browser, id), **headers) == 303


def test_the_cookie_is_limited_to_its_path_and_hidden_from_scripts(client: Client) -> None:
    cookie = client.get("/events").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie
    assert "set-cookie" not in client.get("/events").headers


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
def test_only_a_post_changes_anything(browser: Browser, method: str) -> None:
    id = failed_event()
    given = token(browser, id)
    path = f"/act?action=retry&scope=selected&id={id}&csrf_token={given}"
    assert browser.client.request(method, path).status_code == 405
    assert status(id) == "failed"


def test_the_query_string_of_a_post_is_ignored(browser: Browser) -> None:
    id = failed_event()
    given = token(browser, id)
    path = f"/act?action=retry&scope=selected&id={id}&csrf_token={given}"
    assert browser.client.post(path).status_code == 403
    assert status(id) == "failed"


def test_every_form_is_protected(box: Outbox) -> None:
    """Whatever a form asks for: without the token, and from another site, it is refused before it is read."""
    app = make_app(box, authenticate=anybody)
    paths = [each.path for each in app.routes if isinstance(each, Route) and "POST" in (each.methods or ())]
    assert len(paths) >= 4
    cookie = {"Cookie": f"outbox_csrf={'A' * 43}"}
    for path in paths:
        for body, headers in (
            ("action=pause", cookie),
            (f"action=pause&csrf_token={'A' * 43}", {}),
            (f"action=pause&csrf_token={'A' * 43}", cookie | {"Sec-Fetch-Site": "cross-site"}),
        ):
            assert Client(app).post(path, content=body, headers=FORM | headers).status_code == 403, path
