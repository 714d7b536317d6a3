"""The current outbox, which the functions of the package use: `configure` creates it, `current` returns it.

The module is not named `current`, because as a submodule it would hide the function `outbox.current`.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import peewee

from outbox.core import Outbox
from outbox.destinations.registry import Registry
from outbox.settings import Settings
from outbox.storage.models import InboxMessage, OutboxEvent, use_tables

P = ParamSpec("P")
R = TypeVar("R")

# Handlers are registered when modules are imported, which may be before or after `configure`.
registry = Registry()
_current: Outbox | None = None
_lock = threading.RLock()


def configure(
    *, database: peewee.Database | None = None, inbox_database: peewee.Database | None = None, **settings: Any
) -> Outbox:
    """Create the current outbox, with the application's database and with settings that override the environment.

    `settings` have the names of the environment variables (docs/reference/settings.md), in lower case and without
    `OUTBOX_`. Pass `inbox_database` if the application's own tables, and so its inbox, are in another database than the
    outbox.
    """
    global _current
    with _lock:
        was_worker = _current is not None and _current.is_worker
        _current = Outbox(
            Settings.load(**settings), database=database, registry=registry, inbox_database=inbox_database
        )
        _current.is_worker = was_worker  # a module may call `configure` after the worker has started
        OutboxEvent.bind(_current.database)
        InboxMessage.bind(_current.inbox.database)
        for model in (OutboxEvent, InboxMessage):
            use_tables(model, _current.settings.tables)
        return _current


def current() -> Outbox:
    """Return the current outbox. If `configure` was not called before, create it from the environment."""
    if _current is None:
        with _lock:
            if _current is None:
                configure()
    assert _current is not None  # noqa: S101  (for the type checker)
    return _current


def is_configured() -> bool:
    """Return whether there is a current outbox, created by `configure` or by `current`."""
    return _current is not None


def forget() -> None:
    """Forget the current outbox. The next call of `current` creates a new one from the environment."""
    global _current
    _current = None


def loaded_settings() -> Settings:
    """Return the settings of the current outbox, or, if there is none, those of the environment.

    Unlike `current`, this creates no outbox and opens no database.
    """
    return Settings.load() if _current is None else _current.settings


def _on_current(method: Callable[Concatenate[Outbox, P], R]) -> Callable[P, R]:
    """Return a function that calls this method of the current outbox. Its signature is the method's without `self`."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(current(), *args, **kwargs)

    signature = inspect.signature(method)
    without_self = list(signature.parameters.values())[1:]
    call.__signature__ = signature.replace(parameters=without_self)  # type: ignore[attr-defined]
    return call


add_destination = registry.add
handler = registry.handler
ignore = registry.ignore
retire = registry.retire

emit = _on_current(Outbox.emit)
emit_many = _on_current(Outbox.emit_many)
cancel = _on_current(Outbox.cancel)
process_pending_events = _on_current(Outbox.process_pending_events)
cleanup_delivered_events = _on_current(Outbox.cleanup_delivered_events)
retry_failed_events = _on_current(Outbox.retry_failed_events)
create_tables = _on_current(Outbox.create_tables)
