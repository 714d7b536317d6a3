"""Limit how much of one response is parsed.

A deadline alone does not limit that. A receiver may send any number of interim responses (1xx) before the final one, a
chunk of a body may be a single byte, and while Python code parses, the other threads of the process wait. Measured: one
receiver that sent `103` without end took the deliveries of the others from 6,200 a second to 14.

So both HTTP libraries are wrapped in code that counts what costs work. If the heads (status lines and headers) exceed a
limit, the result is `NoResponse`. If the body exceeds a limit, the rest of it is not read and the connection is closed,
but the status counts.
"""

from __future__ import annotations

# Interim responses before the final one. Servers send one or two; `102 Processing` may come every few seconds.
MOST_INTERIM = 32
# Status lines and headers of all heads together. Servers send some tens; most refuse more than a hundred themselves.
MOST_LINES = 512
# Bytes of all heads together. Most servers refuse more than 8 or 16 KiB of headers themselves.
HEAD_BYTES = 64 * 1024

# A body is read so that its connection can be used again. If the body is longer or slower, a new connection is cheaper.
BODY_BYTES = 64 * 1024
BODY_SECONDS = 1.0
# The number of pieces in which the HTTP library returns the body.
BODY_PIECES = 256
# How many bytes, and lines, a body may have on the wire, where chunks also have sizes, extensions and trailers.
BODY_WIRE_BYTES = 2 * BODY_BYTES
BODY_LINES = 4_096


class LimitExceeded(Exception):
    """The receiver has sent more than a response may have. The text says what there is too much of."""


def check_heads(*, interim: int, lines: int, size: int) -> None:
    """Raise LimitExceeded if the heads of one response, as counted so far, are too many or too long."""
    if interim > MOST_INTERIM:
        raise LimitExceeded(f"more than {MOST_INTERIM} interim responses")
    if lines > MOST_LINES:
        raise LimitExceeded(f"more than {MOST_LINES} header lines")
    if size > HEAD_BYTES:
        raise LimitExceeded(f"more than {HEAD_BYTES} bytes of headers")
