"""Authenticate the dashboard's users by passwords (HTTP Basic), from the settings or from the application."""

from __future__ import annotations

import binascii
import hashlib
import hmac
import logging
import math
import secrets
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response

from outbox.admin.web.password_attempts import PasswordAttempts, address_of
from outbox.admin.web.permissions import ALL, check_permissions
from outbox.errors import SettingsError
from outbox.settings import Settings
from outbox.text import printable, shorten

logger = logging.getLogger(__name__)

MIN_PASSWORD_LENGTH = 12
HOW_TO_MAKE_ONE = "Make a long one: python3 -c 'import secrets; print(secrets.token_urlsafe())'."
KNOWN_BROWSER_COOKIE = "outbox_known_browser"
LOGGED_LENGTH = 100


@dataclass(frozen=True, slots=True)
class Account:
    """A user's password, and what the user may do."""

    password: str = field(repr=False)
    permissions: frozenset[str] = ALL


class Passwords:
    """HTTP Basic authentication with a password and permissions for each user.

    Wrong passwords are logged, and make their address wait. Behind a proxy all requests may have one address: so a
    browser that has signed in before gets a cookie, and is not slowed down by the wrong passwords of others.
    """

    challenge = 'Basic realm="outbox", charset="UTF-8"'

    def __init__(self, accounts: Mapping[str, Account], attempts: PasswordAttempts | None = None) -> None:
        for user, account in accounts.items():
            _check_account(user, account)
        self._accounts = dict(accounts)
        self._attempts = PasswordAttempts() if attempts is None else attempts
        self._key = secrets.token_bytes(32)

    def __call__(self, connection: HTTPConnection) -> str | None:
        """Return the user's name if the request has the user and the password, otherwise None."""
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        user, password = _decode(given)
        source = self._source(connection, user)
        if self._attempts.wait_seconds(source) > 0:
            return None
        account = self._accounts.get(user)
        expected = "" if account is None else account.password
        if compare_digest(password.encode(), expected.encode()) and account is not None:
            return user
        self._count_wrong(connection, source, user)
        return None

    def authorize(self, connection: HTTPConnection, user: str) -> frozenset[str]:
        """Return the user's permissions."""
        return self._accounts[user].permissions

    def refuse(self, connection: HTTPConnection) -> Response:
        """Return the response to a refused request: it makes the browser ask for the user and the password."""
        user, _ = _decode(connection.headers.get("authorization", "").partition(" ")[2])
        seconds = math.ceil(self._attempts.wait_seconds(self._source(connection, user)))
        if seconds > 0:
            text = f"Too many wrong passwords came from this address. Try again in {seconds} s."
            return PlainTextResponse(text, 429, {"Retry-After": str(seconds)})
        text = "A user and a password are needed: OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD."
        return PlainTextResponse(text, 401, {"WWW-Authenticate": self.challenge})

    def remember(self, connection: HTTPConnection, user: str, response: Response) -> None:
        """Set the cookie of a known browser, unless the browser has it."""
        if not self._is_known(connection, user):
            response.set_cookie(
                KNOWN_BROWSER_COOKIE,
                self._mark(user),
                path=str(connection.scope.get("root_path", "")) or "/",
                secure=connection.url.scheme == "https",
                httponly=True,
                samesite="strict",
            )

    def _source(self, connection: HTTPConnection, user: str) -> str:
        """Return where a password comes from: from a browser that has signed in as this user before, or an address."""
        return f"a known browser of {user}" if self._is_known(connection, user) else address_of(connection)

    def _is_known(self, connection: HTTPConnection, user: str) -> bool:
        given = connection.cookies.get(KNOWN_BROWSER_COOKIE, "")
        return user in self._accounts and compare_digest(given.encode(errors="replace"), self._mark(user).encode())

    def _mark(self, user: str) -> str:
        return hmac.new(self._key, user.encode(), hashlib.sha256).hexdigest()

    def _count_wrong(self, connection: HTTPConnection, source: str, user: str) -> None:
        number = self._attempts.count_wrong(source)
        logger.warning(
            "The dashboard refused a password for the user %s from %s: %d in a row. The next is accepted in %.0f s.",
            shorten(printable(user), LOGGED_LENGTH) or "(unreadable)",
            address_of(connection),
            number,
            self._attempts.wait_seconds(source),
        )


class Basic(Passwords):
    """HTTP Basic authentication with one user, who has all permissions."""

    def __init__(self, user: str, password: str) -> None:
        # If an environment variable is missing, its value is None or "". Neither may become a valid password.
        if not (is_name(user) and is_name(password)) or ":" in user:
            raise SettingsError(
                "Basic(user, password) needs two texts that are not blank, and a user without a colon. If they come "
                "from the environment, a variable may be missing."
            )
        super().__init__({user: Account(password)})


def passwords_from_settings(settings: Settings) -> Passwords | None:
    """Return authentication with the users and the passwords from the settings, or None if there are none."""
    user, password = settings.dashboard_user, settings.dashboard_password
    if (user is None) != (password is None):
        raise SettingsError(
            "Only one of OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD is set: set both, or neither."
        )
    accounts = parse_users("" if settings.dashboard_users is None else settings.dashboard_users)
    if user is not None and password is not None:
        if user in accounts:
            raise SettingsError(f"OUTBOX_DASHBOARD_USERS has {user!r}, which is OUTBOX_DASHBOARD_USER as well.")
        accounts[user] = Account(password)
    return Passwords(accounts) if accounts else None


def parse_users(text: str) -> dict[str, Account]:
    """Parse OUTBOX_DASHBOARD_USERS: `ada:admin,payloads:PASSWORD grace:view:PASSWORD`."""
    accounts: dict[str, Account] = {}
    for number, entry in enumerate(text.split(), start=1):
        # The entry itself is not quoted, because it contains a password.
        user, first_colon, rest = entry.partition(":")
        permissions, second_colon, password = rest.partition(":")
        if not (user and first_colon and second_colon and password):
            raise SettingsError(
                f"Entry {number} of OUTBOX_DASHBOARD_USERS is not user:permissions:password. Write, for example, "
                "ada:admin,payloads:PASSWORD grace:view:PASSWORD, without white space inside an entry."
            )
        if user in accounts:
            raise SettingsError(f"OUTBOX_DASHBOARD_USERS has {user!r} twice.")
        granted = check_permissions(permissions.split(","))
        if granted is None:
            raise SettingsError(
                f"The permissions of {user!r} in OUTBOX_DASHBOARD_USERS must be some of {', '.join(sorted(ALL))}, "
                "separated by commas."
            )
        accounts[user] = Account(password, granted)
    return accounts


def is_name(given: object) -> bool:
    """Return whether the value is a str that is not blank. Nothing else, not even True, is a user's name."""
    return isinstance(given, str) and given.strip() != ""


def check_secret_length(secret: str, of_what: str) -> None:
    """Raise SettingsError if a password or a token is so short that it can be guessed."""
    if len(secret) < MIN_PASSWORD_LENGTH:
        raise SettingsError(
            f"{of_what} has {len(secret)} characters; it needs at least {MIN_PASSWORD_LENGTH}. {HOW_TO_MAKE_ONE}"
        )


def _check_account(user: str, account: Account) -> None:
    if not (is_name(user) and is_name(account.password)) or ":" in user:
        raise SettingsError("A user of the dashboard needs a name without a colon, and a password that is not blank.")
    check_secret_length(account.password, f"The password of the dashboard's user {user!r}")


def _decode(given: str) -> tuple[str, str]:
    """Return the user and the password of an Authorization header; two empty texts if it can't be read."""
    try:
        user, _, password = b64decode(given.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return user, password
