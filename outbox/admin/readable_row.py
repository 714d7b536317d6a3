"""Decrypt a row to show it, or say why that is not possible."""

from __future__ import annotations

from typing import NamedTuple

from outbox.encryption.cipher import Cipher
from outbox.errors import DecryptionError
from outbox.events.encrypted_row import decrypted
from outbox.storage.models import OutboxEvent


class ReadableRow(NamedTuple):
    """A row as it is shown. If it can't be decrypted, `problem` says why, and payload and headers are as stored."""

    event: OutboxEvent
    problem: str | None = None


def readable_row(event: OutboxEvent, cipher: Cipher | None) -> ReadableRow:
    """Return the row in plain text if this process has its key."""
    try:
        return ReadableRow(decrypted(event, cipher))
    except DecryptionError as error:
        return ReadableRow(event, str(error))
