"""Without a password: a link signs in one browser on this machine; requests through a proxy are refused."""

import asyncio
from typing import Any

import pytest

from outbox.admin.web import make_app
from outbox.admin.web.login_link import LoginLinkAuthentication
from outbox.core import Outbox
from tests.admin.web.browser import Browser, form_to
from tests.admin.web.client import HERE, Client
from tests.admin.web.sample import failed


@pytest.fixture
def url(sqlite_url: str) -> str:
    """One database is enough where the database is not what is tested."""
    return sqlite_url


PATHS = ["/", "/events", "/audit", "/metrics", "/confirm", "/static/dashboard.css", "/nowhere", "/login"]
COOKIE = "outbox_session_8642"


@pytest.fixture
def link() -> LoginLinkAuthentication:
    return LoginLinkAuthentication()


@pytest.fixture
def app(box: Outbox, link: LoginLinkAuthentication) -> Any:
    return make_app(box, authenticate=link)


@pytest.fixture
def stranger(app: Any) -> Client:
    return Client(app)


@pytest.fixture
def signed_in(app: Any, link: LoginLinkAuthentication) -> Client:
    client = Client(app)
    assert client.get(f"/{link.link}").status_code == 200
    return client


# The secret


@pytest.mark.parametrize("path", PATHS)
def test_a_stranger_on_this_machine_sees_nothing(stranger: Client, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 403
    assert "outbox dashboard" in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "X"])
def test_a_stranger_can_do_nothing_by_any_method(stranger: Client, method: str) -> None:
    for path in ("/", "/act", "/login"):
        assert stranger.request(method, path, content="action=delete&scope=all").status_code == 403


def test_a_stranger_can_open_no_websocket(app: Any) -> None:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {
        "type": "websocket", "path": "/login", "query_string": b"", "root_path": "", "client": ("127.0.0.1", 5),
        "headers": [(b"host", b"127.0.0.1:8642")],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert said == [{"type": "websocket.close", "code": 1008}]


def test_the_link_signs_a_browser_in_and_takes_the_token_out_of_its_address(
    stranger: Client, link: LoginLinkAuthentication
) -> None:
    answer = stranger.get(f"/{link.link}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith(f"{COOKIE}=")
    assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=strict"]
    assert stranger.get("/").status_code == 200


def test_a_browser_that_is_signed_in_may_run_actions(signed_in: Client) -> None:
    event = failed()
    browser = Browser(signed_in)
    form = form_to(browser.get(f"/confirm?action=retry&scope=selected&id={event.id}"), "/act")
    assert "1 event" in browser.submit(form).text


def test_a_link_works_once(app: Any, link: LoginLinkAuthentication) -> None:
    used = link.link
    assert Client(app).get(f"/{used}").status_code == 200
    second = Client(app)
    answer = second.get(f"/{used}")
    assert answer.status_code == 403
    assert "prints a new one" in answer.text
    assert second.get("/").status_code == 403
    assert second.get(f"/{link.link}").status_code == 200


def test_the_browser_that_has_used_a_link_may_open_it_again(signed_in: Client, link: LoginLinkAuthentication) -> None:
    unused = link.link
    assert signed_in.get("/login?token=an-old-one").url.path == "/"
    assert signed_in.get(f"/{unused}").url.path == "/"
    assert link.link == unused


def test_each_link_that_was_used_is_replaced_in_the_terminal(app: Any, link: LoginLinkAuthentication) -> None:
    shown: list[str] = []
    link.announce(shown.append)
    assert shown == [link.link]
    Client(app).get(f"/{shown[0]}")
    Client(app).get("/login?token=wrong")
    assert shown[1:] == [link.link]
    assert shown[0] != shown[1]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "POST"])
def test_a_head_request_does_not_use_up_a_link(stranger: Client, link: LoginLinkAuthentication, method: str) -> None:
    unused = link.link
    answer = stranger.request(method, f"/{unused}")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert link.link == unused


@pytest.mark.parametrize("query", ["", "?", "?token=", "?token=%00", "?token=%ff", "?tokens=x", "?token=" + "a" * 43])
def test_a_wrong_token_opens_nothing(stranger: Client, link: LoginLinkAuthentication, query: str) -> None:
    unused = link.link
    answer = stranger.get(f"/login{query}")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert link.link == unused


@pytest.mark.parametrize("part", [slice(0, -1), slice(1, None), slice(0, 0)])
def test_a_part_of_the_token_opens_nothing(stranger: Client, link: LoginLinkAuthentication, part: slice) -> None:
    token = link.link.removeprefix("login?token=")
    assert stranger.get(f"/login?token={token[part]}").status_code == 403
    assert stranger.get(f"/login?token={token}x").status_code == 403


@pytest.mark.parametrize("value", ["", "x", "a" * 43, "é"])
def test_a_cookie_that_was_not_given_out_opens_nothing(stranger: Client, value: str) -> None:
    assert stranger.get("/", headers={"Cookie": f"{COOKIE}={value}".encode()}).status_code == 403


def test_neither_is_the_token_a_cookie_nor_the_cookie_a_token(
    stranger: Client, signed_in: Client, link: LoginLinkAuthentication
) -> None:
    token = link.link.removeprefix("login?token=")
    assert stranger.get("/", headers={"Cookie": f"{COOKIE}={token}"}).status_code == 403
    assert stranger.get(f"/login?token={signed_in.cookies[COOKIE]}").status_code == 403


def test_a_cookie_that_a_stranger_planted_is_not_the_one_that_the_browser_gets(
    stranger: Client, link: LoginLinkAuthentication
) -> None:
    planted = "a" * 43
    answer = stranger.get(f"/{link.link}", headers={"Cookie": f"{COOKIE}={planted}"}, follow_redirects=False)
    assert planted not in answer.headers["set-cookie"]
    assert Client(make_app(authenticate=link)).get("/", headers={"Cookie": f"{COOKIE}={planted}"}).status_code == 403


def test_another_process_s_cookie_opens_nothing(box: Outbox, signed_in: Client) -> None:
    restarted = make_app(box, authenticate=LoginLinkAuthentication())
    cookie = f"{COOKIE}={signed_in.cookies[COOKIE]}"
    assert Client(restarted).get("/", headers={"Cookie": cookie}).status_code == 403


def test_two_dashboards_on_one_host_do_not_sign_each_other_out(box: Outbox) -> None:
    links = [LoginLinkAuthentication(), LoginLinkAuthentication()]
    places = ["http://127.0.0.1:8642", "http://127.0.0.1:9000"]
    first, second = (
        Client(make_app(box, authenticate=link), base_url=place) for link, place in zip(links, places, strict=True)
    )
    first.get(f"/{links[0].link}")
    second.cookies = first.cookies  # browsers send a host's cookies to all of its ports
    second.get(f"/{links[1].link}")
    first.cookies = second.cookies
    assert [first.get("/").status_code, second.get("/").status_code] == [200, 200]


def test_no_page_and_no_header_shows_the_token_or_the_session(signed_in: Client, link: LoginLinkAuthentication) -> None:
    secrets = [signed_in.cookies[COOKIE], link.link.removeprefix("login?token=")]
    for path in PATHS:
        answer = signed_in.get(path)
        assert [word for word in secrets if word in answer.text or word in str(answer.headers)] == []


# Through a proxy, from elsewhere, under another name


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded",
        "Via",
        "X-Real-IP",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Forwarded-Port",
        "X-Forwarded-Prefix",
        "X-Forwarded-Server",
        "x-forwarded",
        "VIA",
    ],
)
@pytest.mark.parametrize("value", ["127.0.0.1", ""])
def test_what_came_through_a_proxy_is_refused_even_with_the_secret(
    app: Any, signed_in: Client, link: LoginLinkAuthentication, header: str, value: str
) -> None:
    unused = link.link
    for answer in (
        signed_in.get("/", headers={header: value}),
        signed_in.get("/metrics", headers={header: value}),
        Client(app).get(f"/{unused}", headers={header: value}),
    ):
        assert answer.status_code == 403
        assert "came through a proxy" in answer.text
        assert "OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD" in answer.text
        assert "set-cookie" not in answer.headers
    assert link.link == unused


@pytest.mark.parametrize("client", [None, ("203.0.113.7", 50000), ("", 0), ("testclient", 1)])
def test_a_unix_socket_and_another_machine_are_refused_with_the_secret_too(
    app: Any, signed_in: Client, link: LoginLinkAuthentication, client: Any
) -> None:
    elsewhere = Client(app, client=client)
    unused = link.link
    assert elsewhere.get(f"/{unused}").status_code == 403
    assert link.link == unused
    elsewhere.cookies = signed_in.cookies
    answer = elsewhere.get("/")
    assert answer.status_code == 403
    assert "from this machine only" in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example.com", "evil.example.com:8642", "127.0.0.1.evil.example.com", "[", "", "localhost@evil.com:1"]
)
def test_a_foreign_name_that_resolves_here_is_refused_with_the_secret_too(
    app: Any, signed_in: Client, link: LoginLinkAuthentication, host: str
) -> None:
    unused = link.link
    for answer in (
        signed_in.get("/", headers={"Host": host, "Cookie": every_port(signed_in)}),
        Client(app).get(f"/{unused}", headers={"Host": host}),
    ):
        assert answer.status_code == 403
        assert "127.0.0.1" in answer.text
    assert link.link == unused


@pytest.mark.parametrize("host", ["127.0.0.1:8642", "localhost", "LOCALHOST:1", "[::1]:8642"])
def test_this_machine_s_own_names_are_not(signed_in: Client, host: str) -> None:
    headers = {"Host": host, "Cookie": every_port(signed_in)}
    assert signed_in.get("/", headers=headers).status_code == 200


def every_port(client: Client) -> str:
    session = client.cookies[COOKIE]
    return "; ".join(f"outbox_session_{port}={session}" for port in (1, 80, 8642))


def test_the_address_of_the_tests_is_the_one_that_the_cookie_is_named_after() -> None:
    assert HERE.endswith(":8642")
