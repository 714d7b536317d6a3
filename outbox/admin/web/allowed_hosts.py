"""Refuse requests whose `Host` is not one of OUTBOX_DASHBOARD_ALLOWED_HOSTS, if that is set.

Starlette's middleware for this is not used: it redirects to an address that it builds from `Host`, and does not
understand IPv6 addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class AllowedHosts:
    """ASGI middleware that accepts requests for these host names only; `*.example.com` stands for all names below."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower().strip("[]") for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not self._allows(Headers(scope=scope).getlist("host")):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            text = "The dashboard is not served under this host name. OUTBOX_DASHBOARD_ALLOWED_HOSTS lists the allowed."
            await PlainTextResponse(text, 400)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allows(self, given: list[str]) -> bool:
        if len(given) != 1:
            return False
        host = host_name(given[0])
        _, _, parent = host.partition(".")
        while parent:
            if f"*.{parent}" in self._names:
                return True
            _, _, parent = parent.partition(".")
        return host in self._names


def host_name(header: str) -> str:
    """Return the host of a Host header in lower case, without the port; "" if it is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
