"""Signatures as Standard Webhooks has them: HMAC-SHA256 over id, timestamp and body, with a key for each receiver."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
VERSION = b"v1,"
SHORTEST, LONGEST = 24, 64


class SigningKey:
    """A secret, decoded. Neither its text nor any error shows it."""

    __slots__ = ("_begun",)

    def __init__(self, secret: object) -> None:
        """Raises ValueError with a text that follows "the secret"."""
        if not isinstance(secret, str):
            raise ValueError(f"must be text, not {type(secret).__name__}")  # noqa: TRY004  (one error for its callers)
        digits = secret.removeprefix(PREFIX)
        try:
            # Some write base64 without its padding.
            key = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"must be {PREFIX!r} and base64 after it") from None
        if not SHORTEST <= len(key) <= LONGEST:
            raise ValueError(f"must be {SHORTEST} to {LONGEST} bytes in base64, not {len(key)}")
        # With the key in it: to go on from here takes half the time of beginning anew.
        self._begun = hmac.new(key, digestmod="sha256")

    def sign(self, id: bytes, timestamp: bytes, body: bytes) -> bytes:
        """`v1,…`"""
        signing = self._begun.copy()
        signing.update(b"%b.%b.%b" % (id, timestamp, body))
        return VERSION + binascii.b2a_base64(signing.digest(), newline=False)


def read_keys(secrets: object) -> list[SigningKey]:
    """One secret or several. Raises ValueError, which says what is wrong with which."""
    several = secrets if isinstance(secrets, Sequence) and not isinstance(secrets, str | bytes) else [secrets]
    if not several:
        raise ValueError("there is no secret")
    keys = []
    for number, secret in enumerate(several, start=1):
        try:
            keys.append(SigningKey(secret))
        except ValueError as error:
            which = "the secret" if len(several) == 1 else f"secret {number} of {len(several)}"
            raise ValueError(f"{which} {error}") from None
    return keys
