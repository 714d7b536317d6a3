"""Which headers HTTP can carry, and which of them a user may set."""

from __future__ import annotations

import re
from collections.abc import Mapping

from outbox.errors import RegistrationError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Visible ASCII, with spaces and tabs inside.
_VALUE = re.compile(r"[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?")

# Set for every event, or a matter of the connection.
_OURS = frozenset(
    {
        *("content-encoding", "content-length", "content-type", "host", "traceparent", "tracestate", "user-agent"),
        *("accept-encoding", "connection", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_OUR_PREFIXES = ("webhook-", "ce-", "proxy-")


def is_value(text: object) -> bool:
    """Not empty, and nothing that a receiver might read as the end of the header."""
    return isinstance(text, str) and _VALUE.fullmatch(text) is not None


def check(headers: object) -> dict[str, str]:
    """A user's own headers, by their names in lower case. No error quotes a value: it may be a key."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise RegistrationError("headers must be a mapping of names to values: {'x-api-version': '2'}.")
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RegistrationError(f"{name!r} is no name that a header can have.")
        if not is_value(value):
            raise RegistrationError(f"The value of the header {name!r} must be visible ASCII characters.")
        lower = name.lower()
        if lower in _OURS or lower.startswith(_OUR_PREFIXES):
            raise RegistrationError(f"The header {name!r} is set for each event, or by the connection: leave it out.")
        if lower in checked:
            raise RegistrationError(f"The header {name!r} is there twice.")
        checked[lower] = value
    return checked
