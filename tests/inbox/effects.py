"""The effects of messages in tests: notes in the application's own table, and rows in the inbox."""

from collections.abc import Callable
from typing import Any

import outbox
from outbox import InboxMessage
from outbox.inbox.message_id import Key
from tests.conftest import Note


def note_taker(name: str = "reader", key: Key | None = None) -> Callable[..., Any]:
    """Return a handler that writes a note for each message that it processes, and returns "noted"."""

    @outbox.inbox.once(name, key=key)
    def take_note(message: object) -> str:
        Note.create(text=name)
        return "noted"

    return take_note


def notes() -> list[str]:
    return sorted(note.text for note in Note.select())


def inbox_rows() -> list[tuple[str, str]]:
    """The inbox's rows."""
    return sorted((row.message_id, row.handler_name) for row in InboxMessage.select())
