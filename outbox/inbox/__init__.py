"""The inbox: a message has its effect once, however often it is delivered.

    @outbox.inbox.once("ledger")
    def credit(event):
        Account.update(balance=Account.balance + event.payload["amount"]).where(...).execute()

The functions here use the current outbox's inbox. Like `outbox` itself, this module is a façade: it imports the module
that a name comes from when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.current_inbox import claim, cleanup, create_tables, once
    from outbox.inbox.inbox import Inbox
    from outbox.inbox.once_decorator import SKIPPED, Skipped

__all__ = ["SKIPPED", "Inbox", "Skipped", "claim", "cleanup", "create_tables", "once"]

_HOMES = {
    "SKIPPED": "outbox.inbox.once_decorator",
    "Inbox": "outbox.inbox.inbox",
    "Skipped": "outbox.inbox.once_decorator",
    "claim": "outbox.current_inbox",
    "cleanup": "outbox.current_inbox",
    "create_tables": "outbox.current_inbox",
    "once": "outbox.current_inbox",
}


if not TYPE_CHECKING:  # a type checker reads the imports above, and refuses a name that is not there

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
