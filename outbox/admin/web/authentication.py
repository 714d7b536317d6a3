"""Authenticate every request to the dashboard: find the name of the operator, or refuse the request.

`make_app` puts the `Authentication` middleware around all pages. The middleware calls an `Authenticate` function:
`Basic` (a password), `RequireScope` (the application's own users), `LoginLinkAuthentication` (login_link.py), or a
function of the application. The name that it returns is shown on the pages and stored in the audit log.
"""

from __future__ import annotations

import binascii
import inspect
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable
from hmac import compare_digest

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outbox.errors import SettingsError
from outbox.settings import Settings

logger = logging.getLogger(__name__)

# A function that returns the user's name, or None to refuse the request. It may be a coroutine function. If it has a
# method `refuse(connection) -> Response`, refused requests get that response.
Authenticate = Callable[[HTTPConnection], str | Awaitable[str | None] | None]

# The key of the ASGI scope that holds the user's name.
USER_KEY = "outbox.who"


class Basic:
    """HTTP Basic authentication with one user and one password."""

    challenge = 'Basic realm="outbox", charset="UTF-8"'

    def __init__(self, user: str, password: str) -> None:
        # If an environment variable is missing, its value is None or "". Neither may become a valid password.
        if not (is_name(user) and is_name(password)) or ":" in user:
            raise SettingsError(
                "Basic(user, password) needs two texts that are not blank, and a user without a colon. If they come "
                "from the environment, a variable may be missing."
            )
        self._user = user
        self._expected = f"{user}:{password}".encode()

    def __call__(self, connection: HTTPConnection) -> str | None:
        """Return the user's name if the request has the user and the password, otherwise None."""
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            decoded = b64decode(given.strip(), validate=True)
        except (binascii.Error, ValueError):
            return None
        return self._user if compare_digest(decoded, self._expected) else None

    def refuse(self, connection: HTTPConnection) -> Response:
        """Return the response to a refused request: it makes the browser ask for the user and the password."""
        text = "A user and a password are needed: OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD."
        return PlainTextResponse(text, 401, {"WWW-Authenticate": self.challenge})


class RequireScope:
    """Accept the user that Starlette's AuthenticationMiddleware has authenticated, if the credentials have a scope.

    Without the scope, every customer who is signed in to the application around the dashboard would be accepted.
    """

    def __init__(self, scope: str) -> None:
        if not is_name(scope):
            raise SettingsError('RequireScope needs the name of a scope that operators have: RequireScope("staff").')
        self._scope = scope

    def __call__(self, connection: HTTPConnection) -> str | None:
        """Return the user's name if the user is authenticated and has the scope, otherwise None."""
        user, credentials = connection.scope.get("user"), connection.scope.get("auth")
        if user is None or credentials is None or user.is_authenticated is not True:
            return None
        return user.display_name if self._scope in credentials.scopes else None


def basic_from_settings(settings: Settings) -> Basic | None:
    """Return Basic authentication with the user and the password from the settings, or None if neither is set."""
    user, password = settings.dashboard_user, settings.dashboard_password
    if (user is None) != (password is None):
        raise SettingsError(
            "Only one of OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD is set: set both, or neither."
        )
    return None if user is None or password is None else Basic(user, password)


def is_name(given: object) -> bool:
    """Return whether the value is a str that is not blank. Nothing else, not even True, is a user's name."""
    return isinstance(given, str) and given.strip() != ""


class Authentication:
    """ASGI middleware that accepts only requests for which `authenticate` returns a user's name."""

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
            self._log_wrong_result(who)
            await self._refuse(scope, receive, send)
            return
        if not scope.get("query_string", b"").isascii():
            # Browsers percent-encode it. For bytes that are not UTF-8, Starlette raises an error when building the URL.
            await PlainTextResponse("The query string is not percent-encoded.", 400)(scope, receive, send)
            return
        scope[USER_KEY] = who
        await self._app(scope, receive, send)

    def _log_wrong_result(self, who: object) -> None:
        """Log that `authenticate` returned an invalid value, but only once for each type.

        Otherwise any client could fill the log. The value is not logged.
        """
        if who is None or type(who) in self._logged:
            return
        self._logged.add(type(who))
        logger.error(
            "The dashboard refused a request: authenticate returned %s. It must return the user's name, a text that is "
            "not blank, or None to refuse. Further requests with such a result are refused without a log line.",
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
