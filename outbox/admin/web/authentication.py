"""Authenticate every request to the dashboard: find the operator's name and permissions, or refuse the request.

`make_app` puts the `Authentication` middleware around all pages. The middleware calls an `Authenticate` function:
`Passwords` (passwords.py), `RequireScope` (the application's own users), `LoginLinkAuthentication` (login_link.py), or
a function of the application. The name that it returns is shown on the pages and stored in the audit log. Then an
`Authorize` function returns what the user may do (permissions.py).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbox.admin.web.metrics_token import USER as METRICS_USER
from outbox.admin.web.metrics_token import MetricsToken
from outbox.admin.web.passwords import is_name
from outbox.admin.web.permissions import ALL, METRICS, PERMISSIONS_KEY, USER_KEY, VIEW, Authorize, check_permissions
from outbox.errors import SettingsError

logger = logging.getLogger(__name__)

# A function that returns the user's name, or None to refuse the request. It may be a coroutine function. If it has a
# method `refuse(connection) -> Response`, refused requests get that response. If it has a method `remember(connection,
# user, response)`, that may set cookies for an accepted request.
Authenticate = Callable[[HTTPConnection], str | Awaitable[str | None] | None]


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


def everything(connection: HTTPConnection, user: str) -> frozenset[str]:
    """Return all permissions: what a user may do if the application does not say."""
    return ALL


class Authentication:
    """ASGI middleware that accepts only requests for which `authenticate` returns a user's name.

    The user also needs the permission to view something. A request with the metrics' token gets the metrics only.
    """

    def __init__(
        self, app: ASGIApp, authenticate: Authenticate, authorize: Authorize, metrics_token: MetricsToken
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self._authorize = authorize
        self._metrics_token = metrics_token
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        if scope["type"] == "http" and self._metrics_token.accepts(connection):
            scope[USER_KEY], scope[PERMISSIONS_KEY] = METRICS_USER, frozenset({METRICS})
            await self._app(scope, receive, send)
            return
        who: object = self._authenticate(connection)
        if inspect.isawaitable(who):
            who = await who
        if not isinstance(who, str) or not is_name(who):
            self._log_wrong_result(who)
            await self._refuse(scope, receive, send)
            return
        permissions = await self._permissions_of(connection, who)
        if VIEW not in permissions:
            await _refuse_without_permission(scope, receive, send)
            return
        if not scope.get("query_string", b"").isascii():
            # Browsers percent-encode it. For bytes that are not UTF-8, Starlette raises an error when building the URL.
            await PlainTextResponse("The query string is not percent-encoded.", 400)(scope, receive, send)
            return
        scope[USER_KEY], scope[PERMISSIONS_KEY] = who, permissions
        await self._app(scope, receive, self._remembering(connection, who, send))

    async def _permissions_of(self, connection: HTTPConnection, who: str) -> frozenset[str]:
        """Return the user's permissions; none if `authorize` returns anything but a collection of their names."""
        given: object = self._authorize(connection, who)
        if inspect.isawaitable(given):
            given = await given
        if given is None:
            return frozenset()
        permissions = check_permissions(given)
        if permissions is None:
            self._log_wrong_permissions(given)
            return frozenset()
        return permissions

    def _log_wrong_permissions(self, given: object) -> None:
        """Log that `authorize` returned an invalid value, but only once."""
        if "authorize" not in self._logged:
            self._logged.add("authorize")
            logger.error(
                "The dashboard refused a request: authorize returned %.200r. It must return a collection of %s. "
                "Further requests with an invalid result are refused without a log line.",
                given,
                ", ".join(sorted(ALL)),
            )

    def _remembering(self, connection: HTTPConnection, who: str, send: Send) -> Send:
        """Return `send` with the cookies that `authenticate` sets for an accepted request."""
        remember = getattr(self._authenticate, "remember", None)
        if remember is None:
            return send
        response = Response()
        remember(connection, who, response)
        cookies = response.headers.getlist("set-cookie")

        async def send_with_cookies(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for cookie in cookies:
                    headers.append("set-cookie", cookie)
            await send(message)

        return send_with_cookies

    def _log_wrong_result(self, who: object) -> None:
        """Log that `authenticate` returned an invalid value, but only once for each type.

        Otherwise any client could fill the log. The value is not logged.
        """
        if who is None or type(who).__name__ in self._logged:
            return
        self._logged.add(type(who).__name__)
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


async def _refuse_without_permission(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = f"You are signed in, but may not see this: that needs the permission “{VIEW}”."
    await PlainTextResponse(text, 403)(scope, receive, send)
