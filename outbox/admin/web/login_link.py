"""Sign a browser in by a link with a one-time token, where no password is set.

That a connection comes from this machine, and asks for one of its names, proves nothing: nginx with
`proxy_pass http://127.0.0.1:8642;` passes on requests from everywhere, from 127.0.0.1 and with `Host: 127.0.0.1`. So
the browser must show a secret: `outbox dashboard` prints a link with a token, which is exchanged for a cookie, once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outbox.admin.web.authentication import host_of, is_loopback

PATH = "/login"
FIELD = "token"

# The address of these responses may hold the token: no other page gets to know it.
_NO_REFERRER = {"Referrer-Policy": "no-referrer"}
_PASSWORD = "Set OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD, and start it again."  # noqa: S105  (advice)
_NOT_LOCAL = (
    "Without a password the dashboard answers on this machine only, at http://127.0.0.1 or http://localhost. "
    f"To use it from elsewhere: {_PASSWORD}"
)
_PROXY = f"This request came through a proxy. Without a password the dashboard refuses those. {_PASSWORD}"
_NO_SESSION = (
    "Open the link that “outbox dashboard” has printed. Each link signs in one browser; when it was used, "
    f"a new one is printed in the same place. To use it with a password, or behind a proxy: {_PASSWORD}"
)
# Nothing in it comes from the request. The link is for browsers that open the login link from a page of another site:
# they keep the cookie, and send it only with what is opened from here.
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<title>Sign in</title><h1>You are not signed in</h1><p>{text}</p><p><a href="/">Try again</a></p></html>'
)


class LoginLink:
    """Lets in browsers on this machine that have the session's cookie. For one process, and one `make_app`."""

    def __init__(self, name: str = "dashboard") -> None:
        self._name = name
        self._session = secrets.token_urlsafe(32)
        self._token = secrets.token_urlsafe(32)
        self._show: Callable[[str], None] | None = None

    def announce(self, show: Callable[[str], None]) -> None:
        """Call `show` with the link, relative to the dashboard's address, and again with each that replaces it."""
        self._show = show
        show(self.link)

    @property
    def link(self) -> str:
        return f"{PATH[1:]}?{FIELD}={self._token}"

    def __call__(self, connection: HTTPConnection) -> str | None:
        if _refusal(connection) is not None:
            return None
        given = connection.cookies.get(cookie_name(connection), "")
        return self._name if _is_same(given, self._session) else None

    def refuse(self, connection: HTTPConnection) -> Response:
        text = _refusal(connection)
        return HTMLResponse(_PAGE.format(text=_NO_SESSION if text is None else text), 403, _NO_REFERRER)

    def sign_in(self, connection: HTTPConnection) -> Response:
        """Exchange the token for the session's cookie; the redirect takes the token out of the browser's address."""
        if self(connection) is not None:  # opened twice: the browser has the cookie, and the new link stays unused
            return _to_overview()
        given = QueryParams(connection.scope.get("query_string", b"")).get(FIELD, "")
        if _refusal(connection) is not None or not _is_same(given, self._token):
            return self.refuse(connection)
        self._token = secrets.token_urlsafe(32)
        response = _to_overview()
        response.set_cookie(cookie_name(connection), self._session, path="/", httponly=True, samesite="strict")
        if self._show is not None:
            self._show(self.link)
        return response


class Login:
    """Answers requests for the login link, which come before anybody is signed in."""

    def __init__(self, app: ASGIApp, link: LoginLink) -> None:
        self._app = app
        self._link = link

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only GET: what previews a link with HEAD must not use it up.
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == PATH:
            await self._link.sign_in(HTTPConnection(scope))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def cookie_name(connection: HTTPConnection) -> str:
    """Return a name with the port that the browser sees: browsers send a host's cookies to all of its ports."""
    try:
        port = urlsplit(f"//{connection.headers.get('host', '')}").port
    except ValueError:
        port = None
    return f"outbox_session_{80 if port is None else port}"


def _refusal(connection: HTTPConnection) -> str | None:
    """Return why this request is refused whatever secret it has, or None."""
    client = connection.client
    # A Unix socket has no client: what connects to it is a proxy. The Host is looked at because a page of another site
    # can make its own name resolve to 127.0.0.1.
    if client is None or not is_loopback(client.host) or not is_loopback(host_of(connection)):
        return _NOT_LOCAL
    if any(map(_is_added_by_proxy, connection.headers.keys())):
        return _PROXY
    return None


def _is_added_by_proxy(header: str) -> bool:
    return header in ("forwarded", "via", "x-real-ip") or header.startswith("x-forwarded")


def _is_same(given: str, expected: str) -> bool:
    return compare_digest(given.encode(errors="replace"), expected.encode())


def _to_overview() -> Response:
    return RedirectResponse("/", 303, _NO_REFERRER)
