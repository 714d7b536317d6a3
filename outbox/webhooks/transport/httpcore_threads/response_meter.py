"""Count the bytes of one response as they arrive, before httpcore parses them, and enforce `response_limits`."""

from __future__ import annotations

import re

from outbox.webhooks.transport.response_limits import BODY_LINES, BODY_WIRE_BYTES, LimitExceeded, check_heads

# A response that arrives in many small pieces costs a system call and a pass through the parser for each piece.
MOST_READS = 500

_BLANK_LINE = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"HTTP/\d\.\d +1")


class ResponseMeter:
    """Counts one response at a time. Each byte is searched once, however small the pieces are.

    Each `DeadlineStream` has one.
    """

    __slots__ = (
        "_body_lines",
        "_body_size",
        "_head",
        "_head_size",
        "_in_body",
        "_interim",
        "_lines",
        "_reads",
        "_searched",
    )

    def __init__(self) -> None:
        self._head = bytearray()
        self.begin()

    def begin(self) -> None:
        """Reset all counts: a new request is being sent."""
        self._head.clear()
        self._searched = 0
        self._reads = self._interim = self._lines = self._head_size = self._body_lines = self._body_size = 0
        self._in_body = False

    def admit(self, data: bytes) -> bytes:
        """Return the part of the data that may be parsed; raise LimitExceeded if a limit was reached before."""
        self._reads += 1
        if self._reads > MOST_READS:
            raise LimitExceeded(f"the response came in more than {MOST_READS} pieces")
        body_at = 0 if self._in_body else self._measure_heads(data)
        return data if body_at == len(data) else self._admit_body(data, body_at)

    def _measure_heads(self, data: bytes) -> int:
        """Count the heads in the data. Return the index at which the body begins, or the length if it is not there."""
        self._head += data
        while (blank := _BLANK_LINE.search(self._head, self._searched)) is not None:
            size = blank.end()
            self._head_size += size
            self._lines += self._head.count(b"\n", 0, size) - 1
            is_interim = _INTERIM.match(self._head) is not None
            self._interim += is_interim
            check_heads(interim=self._interim, lines=self._lines, size=self._head_size)
            del self._head[:size]
            self._searched = 0
            if not is_interim:
                self._in_body = True
                body_at = len(data) - len(self._head)
                self._head.clear()
                return body_at
        # A blank line has at most three bytes: the last two may be the beginning of one.
        self._searched = max(0, len(self._head) - 2)
        check_heads(interim=self._interim, lines=self._lines, size=self._head_size + len(self._head))
        return len(data)

    def _admit_body(self, data: bytes, body_at: int) -> bytes:
        """Return the data up to the limits of the body; raise LimitExceeded if they were reached before."""
        if self._body_size >= BODY_WIRE_BYTES or self._body_lines >= BODY_LINES:
            raise LimitExceeded("the body is longer than the part of it that is read")
        data = data[: body_at + BODY_WIRE_BYTES - self._body_size]
        self._body_size += len(data) - body_at
        lines = data.count(b"\n", body_at)
        if self._body_lines + lines > BODY_LINES:
            data = data[: _nth_line_end(data, body_at, BODY_LINES - self._body_lines)]
        self._body_lines += lines
        return data


def _nth_line_end(data: bytes, start: int, number: int) -> int:
    for _ in range(number):
        start = data.index(b"\n", start) + 1
    return start
