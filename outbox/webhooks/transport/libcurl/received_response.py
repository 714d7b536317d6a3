"""Collect the response to one request from libcurl's callbacks, within `response_limits`."""

from __future__ import annotations

import time

from outbox.webhooks.transport import response_limits
from outbox.webhooks.transport.libcurl.response_heads import ResponseHeads, is_success
from outbox.webhooks.transport.protocol import NoResponse, Response
from outbox.webhooks.transport.response_limits import BODY_BYTES, BODY_PIECES, MOST_LINES
from outbox.webhooks.transport.response_summary import summarize


class ReceivedResponse:
    """What has arrived for one request. libcurl appends to `heads.lines` and to `body`."""

    def __init__(self) -> None:
        self.heads = ResponseHeads()
        self.body: list[bytes] = []
        self._body_size = self._pieces_measured = 0
        # When reading the body ends, by time.monotonic(); None until the head is complete.
        self._body_ends_at: float | None = None

    def clear(self, *, through_tunnel: bool) -> None:
        """Start again for another request, or for another try of the same one."""
        self.heads.clear(through_tunnel=through_tunnel)
        self.body.clear()
        self._body_size = self._pieces_measured = 0
        self._body_ends_at = None

    def result(self, status: int) -> Response | NoResponse:
        """Return the result of a request whose transfer has ended. For a success, it has only the status."""
        if is_success(status) and self.heads.are_short:
            return Response(status)
        self.heads.parse()
        if self.heads.excess is not None:
            return NoResponse(f"no HTTP response: {self.heads.excess}")
        head = self.heads.of_receiver
        if head is None:  # libcurl takes 101 for a final response
            return NoResponse(f"no HTTP response: nothing follows {status}")
        return summarize(head.status, head.reason, head.headers, b"".join(self.body))

    @property
    def exceeds_limits(self) -> bool:
        """Return whether the transfer should be ended now: too many heads, or a body that is too long or too slow."""
        self.heads.parse()
        if self.heads.of_receiver is None:
            return self.heads.excess is not None
        if self._body_ends_at is None:
            self._body_ends_at = time.monotonic() + response_limits.BODY_SECONDS
        pieces = len(self.body)
        self._body_size += sum(map(len, self.body[self._pieces_measured :]))
        self._pieces_measured = pieces
        return (
            self._body_size >= BODY_BYTES
            or pieces >= BODY_PIECES
            or len(self.heads.lines) > 2 * MOST_LINES  # trailers
            or time.monotonic() >= self._body_ends_at
        )
