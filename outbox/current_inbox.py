"""The functions of `outbox.inbox`: they work on the inbox of the current outbox (`outbox.current().inbox`)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from outbox.current_outbox import current
from outbox.inbox.inbox import Decorator, Key, once_in


def claim(message_id: object, handler_name: str) -> AbstractContextManager[bool]:
    """`with outbox.inbox.claim(command_id, "start-workflow") as first:`"""
    return current().inbox.claim(message_id, handler_name)


def once(handler_name: str, *, key: Key | None = None) -> Decorator:
    """`@outbox.inbox.once("ledger")`"""
    return once_in(lambda: current().inbox, handler_name, key)


def create_tables() -> None:
    """Create the inbox's table, where there is no outbox."""
    current().inbox.create_tables()


def cleanup(retention_hours: float | None = None, *, seconds: float | None = None) -> dict[str, int]:
    """Delete the inbox's rows that are older than the retention."""
    return current().inbox.cleanup(retention_hours, seconds=seconds)
