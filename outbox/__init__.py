"""A transactional outbox for applications that use Peewee and Dramatiq.

    import outbox

    with db.atomic():
        user = User.create(email=email)
        outbox.emit("User", user.id, "user.created", {"email": email})

The functions here work on one `Outbox`, which `configure` sets up. Without it the environment decides, and without
that an SQLite file in the working directory.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import peewee

from outbox import inbox, webhooks
from outbox.consumer import Consumer
from outbox.context import context
from outbox.core import Outbox
from outbox.destinations import Destination, Lease
from outbox.destinations.stream import RedisStream
from outbox.destinations.webhook import Webhook
from outbox.emit import UNIQUE, NewEvent
from outbox.errors import (
    DuplicateEvent,
    EventNotStored,
    InvalidEvent,
    InvalidMessage,
    NotPermitted,
    OutboxError,
    RegistrationError,
    Reject,
    RetryLater,
    SchemaError,
    SettingsError,
    TransactionOpen,
    TransactionRequired,
    Unavailable,
)
from outbox.event import Event
from outbox.limits import Limits
from outbox.models import InboxMessage, OutboxEvent
from outbox.models import use_tables as _use_tables
from outbox.outcome import Delivered, Failed, Outcome, Retry
from outbox.registry import Registry
from outbox.settings import Settings

__all__ = [
    "UNIQUE",
    "Consumer",
    "Delivered",
    "Destination",
    "DuplicateEvent",
    "Event",
    "EventNotStored",
    "Failed",
    "InboxMessage",
    "InvalidEvent",
    "InvalidMessage",
    "Lease",
    "Limits",
    "NewEvent",
    "NotPermitted",
    "Outbox",
    "OutboxError",
    "OutboxEvent",
    "Outcome",
    "RedisStream",
    "RegistrationError",
    "Registry",
    "Reject",
    "Retry",
    "RetryLater",
    "SchemaError",
    "Settings",
    "SettingsError",
    "TransactionOpen",
    "TransactionRequired",
    "Unavailable",
    "Webhook",
    "add_destination",
    "cleanup_delivered_events",
    "configure",
    "context",
    "create_tables",
    "current",
    "emit",
    "emit_many",
    "handler",
    "ignore",
    "inbox",
    "loaded_settings",
    "process_pending_events",
    "retire",
    "retry_failed_events",
    "webhooks",
]

__version__ = "0.1.0"

P = ParamSpec("P")
R = TypeVar("R")

# Handlers are registered when modules are imported, which may be before or after `configure`.
_registry = Registry()
_current: Outbox | None = None
_lock = threading.RLock()


def configure(
    *, database: peewee.Database | None = None, inbox_database: peewee.Database | None = None, **settings: Any
) -> Outbox:
    """Bind the outbox to the application's database, and set what differs from the environment.

    `settings` are the names of the table in the README, in lower case and without `OUTBOX_`. `inbox_database` is for an
    application whose own tables, and so its inbox, are in another database than the outbox.
    """
    global _current
    with _lock:
        was_worker = _current is not None and _current.is_worker
        _current = Outbox(
            Settings.load(**settings), database=database, registry=_registry, inbox_database=inbox_database
        )
        _current.is_worker = was_worker  # a handler's module may call this late, in a worker that is running
        OutboxEvent.bind(_current.database)
        InboxMessage.bind(_current.inbox.database)
        for model in (OutboxEvent, InboxMessage):
            _use_tables(model, _current.settings.tables)
        return _current


def current() -> Outbox:
    """The outbox that the functions of this package work on."""
    if _current is None:
        with _lock:
            if _current is None:
                configure()
    assert _current is not None  # noqa: S101  (for the type checker)
    return _current


def loaded_settings() -> Settings:
    """The settings in force; unlike `current`, this opens no database."""
    return Settings.load() if _current is None else _current.settings


def _on_current(method: Callable[Concatenate[Outbox, P], R]) -> Callable[P, R]:
    """A method of the current outbox as a function."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(current(), *args, **kwargs)

    signature = inspect.signature(method)
    without_self = list(signature.parameters.values())[1:]
    call.__signature__ = signature.replace(parameters=without_self)  # type: ignore[attr-defined]
    return call


add_destination = _registry.add
handler = _registry.handler
ignore = _registry.ignore
retire = _registry.retire

emit = _on_current(Outbox.emit)
emit_many = _on_current(Outbox.emit_many)
process_pending_events = _on_current(Outbox.process_pending_events)
cleanup_delivered_events = _on_current(Outbox.cleanup_delivered_events)
retry_failed_events = _on_current(Outbox.retry_failed_events)
create_tables = _on_current(Outbox.create_tables)
