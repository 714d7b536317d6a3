"""Reduce a response to the parts that are used: the status, three headers, and the beginning of the body."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from outbox.webhooks.transport.protocol import Response

EXCERPT_BYTES = 4 * 1024

# The response policy uses these.
_USED_HEADERS = frozenset((b"date", b"location", b"retry-after"))
_ENCODING = b"content-encoding"


def summarize(status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
    """Return the summary. Of a header that occurs several times, use the first one. Leave out a compressed body."""
    used: dict[str, str] = {}
    encoding = None
    for name, value in headers:
        lower = name.lower()
        if lower in _USED_HEADERS:
            used.setdefault(lower.decode(), value.decode("latin-1"))
        elif lower == _ENCODING and encoding is None:
            encoding = value
    is_plain = encoding is None or encoding.strip().lower() == b"identity"
    return Response(status, reason.decode("latin-1"), used, _excerpt(body) if is_plain else "")


def _excerpt(body: bytes) -> str:
    """Return the beginning of a body, or nothing if it is not UTF-8 text."""
    if not body:
        return ""
    try:
        # An incremental decoder ignores a character that is cut off at the end.
        return codecs.getincrementaldecoder("utf-8")().decode(body[:EXCERPT_BYTES])
    except UnicodeDecodeError:
        return ""
