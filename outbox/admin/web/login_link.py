"""Sign a browser in with a link that contains a one-time token, if no password is set.

`outbox dashboard` uses this on a loopback address. The client address and the Host header of a request don't prove that
it comes from this machine: nginx with `proxy_pass http://127.0.0.1:8642;` forwards requests of any client, and they
arrive from 127.0.0.1 with `Host: 127.0.0.1`. So the browser needs a secret. `outbox dashboard` prints a link with a
token, and the first browser that opens the link gets a cookie that authenticates its later requests.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Callable
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outbox.admin.web.allowed_hosts import host_name
from outbox.admin.web.password_attempts import PasswordAttempts, address_of

logger = logging.getLogger(__name__)

LOGIN_PATH = "/login"
QUERY_PARAMETER = "token"

# The URL of these responses may contain the token: the browser must not send it to other sites.
_NO_REFERRER = {"Referrer-Policy": "no-referrer"}
_ADVICE = "Set OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD, and restart the dashboard."
_NOT_LOCAL = (
    "Without a password, the dashboard accepts requests from this machine only, at http://127.0.0.1 or "
    "http://localhost. "
    f"To use it from elsewhere: {_ADVICE}"
)
_PROXY = f"This request came through a proxy. Without a password the dashboard refuses such requests. {_ADVICE}"
_NO_SESSION = (
    "Open the link that “outbox dashboard” has printed. Each link signs in one browser. After a link was used, “outbox "
    f"dashboard” prints a new one. To use a password, or a proxy: {_ADVICE}"
)
# No part of this page comes from the request. "Try again" is for a browser that opened the login link from a page of
# another site. The browser has the cookie, but because of SameSite=Strict it does not send it with a request that comes
# from another site. It sends it when the operator follows the link on this page.
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<title>Sign in</title><h1>You are not signed in</h1><p>{text}</p><p><a href="/">Try again</a></p></html>'
)


class LoginLinkAuthentication:
    """Accepts browsers on this machine that have the session's cookie. Each object has its own session and token."""

    def __init__(self, name: str = "dashboard") -> None:
        self._name = name
        self._session = secrets.token_urlsafe(32)
        self._token = secrets.token_urlsafe(32)
        self._show: Callable[[str], None] | None = None
        self._refused = PasswordAttempts()

    def announce(self, show: Callable[[str], None]) -> None:
        """Call `show` with the link, and again with each link that replaces a used one."""
        self._show = show
        show(self.link)

    @property
    def link(self) -> str:
        """Return the link that signs in the next browser, relative to the dashboard's URL."""
        return f"{LOGIN_PATH[1:]}?{QUERY_PARAMETER}={self._token}"

    def __call__(self, connection: HTTPConnection) -> str | None:
        """Return the user's name if the request comes from this machine and has the cookie, otherwise None."""
        if _refusal_reason(connection) is not None:
            return None
        given = connection.cookies.get(cookie_name(connection), "")
        return self._name if _is_same(given, self._session) else None

    def refuse(self, connection: HTTPConnection) -> Response:
        """Return a page that says why the request was refused, and what to do."""
        text = _refusal_reason(connection)
        return HTMLResponse(_PAGE.format(text=_NO_SESSION if text is None else text), 403, _NO_REFERRER)

    def sign_in(self, connection: HTTPConnection) -> Response:
        """Exchange the token for the session's cookie, and redirect, which removes the token from the address bar."""
        if self(connection) is not None:  # the browser has the cookie already, so the token is not used up
            return _redirect_to_overview()
        given = QueryParams(connection.scope.get("query_string", b"")).get(QUERY_PARAMETER, "")
        if _refusal_reason(connection) is not None or not _is_same(given, self._token):
            self._log_refusal(connection)
            return self.refuse(connection)
        self._token = secrets.token_urlsafe(32)
        response = _redirect_to_overview()
        response.set_cookie(cookie_name(connection), self._session, path="/", httponly=True, samesite="strict")
        if self._show is not None:
            self._show(self.link)
        return response

    def _log_refusal(self, connection: HTTPConnection) -> None:
        """Log that a link was refused. The token is too long to be guessed, so this only bounds the number of lines."""
        address = address_of(connection)
        if self._refused.wait_seconds(address) == 0:
            number = self._refused.count_wrong(address)
            logger.warning("The dashboard refused a login link from %s: %d in a row.", address, number)


class LoginMiddleware:
    """ASGI middleware that handles requests for the login link. It runs before authentication."""

    def __init__(self, app: ASGIApp, links: LoginLinkAuthentication) -> None:
        self._app = app
        self._links = links

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only GET requests. Programs preview links with HEAD requests, and these must not use up the token.
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == LOGIN_PATH:
            await self._links.sign_in(HTTPConnection(scope))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def cookie_name(connection: HTTPConnection) -> str:
    """Return the name of the session's cookie. It contains the port in the browser's URL.

    Browsers send a host's cookies to all of its ports, so two dashboards on one host need different names.
    """
    try:
        port = urlsplit(f"//{connection.headers.get('host', '')}").port
    except ValueError:
        port = None
    return f"outbox_session_{80 if port is None else port}"


def _refusal_reason(connection: HTTPConnection) -> str | None:
    """Return why this request is refused even with a valid token or cookie, or None if it is not refused."""
    client = connection.client
    # A connection over a Unix socket has no client address, and comes from a proxy. The Host header is checked because
    # another site can make its own name resolve to 127.0.0.1 (DNS rebinding).
    if client is None or not is_loopback(client.host) or not is_loopback(host_name(connection.headers.get("host", ""))):
        return _NOT_LOCAL
    if any(map(_is_added_by_proxy, connection.headers.keys())):
        return _PROXY
    return None


def is_loopback(host: str) -> bool:
    """Return whether this is `localhost` or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_added_by_proxy(header: str) -> bool:
    return header in ("forwarded", "via", "x-real-ip") or header.startswith("x-forwarded")


def _is_same(given: str, expected: str) -> bool:
    return compare_digest(given.encode(errors="replace"), expected.encode())


def _redirect_to_overview() -> Response:
    return RedirectResponse("/", 303, _NO_REFERRER)
