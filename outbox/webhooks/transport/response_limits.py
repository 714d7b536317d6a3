"""Limit how much a receiver can make us parse, in one response.

A deadline alone does not: interim responses (1xx) may come in any number before the final one, a chunk may be a single
byte, and what is parsed in Python keeps the process's other threads waiting. One receiver that sent `103` without end
took its neighbours from 6,200 deliveries a second to 14. So both clients count what costs work. A head that exceeds a
limit is no HTTP answer; of a body the rest is not read, which costs the connection and nothing else.
"""

from __future__ import annotations

import re

from outbox.webhooks.transport.response_summary import BODY_BYTES

# Before the final response. Servers send one or two; `102 Processing` may come every few seconds.
MOST_INTERIM = 32
# Status lines and headers of all heads together. Servers send some tens; most refuse more than a hundred themselves.
MOST_LINES = 512
# Bytes of all heads together. Most servers refuse more than 8 or 16 KiB of headers themselves.
HEAD_BYTES = 64 * 1024

# Chunks, with their sizes, extensions and trailers, may take so much more than what is in them.
BODY_WIRE_BYTES = 2 * BODY_BYTES
BODY_LINES = 4_096
BODY_PIECES = 256

# A response that trickles in costs a system call and a look for each piece.
MOST_READS = 500

_BLANK_LINE = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"HTTP/\d\.\d +1")


class LimitExceeded(Exception):
    """The receiver has sent more than belongs to an answer; the text says more of what."""


def check_heads(*, interim: int, lines: int, size: int) -> None:
    """Raise LimitExceeded if the heads of one response, counted so far, are too many or too long."""
    if interim > MOST_INTERIM:
        raise LimitExceeded(f"more than {MOST_INTERIM} interim responses")
    if lines > MOST_LINES:
        raise LimitExceeded(f"more than {MOST_LINES} header lines")
    if size > HEAD_BYTES:
        raise LimitExceeded(f"more than {HEAD_BYTES} bytes of headers")


class ResponseMeter:
    """Count one response's bytes as they come off a connection, before they are parsed.

    Each byte is looked at once, however small the pieces are that it comes in.
    """

    __slots__ = (
        "_body_lines",
        "_body_size",
        "_head",
        "_head_size",
        "_in_body",
        "_interim",
        "_lines",
        "_looked",
        "_reads",
    )

    def __init__(self) -> None:
        self._head = bytearray()
        self.begin()

    def begin(self) -> None:
        """Start anew: a request was sent."""
        self._head.clear()
        self._looked = 0
        self._reads = self._interim = self._lines = self._head_size = self._body_lines = self._body_size = 0
        self._in_body = False

    def admit(self, data: bytes) -> bytes:
        """Return as much of the data as may be parsed; raise LimitExceeded if there is nothing more to come."""
        self._reads += 1
        if self._reads > MOST_READS:
            raise LimitExceeded(f"the response came in more than {MOST_READS} pieces")
        body_at = 0 if self._in_body else self._measure_heads(data)
        return data if body_at == len(data) else self._admit_body(data, body_at)

    def _measure_heads(self, data: bytes) -> int:
        """Count the heads in it, and return where in the data the body begins; at its end if it does not begin yet."""
        self._head += data
        while (blank := _BLANK_LINE.search(self._head, self._looked)) is not None:
            size = blank.end()
            self._head_size += size
            self._lines += self._head.count(b"\n", 0, size) - 1
            is_interim = _INTERIM.match(self._head) is not None
            self._interim += is_interim
            check_heads(interim=self._interim, lines=self._lines, size=self._head_size)
            del self._head[:size]
            self._looked = 0
            if not is_interim:
                self._in_body = True
                body_at = len(data) - len(self._head)
                self._head.clear()
                return body_at
        # A blank line has at most three bytes, the last of which is still to come.
        self._looked = max(0, len(self._head) - 2)
        check_heads(interim=self._interim, lines=self._lines, size=self._head_size + len(self._head))
        return len(data)

    def _admit_body(self, data: bytes, body_at: int) -> bytes:
        if self._body_size >= BODY_WIRE_BYTES or self._body_lines >= BODY_LINES:
            raise LimitExceeded("the body is longer than what is read of one")
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
