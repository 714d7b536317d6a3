"""The functions of `outbox.inbox`: they use the inbox of the current outbox (`outbox.current().inbox`)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from outbox.current_outbox import current
from outbox.inbox.message_id import Key
from outbox.inbox.once_decorator import Decorator, make_once


def claim(message_id: object, handler_name: str) -> AbstractContextManager[bool]:
    """Run a `with` block in a transaction; yield True if this handler has not processed the message before.

    `with outbox.inbox.claim(command_id, "start-workflow") as first:`
    """
    return current().inbox.claim(message_id, handler_name)


def once(handler_name: str, *, key: Key | None = None) -> Decorator:
    """Return a decorator: the function runs once for each message, in a transaction; later calls return SKIPPED.

    `@outbox.inbox.once("ledger")`. The message is the first argument: an event, an envelope, a Dramatiq message, or any
    object with an id. If the message's id is elsewhere, pass `key`: the name of an argument, the name of a field of the
    first argument, or a function that gets all arguments and returns the id.
    """
    return make_once(claim, handler_name, key)


def create_tables() -> None:
    """Create only the inbox's table, in a database without an outbox."""
    current().inbox.create_tables()


def cleanup(retention_hours: float | None = None, *, seconds: float | None = None) -> dict[str, int]:
    """Delete the inbox's rows that are older than the retention. Stop after `seconds`, if given.

    Return {"deleted": how many were deleted, "remaining": how many are left to delete, counted up to a limit}.
    """
    return current().inbox.cleanup(retention_hours, seconds=seconds)
