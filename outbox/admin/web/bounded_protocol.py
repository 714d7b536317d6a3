"""Bound how long a client may take to send a request, and how many connections there are.

uvicorn closes connections that are idle between two requests (`timeout_keep_alive`). It has no limit for a request that
never ends, for a connection that never sends one, or for a client that does not read the response, and its
`limit_concurrency` is compared only when a whole request has arrived. This protocol adds those limits.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# From the connection, or the first byte of a further request, to the request's last byte.
REQUEST_SECONDS = 20.0
# How long a client may leave the response unread when the buffer for it is full.
UNREAD_SECONDS = 20.0
MAX_CONNECTIONS = 500


class BoundedProtocol(H11Protocol):
    """One connection. The limits are attributes of the class, so that a test can replace them."""

    request_seconds = REQUEST_SECONDS
    unread_seconds = UNREAD_SECONDS
    max_connections = MAX_CONNECTIONS

    _request_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
            return
        self._request_timer = self.loop.call_later(self.request_seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):  # the request has arrived completely
            self._cancel_request_timer()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self.request_seconds, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # `close` waits until the client has read the last response, however long that takes.
        self.loop.call_later(self.unread_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_unread_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_timer()
        self._cancel_unread_timer()
        super().connection_lost(exc)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _cancel_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
