"""Who may come in, and under which name what they do is written down."""

from __future__ import annotations

import binascii
import inspect
import ipaddress
from base64 import b64decode
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Answers who is asking; None: they may not. May be a coroutine function.
Authenticate = Callable[[HTTPConnection], str | Awaitable[str | None] | None]

WHO = "outbox.who"


class Basic:
    """One user with a password, asked for by the browser."""

    challenge = 'Basic realm="outbox", charset="UTF-8"'
    refusal = "A user and a password are needed: OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD."

    def __init__(self, user: str, password: str) -> None:
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


class Local:
    """Whoever is at this machine: the connection comes from it, and was meant for it.

    The second matters, too: a page in a browser here can make a name of its own resolve to 127.0.0.1.
    """

    challenge = None
    refusal = (
        "Without a password the dashboard answers on this machine only, at http://127.0.0.1 or http://localhost. "
        "For others set OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD."
    )

    def __init__(self, name: str = "dashboard") -> None:
        self._name = name

    def __call__(self, connection: HTTPConnection) -> str | None:
        client = connection.client
        from_here = client is None or is_loopback(client.host)
        return self._name if from_here and is_loopback(_host_of(connection)) else None


def scope_user(connection: HTTPConnection) -> str | None:
    """Whom Starlette's AuthenticationMiddleware, in the application around this one, has let in."""
    user = connection.scope.get("user")
    return str(user.display_name) if user is not None and user.is_authenticated else None


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(connection: HTTPConnection) -> str:
    try:
        return urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


class Access:
    """Lets nobody through whom `authenticate` doesn't know."""

    def __init__(self, app: ASGIApp, authenticate: Authenticate) -> None:
        self._app = app
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        who = self._authenticate(HTTPConnection(scope))
        if inspect.isawaitable(who):
            who = await who
        if who is None:
            await self._refuse(scope, receive, send)
            return
        if not scope.get("query_string", b"").isascii():
            # Browsers encode it; Starlette fails on what is no UTF-8, wherever it needs the whole address.
            await PlainTextResponse("The address has a query that is not percent-encoded.", 400)(scope, receive, send)
            return
        scope[WHO] = who
        await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        challenge = getattr(self._authenticate, "challenge", None)
        text = getattr(self._authenticate, "refusal", "You are not allowed to see this.")
        headers = {} if challenge is None else {"WWW-Authenticate": challenge}
        response = PlainTextResponse(text, 403 if challenge is None else 401, headers)
        await response(scope, receive, send)
