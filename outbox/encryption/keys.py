"""The keys of OUTBOX_ENCRYPTION_KEYS: how they are written, checked and named. No key appears in a repr or an error."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from typing import NamedTuple

KEY_BYTES = 32
ID_LENGTH = 8
# A random key has about 30 different bytes. A key with fewer than this is a mistake, such as 32 zeros.
FEWEST_DIFFERENT_BYTES = 16
# Written instead of the first key: new rows are then stored in plain text, and the keys only decrypt.
PLAIN = "plain"
_ID_DOMAIN = b"dramatiq-outbox encryption key id\0"


class EncryptionKey:
    """One key. Its id is a digest of it, so one key can't have two ids, and two keys can't share one."""

    __slots__ = ("id", "secret")

    def __init__(self, secret: bytes) -> None:
        self.id = hashlib.sha256(_ID_DOMAIN + secret).hexdigest()[:ID_LENGTH]
        self.secret = secret

    def __repr__(self) -> str:
        return f"<EncryptionKey {self.id}>"


class KeyRing(NamedTuple):
    """The keys of a process. The first encrypts, unless `encrypts` is false; all decrypt."""

    keys: tuple[EncryptionKey, ...]
    encrypts: bool = True


class NewKey(NamedTuple):
    """A key that was just made, as OUTBOX_ENCRYPTION_KEYS takes it, and its id."""

    text: str
    id: str


def new_key() -> NewKey:
    """Return a new random key."""
    secret = secrets.token_bytes(KEY_BYTES)
    return NewKey(base64.urlsafe_b64encode(secret).decode(), EncryptionKey(secret).id)


def parse_setting(value: object) -> str:
    """Return the text of the setting, with one space between two keys; raise ValueError if a key is invalid.

    `configure` also takes a list of keys.
    """
    texts = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a text, or a list of texts")
    setting = " ".join(" ".join(map(str, texts)).split())
    parse_keys(setting)
    return setting


def parse_keys(setting: str) -> KeyRing:
    """Return the keys; raise ValueError, without naming any of their characters, if one is invalid."""
    texts = setting.split()
    encrypts = texts[:1] != [PLAIN]
    if not encrypts:
        del texts[0]
    if not texts:
        raise ValueError(f"must contain a key: {KEY_BYTES} random bytes in base64. `outbox encryption-key` makes one")
    keys = [_parse_key(text, number) for number, text in enumerate(texts, 1)]
    for number, key in enumerate(keys, 1):
        if any(key.id == other.id for other in keys[: number - 1]):
            raise ValueError(f"must contain each key once: key {number}, with the id {key.id}, is given twice")
    return KeyRing(tuple(keys), encrypts)


def _parse_key(text: str, number: int) -> EncryptionKey:
    """Return one key.

    Both alphabets of base64 are read, with and without padding: openssl and Python write different ones.
    """
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    expected = f"must be keys of {KEY_BYTES} random bytes in base64, separated by spaces (see `outbox encryption-key`)"
    try:
        secret = binascii.a2b_base64(plain + "=" * (-len(plain) % 4), strict_mode=True)
    except ValueError:
        raise ValueError(f"{expected}: key {number} is not base64") from None
    if len(secret) != KEY_BYTES:
        raise ValueError(f"{expected}: key {number} has {len(secret)} bytes")
    if len(set(secret)) < FEWEST_DIFFERENT_BYTES:
        raise ValueError(f"{expected}: key {number} is not random")
    return EncryptionKey(secret)
