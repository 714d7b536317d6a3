"""Authentication: by a password, or by the application around the dashboard; and the security headers."""

from base64 import b64encode
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from outbox.admin.web import Basic, RequireScope, make_app
from outbox.admin.web.login_link import LoginLinkAuthentication, is_loopback
from outbox.admin.web.passwords import Passwords
from outbox.cli.dashboard import choose_authentication
from outbox.core import Outbox
from outbox.errors import SettingsError
from outbox.settings import Settings
from tests.admin.web.browser import Browser
from tests.admin.web.client import Client, anybody
from tests.conftest import Configure


@pytest.fixture
def url(sqlite_url: str) -> str:
    """One database is enough where the database is not what is tested."""
    return sqlite_url


PATHS = ["/", "/events", "/audit", "/metrics", "/static/dashboard.css", "/nowhere"]


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture
def guarded(configure: Configure) -> Client:
    box = configure(dashboard_user="ada", dashboard_password="hush: hüsh hush")
    return Client(make_app(box), base_url="https://ops.example.com", client=("203.0.113.7", 50000))


# A password


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_the_password(guarded: Client, path: str) -> None:
    answer = guarded.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert "hush" not in answer.text


def test_nothing_is_changed_without_the_password(guarded: Client) -> None:
    assert guarded.post("/act", content="action=delete&scope=all").status_code == 401


def test_the_password_is_accepted(guarded: Client) -> None:
    answer = guarded.get("/", headers=basic("ada", "hush: hüsh hush"))
    assert answer.status_code == 200
    assert "as ada" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        basic("ada", "hush: hüsh hus"),
        basic("ada", "hush: hüsh hushh"),
        basic("ada", ""),
        basic("Ada", "hush: hüsh hush"),
        basic("", ""),
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic YWRhOmh1c2g"},
        {"Authorization": "Bearer hush"},
        {"Authorization": "Basic " + "A" * 5000},
    ],
)
def test_any_other_password_is_refused(guarded: Client, headers: dict[str, str]) -> None:
    assert guarded.get("/", headers=headers).status_code == 401


def test_without_a_password_and_without_a_way_to_tell_who_asks_no_application_is_made(box: Outbox) -> None:
    with pytest.raises(SettingsError, match="has no password"):
        make_app(box)


@pytest.mark.parametrize(
    "given",
    [
        {"dashboard_user": "ada"},
        {"dashboard_password": "hush"},
        {"OUTBOX_DASHBOARD_USER": "ada", "OUTBOX_DASHBOARD_PASSWORD": ""},
        {"OUTBOX_DASHBOARD_USER": "", "OUTBOX_DASHBOARD_PASSWORD": "hush"},
    ],
)
def test_half_of_the_credentials_are_an_error(given: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="Only one of"):
        choose_authentication(
            "127.0.0.1", Settings.load(given) if "OUTBOX_DASHBOARD_USER" in given else Settings.load({}, **given)
        )


def test_empty_credentials_in_the_environment_are_none() -> None:
    settings = Settings.load({"OUTBOX_DASHBOARD_USER": "", "OUTBOX_DASHBOARD_PASSWORD": ""})
    assert isinstance(choose_authentication("127.0.0.1", settings), LoginLinkAuthentication)
    with pytest.raises(SettingsError, match="OUTBOX_DASHBOARD_PASSWORD"):
        choose_authentication("10.0.0.1", settings)


@pytest.mark.parametrize(
    ("user", "password"), [("  ", "hush"), ("ada", " "), ("ada", "\t\n"), ("\u00a0", "\u00a0"), ("a:da", "hush")]
)
def test_blank_credentials_in_the_environment_are_an_error_that_does_not_show_them(user: str, password: str) -> None:
    with pytest.raises(SettingsError, match=r"must be a (text that is not blank|name without a colon)") as error:
        Settings.load({"OUTBOX_DASHBOARD_USER": user, "OUTBOX_DASHBOARD_PASSWORD": password})
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("user", "password"),
    [("", ""), ("ada", ""), ("", "hush"), (" ", " "), (None, None), ("ada", None), (b"ada", b"hush"), ("a:da", "hush")],
)
def test_a_missing_environment_variable_makes_no_password(user: Any, password: Any) -> None:
    with pytest.raises(SettingsError, match="not blank") as error:
        Basic(user, password)
    assert "hush" not in str(error.value)


# Addresses


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "ops.example.com", ""])  # noqa: S104  (refused)
def test_an_address_that_others_reach_needs_a_password(host: str) -> None:
    with pytest.raises(SettingsError, match="OUTBOX_DASHBOARD_PASSWORD"):
        choose_authentication(host, Settings.load({}))
    assert isinstance(
        choose_authentication(host, Settings.load({}, dashboard_user="ada", dashboard_password="correct horse")),
        Passwords,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_an_address_of_this_machine_needs_a_login_link(host: str) -> None:
    assert isinstance(choose_authentication(host, Settings.load({})), LoginLinkAuthentication)


def test_a_password_that_is_set_is_asked_for_on_this_machine_too() -> None:
    settings = Settings.load({}, dashboard_user="a", dashboard_password="correct horse")
    assert isinstance(choose_authentication("127.0.0.1", settings), Passwords)


@pytest.mark.parametrize("host", ["127.0.0.1.example.com", "localhost.example.com", "128.0.0.1", "0", "127.1"])
def test_names_that_only_look_like_this_machine_are_not(host: str) -> None:
    assert not is_loopback(host)


# What `authenticate` returns


class Falsy:
    """As an anonymous user's object may be."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize(
    "who",
    [
        False,
        True,
        0,
        1,
        "",
        "   ",
        "\n",
        "\u00a0",
        {},
        {"name": "ada"},
        [],
        ["ada"],
        b"ada",
        object(),
        Falsy(),
        Ellipsis,
    ],
    ids=lambda who: repr(who).partition(" at 0x")[0],
)
@pytest.mark.parametrize("path", PATHS)
def test_only_a_name_is_accepted(box: Outbox, who: Any, path: str) -> None:
    async def later(connection: HTTPConnection) -> Any:
        return who

    for authenticate in (lambda connection: who, later):
        client = Client(make_app(box, authenticate=authenticate))
        assert client.get(path).status_code == 403
        assert client.post("/act", content="action=delete&scope=all").status_code == 403


def test_a_coroutine_that_returns_a_coroutine_is_refused(box: Outbox) -> None:
    async def name() -> str:
        return "ada"

    unused = name()

    async def ask(connection: HTTPConnection) -> Any:
        return unused

    assert Client(make_app(box, authenticate=ask)).get("/").status_code == 403
    unused.close()


def test_none_is_refused_without_a_word_in_the_log(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    assert Client(make_app(box, authenticate=lambda connection: None)).get("/").status_code == 403
    assert caplog.records == []


@pytest.mark.parametrize(
    ("who", "said"),
    [(False, "an object of type bool"), ({"token": "hush"}, "an object of type dict"), (" ", "a blank text")],
)
def test_what_is_no_name_is_logged_once_with_what_to_return_instead(
    box: Outbox, caplog: pytest.LogCaptureFixture, who: Any, said: str
) -> None:
    client = Client(make_app(box, authenticate=lambda connection: who))
    for _ in range(3):
        assert client.get("/").status_code == 403
    (record,) = caplog.records
    assert said in record.getMessage()
    assert "must return the user's name" in record.getMessage()
    assert "hush" not in record.getMessage()


def test_an_authenticate_that_raises_refuses_the_request(box: Outbox) -> None:
    def fail(connection: HTTPConnection) -> str:
        raise LookupError("no session store")

    with pytest.raises(LookupError):  # which a server answers with 500
        Client(make_app(box, authenticate=fail)).get("/")


# The application around it


class ByHeader(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("x-user")
        if name is None:
            return None
        return AuthCredentials(["authenticated", "staff"] if name == "grace" else ["authenticated"]), SimpleUser(name)


def around(dashboard: Any) -> Starlette:
    return Starlette(
        routes=[Mount("/ops/outbox", dashboard)],
        middleware=[Middleware(AuthenticationMiddleware, backend=ByHeader())],
    )


def test_the_application_around_it_may_know_who_is_an_operator(box: Outbox) -> None:
    client = Client(around(make_app(box, authenticate=RequireScope("staff"))))
    assert client.get("/ops/outbox/").status_code == 403
    answer = client.get("/ops/outbox/", headers={"X-User": "grace"})
    assert answer.status_code == 200
    assert "as grace" in answer.text


def test_a_customer_who_is_signed_in_is_refused(box: Outbox) -> None:
    client = Client(around(make_app(box, authenticate=RequireScope("staff"))))
    assert client.get("/ops/outbox/", headers={"X-User": "customer"}).status_code == 403


class Method:
    """As users of other frameworks have it: `is_authenticated` is a method, and every method is true."""

    display_name = "anonymous"

    def is_authenticated(self) -> bool:
        return False


def test_a_user_whose_is_authenticated_is_not_true_is_refused(box: Outbox) -> None:
    class ByMethod(AuthenticationBackend):
        async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, Any]:
            return AuthCredentials(["staff"]), Method()

    app = Starlette(
        routes=[Mount("/", make_app(box, authenticate=RequireScope("staff")))],
        middleware=[Middleware(AuthenticationMiddleware, backend=ByMethod())],
    )
    assert Client(app).get("/").status_code == 403


@pytest.mark.parametrize("scope", ["", " ", None])
def test_a_scope_that_everybody_has_is_refused(scope: Any) -> None:
    with pytest.raises(SettingsError, match="scope that operators have"):
        RequireScope(scope)


def test_without_the_application_s_middleware_every_request_is_refused(box: Outbox) -> None:
    assert Client(make_app(box, authenticate=RequireScope("staff"))).get("/").status_code == 403


def test_a_coroutine_may_tell_who_asks(box: Outbox) -> None:
    async def ask(connection: HTTPConnection) -> str | None:
        return connection.headers.get("x-user")

    client = Client(make_app(box, authenticate=ask))
    assert client.get("/").status_code == 403
    assert client.get("/", headers={"X-User": "grace"}).status_code == 200


def test_every_link_form_and_script_stays_below_where_it_is_mounted(box: Outbox) -> None:
    browser = Browser(Client(around(make_app(box, authenticate=anybody))))
    box.emit("Order", 1, "order.placed", {})
    event = str(next(iter(box.database.execute_sql("SELECT id FROM outbox_event").fetchone())))
    for path in ("/", "/events", f"/events/{event}", "/audit", f"/confirm?action=fail&scope=selected&id={event}"):
        page = browser.get(f"/ops/outbox{path}")
        found = [
            value
            for _, attributes in page.tags
            for name, value in attributes.items()
            if name in ("href", "src", "action", "hx-get") and not value.startswith("#")
        ]
        assert len(found) > 8
        assert [value for value in found if not value.startswith("/ops/outbox/")] == []


# What browsers are told


@pytest.mark.parametrize("path", [*PATHS, "/events/x", "/confirm"])
def test_every_answer_forbids_what_is_not_ours(client: Client, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
    }
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == ("no-cache" if path.startswith("/static") else "no-store")


def test_refusals_carry_the_headers_too(guarded: Client) -> None:
    assert "content-security-policy" in guarded.get("/").headers


@pytest.mark.parametrize("path", ["/static/../pages.py", "/static/%2e%2e/pages.py", "/static/nothing", "/static/%00"])
def test_only_what_is_meant_to_be_served_is_served(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_pages_have_neither_scripts_nor_styles_of_their_own(client: Client) -> None:
    for path in ("/", "/events", "/audit"):
        html = client.get(path).text
        assert "style=" not in html
        assert "<style" not in html
        assert html.count("<script") == html.count('<script src="/static/')
        assert " on" not in "".join(part.split(">")[0] for part in html.split("<"))
