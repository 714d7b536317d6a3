"""The inbox: a message has its effect once, however often it is delivered.

    @outbox.inbox.once("ledger")
    def credit(event):
        Account.update(balance=Account.balance + event.payload["amount"]).where(...).execute()

The functions here use the inbox of the current outbox. Like `outbox` itself, this module is a façade: when a name is
first used, it imports the module that defines the name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.current_inbox import claim, cleanup, create_tables, once
    from outbox.inbox.inbox import Inbox
    from outbox.inbox.once_decorator import SKIPPED, Skipped

__all__ = ["SKIPPED", "Inbox", "Skipped", "claim", "cleanup", "create_tables", "once"]

_MODULES = {
    "SKIPPED": "outbox.inbox.once_decorator",
    "Inbox": "outbox.inbox.inbox",
    "Skipped": "outbox.inbox.once_decorator",
    "claim": "outbox.current_inbox",
    "cleanup": "outbox.current_inbox",
    "create_tables": "outbox.current_inbox",
    "once": "outbox.current_inbox",
}


if not TYPE_CHECKING:  # hidden from type checkers, so that they report names that are not imported above

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(module), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
