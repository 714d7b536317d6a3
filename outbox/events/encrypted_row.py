"""Encrypt a row before it is stored, and decrypt one that a query has read."""

from __future__ import annotations

import copy
from uuid import UUID

from outbox.encryption.cipher import Cipher, decrypt
from outbox.encryption.stored_text import EMPTY, text_of
from outbox.errors import DecryptionError
from outbox.events.validate import Draft
from outbox.storage.models import Encoded, OutboxEvent


def encrypted(draft: Draft, cipher: Cipher, id: UUID) -> Draft:
    """Return the draft with an encrypted payload and encrypted headers, for the row with this id."""
    payload, headers = cipher.encrypt(id, draft.payload, draft.headers)
    return draft._replace(payload=payload, headers=headers)


def is_encrypted_row(event: OutboxEvent) -> bool:
    """Return whether the payload or the headers of a row that a query has read are encrypted."""
    return text_of(event.payload) is not None or text_of(event.headers) is not None


def decrypted(event: OutboxEvent, cipher: Cipher | None) -> OutboxEvent:
    """Return a copy of a row with its payload and headers in plain text, or the row itself if it is not encrypted.

    Raise EncryptionKeyMissing, or DecryptionError if the row was changed after it was encrypted.
    """
    payload, headers = text_of(event.payload), text_of(event.headers)
    if payload is None and headers is None:
        return event
    # A column that is not encrypted needs no text: it keeps its value.
    plain = decrypt(cipher, event.id, EMPTY if payload is None else payload, EMPTY if headers is None else headers)
    readable = copy.copy(event)
    readable.__data__ = dict(event.__data__)
    for name, was, text in (("payload", payload, plain[0]), ("headers", headers, plain[1])):
        if was is not None:
            readable.__data__[name] = Encoded(text)
    return readable


def decrypted_if_possible(event: OutboxEvent, cipher: Cipher | None) -> OutboxEvent:
    """Return the row as `decrypted` does, or as it is if that is not possible.

    It is not if this process lacks the key, if the row was changed, and if the payload only looks like ciphertext.
    """
    try:
        return decrypted(event, cipher)
    except DecryptionError:
        return event
