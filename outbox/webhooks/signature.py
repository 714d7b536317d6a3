"""Sign requests as Standard Webhooks says: HMAC-SHA256 over id, timestamp and body, with a key for each receiver.

`RequestBuilder` signs requests with it. `outbox.webhooks.verify` makes the expected signature with it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
VERSION = b"v1,"
# How many bytes a key may have.
SHORTEST, LONGEST = 24, 64


class SigningKey:
    """A decoded secret. Neither its repr nor any error shows it."""

    __slots__ = ("_hmac",)

    def __init__(self, secret: object) -> None:
        """Decode a secret: `whsec_`, then base64. The text of its ValueError continues the sentence "the secret …"."""
        if not isinstance(secret, str):
            raise ValueError(f"must be text, not {type(secret).__name__}")  # noqa: TRY004  (one error for its callers)
        encoded = secret.removeprefix(PREFIX)
        try:
            # Some programs leave out the padding of base64.
            key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"must be {PREFIX!r} and base64 after it") from None
        if not SHORTEST <= len(key) <= LONGEST:
            raise ValueError(f"must be {SHORTEST} to {LONGEST} bytes in base64, not {len(key)}")
        # Each signature is made with a copy of this, which takes half the time of making a new HMAC from the key.
        self._hmac = hmac.new(key, digestmod="sha256")

    def sign(self, id: bytes, timestamp: bytes, body: bytes) -> bytes:
        """Return the signature as the header carries it: `v1,` and base64."""
        mac = self._hmac.copy()
        mac.update(b"%b.%b.%b" % (id, timestamp, body))
        return VERSION + binascii.b2a_base64(mac.digest(), newline=False)


def read_keys(secrets: object) -> list[SigningKey]:
    """Return the keys of one secret or of several. Raise a ValueError that says which secret is invalid, and why."""
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
