"""What of an answer is looked at: its status, a few of its headers, and how its body begins."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from outbox.webhooks.transport.protocol import Response

# What of a body is read to keep the connection; a longer or slower one costs a new connection instead.
BODY_BYTES = 64 * 1024
BODY_SECONDS = 1.0
EXCERPT_BYTES = 4 * 1024

_TOLD = frozenset((b"date", b"location", b"retry-after"))
_ENCODING = b"content-encoding"


def read(status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
    """Of a header that is there twice, the first counts."""
    told: dict[str, str] = {}
    encoding = None
    for name, value in headers:
        lower = name.lower()
        if lower in _TOLD:
            told.setdefault(lower.decode(), value.decode("latin-1"))
        elif lower == _ENCODING and encoding is None:
            encoding = value
    is_plain = encoding is None or encoding.strip().lower() == b"identity"
    return Response(status, reason.decode("latin-1"), told, _excerpt(body) if is_plain else "")


def _excerpt(body: bytes) -> str:
    """How a body begins; nothing of one that is no text. What is compressed is not unpacked."""
    if not body:
        return ""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(body[:EXCERPT_BYTES])
    except UnicodeDecodeError:
        return ""
