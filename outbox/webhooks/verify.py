"""Verify webhooks at the receiver: check that a request was signed with the shared secret, a short time ago.

    from outbox import webhooks

    def receive(request):
        id = webhooks.verify(request.headers, request.body, SECRET)
        ...  # process each id once: a request may come twice

It follows Standard Webhooks: it also verifies the requests of other senders, and other libraries verify the requests of
this one. It is public as `outbox.webhooks.verify`, and imports none of the code that sends.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets as randomness
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from outbox.errors import VerificationError
from outbox.webhooks.signature import PREFIX, SigningKey, read_keys

__all__ = ["VerificationError", "new_secret", "verify"]

Text = str | bytes
Headers = Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[Text, Text]]

KEY_BYTES = 32
# Limit the work that one request can cause.
MOST_SIGNATURES = 20
LONGEST_HEADER = 4_096

NAMES = ("webhook-id", "webhook-timestamp", "webhook-signature")

_TIMESTAMP = re.compile(rb"[0-9]{1,12}")
# No full stop: `id.timestamp.body` is what is signed, and an id with a full stop could be split in two ways.
_ID = re.compile(rb"[\x21-\x2d\x2f-\x7e]{1,255}")


def new_secret() -> str:
    """Return a new random secret for one receiver: `whsec_…`."""
    return PREFIX + base64.b64encode(randomness.token_bytes(KEY_BYTES)).decode()


def verify(
    headers: Headers,
    body: bytes | bytearray | memoryview | str,
    secrets: str | Iterable[str],
    *,
    tolerance: timedelta = timedelta(minutes=5),
    now: datetime | None = None,
) -> str:
    """Return the message's id, if it was signed with one of the secrets and sent within `tolerance` of now.

    Otherwise raise VerificationError. Its text is for the receiver's log; the sender should get only the status 401.
    `body` is the body as it arrived, to the byte, not parsed and encoded again.
    """
    most_seconds, now_seconds = _seconds(tolerance, now)
    keys = _keys(secrets)
    found = _find_headers(headers)
    id, timestamp = found["webhook-id"], found["webhook-timestamp"]
    if not _ID.fullmatch(id):
        raise VerificationError("webhook-id is invalid: it must be 1 to 255 visible ASCII characters, no full stop.")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise VerificationError("webhook-timestamp is invalid: it must be whole seconds since 1970.")
    if not _is_signed(keys, id, timestamp, _bytes(body), found["webhook-signature"]):
        raise VerificationError(
            "No signature matches: it was made with another secret, or the body is not what was sent, to the byte."
        )
    _check_age(int(timestamp), most_seconds, now_seconds)
    return id.decode()


def _is_signed(keys: list[SigningKey], id: bytes, timestamp: bytes, body: bytes, header: bytes) -> bool:
    """Return whether any signature in the header was made with any of the keys.

    All signatures are compared even after one has matched, so that an attacker learns nothing from the time it takes.
    """
    given = header.split()[:MOST_SIGNATURES]
    matches = False
    for key in keys:
        expected = key.sign(id, timestamp, body)
        for signature in given:
            matches |= hmac.compare_digest(expected, signature)
    return matches


def _seconds(tolerance: object, now: object) -> tuple[float, float]:
    """Return both arguments as seconds; raise VerificationError if they are invalid.

    `verify` checks them first, so that any request shows a mistake in the receiver's code, and not only a valid one.
    """
    moment = datetime.now(UTC) if now is None else now
    if not isinstance(tolerance, timedelta) or not isinstance(moment, datetime) or moment.tzinfo is None:
        raise VerificationError("tolerance must be a timedelta, and now a datetime with a timezone.")
    return tolerance.total_seconds(), moment.timestamp()


def _check_age(timestamp: int, tolerance: float, now: float) -> None:
    """Raise VerificationError for an old request: an attacker may have recorded it and sent it again."""
    age = now - timestamp
    if abs(age) > tolerance:
        direction = "ago" if age > 0 else "from now"
        raise VerificationError(
            f"It was signed {abs(age):.0f} seconds {direction}, and {tolerance:.0f} are tolerated: "
            "an old request was sent again, or the sender's clock or this host's clock is wrong."
        )


def _keys(secrets: object) -> list[SigningKey]:
    try:
        several = list(secrets) if isinstance(secrets, Iterable) and not isinstance(secrets, str | bytes) else secrets
        return read_keys(several)
    except ValueError as error:
        raise VerificationError(f"Nothing can be verified: {error}.") from None
    except Exception as error:
        raise VerificationError(f"The secrets can't be read: {type(error).__name__}.") from None


def _find_headers(headers: Any) -> dict[str, bytes]:
    """Return the three headers of Standard Webhooks by name; raise VerificationError unless each is there once."""
    found: dict[str, bytes] = {}
    for key, value in _pairs(headers):
        if key in found:
            raise VerificationError(f"{key} is there twice.")
        if key in NAMES:
            found[key] = _value(key, value)
    for key in NAMES:
        if not found.get(key):
            raise VerificationError(f"{key} is missing.")
    return found


def _pairs(headers: Any) -> list[tuple[str, object]]:
    try:
        return [(_name(name), value) for name, value in (headers.items() if hasattr(headers, "items") else headers)]
    except Exception as error:
        raise VerificationError(f"The headers can't be read: {type(error).__name__}.") from None


def _name(name: object) -> str:
    if isinstance(name, bytes):
        return name.decode("latin-1").lower()
    return name.lower() if isinstance(name, str) else ""


def _value(key: str, value: object) -> bytes:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not isinstance(text, str) or not text.isascii() or len(text) > LONGEST_HEADER:
        raise VerificationError(f"{key} is not ASCII text of at most {LONGEST_HEADER} characters.")
    return text.encode().strip()


def _bytes(body: object) -> bytes:
    try:
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(body)
    except Exception as error:
        raise VerificationError(f"The body can't be read: {type(error).__name__}.") from None
    raise VerificationError(f"The body must be bytes or text, not {type(body).__name__}.")
