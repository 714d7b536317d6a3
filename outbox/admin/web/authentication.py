"""Who may come in, and under which name what they do is written down."""

from __future__ import annotations

import binascii
import inspect
import ipaddress
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outbox.errors import SettingsError

logger = logging.getLogger("outbox")

# Returns the user's name, or None: they may not. May be a coroutine function. If it has a method
# `refuse(connection) -> Response`, that is what those who may not get to see.
Authenticate = Callable[[HTTPConnection], str | Awaitable[str | None] | None]

WHO = "outbox.who"


class Basic:
    """One user with a password, asked for by the browser."""

    challenge = 'Basic realm="outbox", charset="UTF-8"'

    def __init__(self, user: str, password: str) -> None:
        # What a forgotten variable leaves, None or an empty text, must not become a password that works.
        if not (is_name(user) and is_name(password)) or ":" in user:
            raise SettingsError(
                "Basic(user, password) needs two texts that are not blank, and a user without a colon. If they come "
                "from the environment, a variable may be missing."
            )
        self._user = user
        self._expected = f"{user}:{password}".encode()

    def __call__(self, connection: HTTPConnection) -> str | None:
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            found = b64decode(given.strip(), validate=True)
        except (binascii.Error, ValueError):
            return None
        return self._user if compare_digest(found, self._expected) else None

    def refuse(self, connection: HTTPConnection) -> Response:
        text = "A user and a password are needed: OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD."
        return PlainTextResponse(text, 401, {"WWW-Authenticate": self.challenge})


class RequireScope:
    """The user that Starlette's AuthenticationMiddleware has authenticated, if their credentials have this scope.

    To be authenticated is not enough: so is every customer of the application around the dashboard.
    """

    def __init__(self, scope: str) -> None:
        if not is_name(scope):
            raise SettingsError('RequireScope needs the name of a scope that operators have: RequireScope("staff").')
        self._scope = scope

    def __call__(self, connection: HTTPConnection) -> str | None:
        user, credentials = connection.scope.get("user"), connection.scope.get("auth")
        if user is None or credentials is None or user.is_authenticated is not True:
            return None
        return user.display_name if self._scope in credentials.scopes else None


def is_name(given: object) -> bool:
    """Return whether this is a text with something in it: all else, True included, names nobody."""
    return isinstance(given, str) and given.strip() != ""


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(connection: HTTPConnection) -> str:
    try:
        return urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


class Authentication:
    """Passes on only requests for which `authenticate` returns a user's name."""

    def __init__(self, app: ASGIApp, authenticate: Authenticate) -> None:
        self._app = app
        self._authenticate = authenticate
        self._logged: set[type] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        who: object = self._authenticate(HTTPConnection(scope))
        if inspect.isawaitable(who):
            who = await who
        if not is_name(who):
            self._log_misuse(who)
            await self._refuse(scope, receive, send)
            return
        if not scope.get("query_string", b"").isascii():
            # Browsers encode it; Starlette fails on what is no UTF-8, wherever it needs the whole address.
            await PlainTextResponse("The address has a query that is not percent-encoded.", 400)(scope, receive, send)
            return
        scope[WHO] = who
        await self._app(scope, receive, send)

    def _log_misuse(self, who: object) -> None:
        """Log each type once, and no value: strangers cause this as often as they like."""
        if who is None or type(who) in self._logged:
            return
        self._logged.add(type(who))
        logger.error(
            "The dashboard refused a request: authenticate returned %s. It must return the user's name, a text that is "
            "not blank, or None to refuse. Later requests for which it returns that are refused without a log line.",
            "a blank text" if isinstance(who, str) else f"an object of type {type(who).__name__}",
        )

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        refuse = getattr(self._authenticate, "refuse", _refuse)
        await refuse(HTTPConnection(scope))(scope, receive, send)


def _refuse(connection: HTTPConnection) -> Response:
    return PlainTextResponse("You are not allowed to see this.", 403)
