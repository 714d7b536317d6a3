"""Encrypt and decrypt the payload and the headers of a row, with AES-256-GCM.

Each row has a key of its own, derived from the configured key and the row's id. With one key for all rows, random
nonces would be safe for 2^32 texts only, which a busy outbox stores within weeks. The row's id and the column are also
associated data: a ciphertext can't be moved to another row or column.
"""

from __future__ import annotations

import hmac
import importlib
import os
from typing import TYPE_CHECKING
from uuid import UUID

from outbox.encryption.keys import EncryptionKey, KeyRing, parse_keys
from outbox.encryption.stored_text import EMPTY, VERSION, is_encrypted, read, write
from outbox.errors import DecryptionError, EncryptionKeyMissing, SettingsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES, TAG_BYTES = 12, 16
PAYLOAD, HEADERS = b"payload", b"headers"
_ROW_KEY_DOMAIN = b"dramatiq-outbox row key v1\0"


class Cipher:
    """Encrypts with the first of its keys, and decrypts with all of them. Its repr shows the ids of the keys only."""

    __slots__ = ("_aes_gcm", "_first", "_keys", "encrypts", "key_ids")

    def __init__(self, key_ring: KeyRing) -> None:
        try:
            aead = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        except ImportError:
            raise SettingsError(
                "OUTBOX_ENCRYPTION_KEYS is set, and encryption needs cryptography: "
                "pip install 'dramatiq-outbox[encryption]'."
            ) from None
        self._aes_gcm: type[AESGCM] = aead.AESGCM
        self._first = key_ring.keys[0]
        self._keys = {key.id: key for key in key_ring.keys}
        self.key_ids = tuple(self._keys)
        # Whether new rows are encrypted. If not, the keys are there to decrypt older ones.
        self.encrypts = key_ring.encrypts

    def __repr__(self) -> str:
        return f"<Cipher {' '.join(self.key_ids)}>"

    def encrypt(self, id: UUID, payload: str, headers: str) -> tuple[str, str]:
        """Return the texts of the columns `payload` and `headers` of the row with this id."""
        key = self._first
        row_key = self._row_key(key, id)
        return _encrypt(row_key, key.id, id, PAYLOAD, payload), _encrypt(row_key, key.id, id, HEADERS, headers)

    def decrypt(self, id: UUID, payload: str, headers: str) -> tuple[str, str]:
        """Return the texts that `encrypt` was given. A text that is not encrypted is returned as it is.

        Raise EncryptionKeyMissing, or DecryptionError if a text was changed, or belongs to another row.
        """
        return self._decrypt(id, PAYLOAD, payload), self._decrypt(id, HEADERS, headers)

    def _decrypt(self, id: UUID, column: bytes, text: str) -> str:
        if not is_encrypted(text):
            return text
        found = read(text)
        if found is None:
            raise _damaged(column)
        if found.version != VERSION:
            raise EncryptionKeyMissing(
                f"encrypted in the format {found.version}, which this version of the library can't read", found.key_id
            )
        key = self._keys.get(found.key_id)
        if key is None:
            raise _missing(found.key_id)
        if len(found.data) < NONCE_BYTES + TAG_BYTES:
            raise _damaged(column)
        nonce, sealed = found.data[:NONCE_BYTES], found.data[NONCE_BYTES:]
        try:
            return self._row_key(key, id).decrypt(nonce, sealed, _associated_data(id, column)).decode()
        except Exception:  # InvalidTag, which can't be imported without cryptography; its text says nothing
            raise _damaged(column) from None

    def _row_key(self, key: EncryptionKey, id: UUID) -> AESGCM:
        return self._aes_gcm(hmac.digest(key.secret, _ROW_KEY_DOMAIN + id.bytes, "sha256"))


def make_cipher(setting: str | None) -> Cipher | None:
    """Return the cipher for OUTBOX_ENCRYPTION_KEYS, or None if it is not set."""
    return None if setting is None else Cipher(parse_keys(setting))


def decrypt(cipher: Cipher | None, id: UUID, payload: str, headers: str) -> tuple[str, str]:
    """Decrypt as `Cipher.decrypt`, in a process that may have no keys."""
    if cipher is not None:
        return cipher.decrypt(id, payload, headers)
    for column, text in ((PAYLOAD, payload), (HEADERS, headers)):
        if is_encrypted(text):
            found = read(text)
            raise _damaged(column) if found is None else _missing(found.key_id)
    return payload, headers


def _encrypt(row_key: AESGCM, key_id: str, id: UUID, column: bytes, text: str) -> str:
    if text == EMPTY:
        return text
    nonce = os.urandom(NONCE_BYTES)
    return write(key_id, nonce + row_key.encrypt(nonce, text.encode(), _associated_data(id, column)))


def _associated_data(id: UUID, column: bytes) -> bytes:
    return column + b"\0" + id.bytes


def _missing(key_id: str) -> EncryptionKeyMissing:
    return EncryptionKeyMissing(
        f"encrypted with the key {key_id}, which this process does not have (OUTBOX_ENCRYPTION_KEYS)", key_id
    )


def _damaged(column: bytes) -> DecryptionError:
    return DecryptionError(
        f"the {column.decode()} can't be decrypted: it was changed after it was encrypted, or it belongs to another row"
    )
