"""Refuse requests that give the length of their body in two ways (request smuggling).

A proxy may use `Content-Length`, and h11 uses `Transfer-Encoding`. Then the two disagree about where the request ends,
and a part of one user's request could be taken for the beginning of the next user's. RFC 9112 requires that the
connection is closed after such a request, and h11 keeps it open.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class OneLength:
    """ASGI middleware that refuses a request with both headers, and closes its connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if "content-length" in headers and "transfer-encoding" in headers:
                text = "The request has Content-Length and Transfer-Encoding: only one of them is allowed."
                await PlainTextResponse(text, 400, {"Connection": "close"})(scope, receive, send)
                return
        await self._app(scope, receive, send)
