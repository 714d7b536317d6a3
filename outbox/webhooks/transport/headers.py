"""Check HTTP headers: which values can be sent, and which headers a user may set on a webhook."""

from __future__ import annotations

import re
from collections.abc import Mapping

from outbox.errors import RegistrationError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Visible ASCII, with spaces and tabs inside.
_VALUE = re.compile(r"[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?")

# Headers that are set for every event, or by the HTTP library for the connection.
_RESERVED = frozenset(
    {
        *("content-encoding", "content-length", "content-type", "host", "traceparent", "tracestate", "user-agent"),
        *("accept-encoding", "connection", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_RESERVED_PREFIXES = ("webhook-", "ce-", "proxy-")


def is_header_value(text: object) -> bool:
    """Return whether a text can be sent as the value of a header: not empty, and without line breaks."""
    return isinstance(text, str) and _VALUE.fullmatch(text) is not None


def check_headers(headers: object) -> dict[str, str]:
    """Return the user's headers by their names in lower case; raise RegistrationError if one can't be sent.

    No error quotes a value: it may be an API key.
    """
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise RegistrationError("headers must be a mapping of names to values: {'x-api-version': '2'}.")
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RegistrationError(f"{name!r} is not a valid name for a header.")
        if not is_header_value(value):
            raise RegistrationError(f"The value of the header {name!r} must be visible ASCII characters.")
        lower = name.lower()
        if lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
            raise RegistrationError(f"The header {name!r} is set for each event, or by the connection: leave it out.")
        if lower in checked:
            raise RegistrationError(f"The header {name!r} is there twice.")
        checked[lower] = value
    return checked
