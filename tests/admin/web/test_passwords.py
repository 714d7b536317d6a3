"""Passwords: several users from the settings, guessing is logged and slowed down, and short ones are refused."""

import logging
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from outbox.admin.web import Basic, make_app
from outbox.admin.web.metrics_token import MetricsToken
from outbox.admin.web.password_attempts import FREE_ATTEMPTS, LONGEST_WAIT_SECONDS, PasswordAttempts
from outbox.admin.web.passwords import (
    KNOWN_BROWSER_COOKIE,
    MIN_PASSWORD_LENGTH,
    Account,
    Passwords,
    parse_users,
    passwords_from_settings,
)
from outbox.core import Outbox
from outbox.errors import SettingsError
from outbox.settings import Settings
from tests.admin.web.client import Client
from tests.conftest import Configure


@pytest.fixture
def url(sqlite_url: str) -> str:
    """One database is enough where the database is not what is tested."""
    return sqlite_url


PASSWORD = "correct horse"
ATTACKER, OTHER = ("203.0.113.7", 50_000), ("198.51.100.9", 50_000)


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def passwords(clock: Clock) -> Passwords:
    return Passwords({"ada": Account(PASSWORD)}, PasswordAttempts(clock))


@pytest.fixture
def app(box: Outbox, passwords: Passwords) -> Any:
    return make_app(box, authenticate=passwords)


def guess(client: Client, times: int, user: str = "ada") -> list[int]:
    return [client.get("/", headers=basic(user, f"guess {number}")).status_code for number in range(times)]


# Guessing


def test_after_some_wrong_passwords_even_the_right_one_has_to_wait(app: Any, clock: Clock) -> None:
    client = Client(app, client=ATTACKER)
    assert guess(client, FREE_ATTEMPTS - 1) == [401] * (FREE_ATTEMPTS - 1)
    assert guess(client, 1) == [429]
    response = client.get("/", headers=basic("ada", PASSWORD))
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    clock.now += 0.99
    assert client.get("/", headers=basic("ada", PASSWORD)).status_code == 429
    clock.now += 0.02
    assert client.get("/", headers=basic("ada", PASSWORD)).status_code == 200


def test_each_further_wrong_password_doubles_the_wait_up_to_a_limit(clock: Clock) -> None:
    attempts = PasswordAttempts(clock)
    waits = []
    for _ in range(FREE_ATTEMPTS + 12):
        attempts.count_wrong("a")
        waits.append(attempts.wait_seconds("a"))
        clock.now += waits[-1]
    assert waits[: FREE_ATTEMPTS + 2] == [0] * (FREE_ATTEMPTS - 1) + [1, 2, 4]
    assert waits[-1] == LONGEST_WAIT_SECONDS


def test_a_day_of_guessing_from_one_address_compares_few_passwords(clock: Clock) -> None:
    passwords = Passwords({"ada": Account(PASSWORD)}, attempts := PasswordAttempts(clock))
    end, compared = clock.now + 86_400, 0
    while clock.now < end:
        if attempts.wait_seconds("a") == 0:
            attempts.count_wrong("a")
            compared += 1
        clock.now += 1
    assert compared < 350
    assert passwords is not None


def test_the_count_begins_again_after_a_while(clock: Clock) -> None:
    attempts = PasswordAttempts(clock)
    for _ in range(FREE_ATTEMPTS - 1):
        attempts.count_wrong("a")
    clock.now += 901
    assert attempts.count_wrong("a") == 1


def test_a_request_without_a_password_is_no_guess(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(app, client=ATTACKER)
    assert [client.get("/").status_code for _ in range(20)] == [401] * 20
    assert "refused a password" not in caplog.text


def test_other_addresses_do_not_wait(app: Any) -> None:
    guess(Client(app, client=ATTACKER), 20)
    assert Client(app, client=OTHER).get("/", headers=basic("ada", PASSWORD)).status_code == 200


def test_all_addresses_of_a_network_of_ipv6_are_one(app: Any) -> None:
    for number in range(FREE_ATTEMPTS):
        guess(Client(app, client=(f"2001:db8::{number:x}", 1)), 1)
    assert Client(app, client=("2001:db8::ffff", 1)).get("/").status_code == 429
    assert Client(app, client=("2001:db8:0:1::1", 1)).get("/").status_code == 401


def test_an_address_can_not_be_changed_by_headers(app: Any) -> None:
    client = Client(app, client=ATTACKER)
    for number in range(FREE_ATTEMPTS):
        forged = {
            "X-Forwarded-For": f"192.0.2.{number}",
            "X-Real-IP": f"192.0.2.{number}",
            "Forwarded": "for=192.0.2.1",
        }
        client.get("/", headers=basic("ada", "wrong") | forged)
    assert client.get("/", headers=basic("ada", PASSWORD) | {"X-Forwarded-For": "192.0.2.99"}).status_code == 429


def test_a_browser_that_has_signed_in_is_not_slowed_down_by_others_with_its_address(app: Any) -> None:
    """Behind a proxy, all requests may come from its address."""
    operator, attacker = Client(app, client=ATTACKER), Client(app, client=ATTACKER)
    assert operator.get("/", headers=basic("ada", PASSWORD)).status_code == 200
    guess(attacker, 20)
    assert attacker.get("/", headers=basic("ada", PASSWORD)).status_code == 429
    assert operator.get("/", headers=basic("ada", PASSWORD)).status_code == 200


def test_the_cookie_of_a_known_browser_signs_nobody_in_and_is_slowed_down_itself(app: Any) -> None:
    client = Client(app, client=ATTACKER)
    client.get("/", headers=basic("ada", PASSWORD))
    assert client.cookies.get(KNOWN_BROWSER_COOKIE)
    assert client.get("/").status_code == 401
    guess(client, FREE_ATTEMPTS)
    assert client.get("/", headers=basic("ada", PASSWORD)).status_code == 429


def test_the_cookie_is_not_for_scripts_and_over_tls_it_is_secure(box: Outbox, passwords: Passwords) -> None:
    app = make_app(box, authenticate=passwords)
    for base_url, secure in (("https://ops.example.com", True), ("http://ops.example.com", False)):
        response = Client(app, base_url=base_url).get("/", headers=basic("ada", PASSWORD))
        cookies = response.headers.get_list("set-cookie")
        assert len(cookies) == 2
        for cookie in cookies:
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert ("Secure" in cookie) is secure


def test_wrong_cookies_of_known_browsers_count_for_the_address(app: Any) -> None:
    client = Client(app, client=ATTACKER)
    for number in range(FREE_ATTEMPTS):
        cookie = f"{KNOWN_BROWSER_COOKIE}={number:064x}"
        client.get("/", headers=basic("ada", "wrong") | {"Cookie": cookie})
    assert client.get("/", headers=basic("ada", PASSWORD)).status_code == 429


def test_the_memory_for_addresses_is_bounded(clock: Clock) -> None:
    attempts = PasswordAttempts(clock, most_addresses=100)
    for number in range(1_000):
        attempts.count_wrong(f"address {number}")
    assert len(attempts) == 100
    assert attempts.count_wrong("address 999") == 2
    assert attempts.count_wrong("address 0") == 1


def test_refusals_are_logged_with_a_clean_user_and_the_address_but_no_password(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(app, client=ATTACKER)
    client.get("/", headers=basic("eve\n2026-01-01 INFO all is well\x1b[2J" + "x" * 500, "hush-hush"))
    (record,) = [each for each in caplog.records if each.name == "outbox.admin.web.passwords"]
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "203.0.113.7" in message
    assert message.startswith("The dashboard refused a password for the user eve")
    assert message.isprintable()
    assert len(message) < 400
    assert "hush" not in message


def test_while_an_address_waits_nothing_more_is_logged(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    guess(Client(app, client=ATTACKER), 1_000)
    assert len([each for each in caplog.records if each.name == "outbox.admin.web.passwords"]) == FREE_ATTEMPTS


# Users and passwords


@pytest.mark.parametrize("password", ["x", "x" * (MIN_PASSWORD_LENGTH - 1), "localonly"])
def test_a_short_password_is_an_error_that_says_how_long_and_does_not_show_it(password: str) -> None:
    settings = Settings.load({}, dashboard_user="ada", dashboard_password=password)
    attempts: list[Callable[[], object]] = [lambda: Basic("ada", password), lambda: passwords_from_settings(settings)]
    for make in attempts:
        with pytest.raises(SettingsError, match=f"has {len(password)} characters; it needs at least 12. Make") as error:
            make()
        assert len(password) == 1 or password not in str(error.value)


def test_a_password_of_the_least_length_is_accepted() -> None:
    least = basic("ada", "x" * MIN_PASSWORD_LENGTH)
    connection = HTTPConnection({"type": "http", "headers": [(b"authorization", least["Authorization"].encode())]})
    assert Basic("ada", "x" * MIN_PASSWORD_LENGTH)(connection) == "ada"


def test_users_of_the_settings_have_their_own_passwords_and_permissions(configure: Configure) -> None:
    users = "grace:view:grace:has:colons joan:operate,payloads:a-long-password"
    box = configure(dashboard_user="ada", dashboard_password=PASSWORD, dashboard_users=users)
    client = Client(make_app(box))
    assert client.get("/", headers=basic("grace", "grace:has:colons")).status_code == 200
    assert client.get("/", headers=basic("grace", PASSWORD)).status_code == 401
    for name, password, expected in (
        ("grace", "grace:has:colons", 403),
        ("joan", "a-long-password", 200),
        ("ada", PASSWORD, 200),
    ):
        response = client.get("/confirm?action=retry&scope=all", headers=basic(name, password))
        assert response.status_code == expected, name
    response = client.get("/confirm?action=delete&scope=all", headers=basic("joan", "a-long-password"))
    assert (response.status_code, "“admin”" in response.text) == (403, True)


def test_the_permissions_of_users_include_what_they_imply() -> None:
    accounts = parse_users("a:admin:" + "x" * 12 + "\n b:payloads:" + "y" * 12)
    assert accounts["a"].permissions == {"admin", "operate", "view"}
    assert accounts["b"].permissions == {"payloads", "view"}
    assert "xxx" not in repr(accounts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ada", "Entry 1 of OUTBOX_DASHBOARD_USERS is not user:permissions:password"),
        ("ada:admin:hush-hush-hush bob:view", "Entry 2 of"),
        ("ada:admin:", "Entry 1 of"),
        (":admin:hush-hush-hush", "Entry 1 of"),
        ("ada:root:hush-hush-hush", "The permissions of 'ada' .* must be some of admin, operate, payloads, view"),
        ("ada::hush-hush-hush", "The permissions of 'ada'"),
        ("ada:metrics:hush-hush-hush", "The permissions of 'ada'"),
        ("ada:view:hush-hush-hush ada:admin:hush-hush-hush", "has 'ada' twice"),
        ("ada:view:hush", "has 4 characters"),
        ("root:view:hush-hush-hush", "'root', which is OUTBOX_DASHBOARD_USER as well"),
    ],
)
def test_an_invalid_list_of_users_is_an_error_that_shows_no_password(text: str, expected: str) -> None:
    settings = Settings.load({}, dashboard_user="root", dashboard_password=PASSWORD, dashboard_users=text)
    with pytest.raises(SettingsError, match=expected) as error:
        passwords_from_settings(settings)
    assert "hush" not in str(error.value)
    assert "hush" not in repr(settings)


# The metrics' own token


@pytest.fixture
def metered(configure: Configure) -> Any:
    box = configure(dashboard_user="ada", dashboard_password=PASSWORD, metrics_token="metrics token")
    return make_app(box)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_the_token_reads_the_metrics_and_nothing_else(metered: Any) -> None:
    client = Client(metered)
    response = client.get("/metrics", headers=bearer("metrics token"))
    assert response.status_code == 200
    assert "outbox_up 1.0" in response.text
    for path in ("/", "/events", "/audit", "/static/dashboard.css", "/metrics/", "//metrics", "/nothing", "/act"):
        assert client.get(path, headers=bearer("metrics token")).status_code == 401, path
    assert client.post("/metrics", headers=bearer("metrics token")).status_code in (401, 405)


def test_any_other_token_is_refused_logged_and_slowed_down(metered: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(metered, client=ATTACKER)
    for number in range(50):
        assert client.get("/metrics", headers=bearer(f"metrics toke{number}")).status_code == 401
    assert client.get("/metrics", headers=bearer("metrics token")).status_code == 401
    logged = [each.getMessage() for each in caplog.records if "token for the metrics" in each.getMessage()]
    assert len(logged) == FREE_ATTEMPTS
    assert "from 203.0.113.7" in logged[0]


def test_a_signed_in_user_may_read_the_metrics_too(metered: Any) -> None:
    assert Client(metered).get("/metrics", headers=basic("ada", PASSWORD)).status_code == 200


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Bearer None", "bearer x", "Basic bWV0cmljczp0b2tlbg=="])
def test_without_a_token_in_the_settings_none_is_accepted(configure: Configure, given: str) -> None:
    box = configure(dashboard_user="ada", dashboard_password=PASSWORD)
    assert Client(make_app(box)).get("/metrics", headers={"Authorization": given}).status_code == 401


def test_a_short_token_is_an_error() -> None:
    with pytest.raises(SettingsError, match="OUTBOX_METRICS_TOKEN has 5 characters; it needs at least 12"):
        MetricsToken("short")
