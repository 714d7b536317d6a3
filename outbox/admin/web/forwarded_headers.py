"""Find the address of the client, and whether it used TLS, behind a proxy that the settings name as trusted.

Any client can send `X-Forwarded-For` and `X-Forwarded-Proto`. They are read only if the connection comes from an
address in OUTBOX_DASHBOARD_TRUSTED_PROXIES; and of several addresses, those that such a proxy has added are believed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outbox.setting_values import Network


class ForwardedHeaders:
    """ASGI middleware that replaces the client's address and the scheme, if a trusted proxy says what they are."""

    def __init__(self, app: ASGIApp, trusted: Iterable[Network]) -> None:
        self._app = app
        self._trusted = tuple(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope.get("client") and self._trusts(scope["client"][0]):
            scope = {**scope, **self._from_headers(Headers(scope=scope))}
        await self._app(scope, receive, send)

    def _trusts(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._trusted)

    def _from_headers(self, headers: Headers) -> Scope:
        found: Scope = {}
        scheme = headers.getlist("x-forwarded-proto")[-1:]
        if scheme and scheme[0].rpartition(",")[2].strip() in ("http", "https"):
            found["scheme"] = scheme[0].rpartition(",")[2].strip()
        # Each proxy appends the address that it was called from. So the list is read from its end, and the first
        # address that is not a trusted proxy's is the client's. What stands before it, the client itself may have sent.
        for given in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
            host = _without_port(given.strip())
            try:
                ipaddress.ip_address(host)
            except ValueError:
                break
            found["client"] = (host, 0)
            if not self._trusts(host):
                break
        return found


def _without_port(text: str) -> str:
    """Return the address in `192.0.2.7:4711` or `[2001:db8::7]:4711`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
