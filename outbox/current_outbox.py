"""The current outbox, which the functions of the package use: `configure` creates it, `current` returns it.

The module is not named `current`, because as a submodule it would hide the function `outbox.current`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Concatenate, ParamSpec, TypeVar, Unpack

import peewee

from outbox.core import Outbox
from outbox.destinations.registry import Registry
from outbox.errors import SettingsError
from outbox.events.event_types import event_types
from outbox.setting_arguments import SettingArguments
from outbox.settings import Settings
from outbox.storage.models import InboxMessage, OutboxEvent, use_tables

# How an outbox may be called: its name is part of the name of its queue.
NAME = r"[A-Za-z][A-Za-z0-9_-]{0,39}"
# Settings that make destinations, which the outboxes of a process have in common.
OF_DESTINATIONS = {
    "webhook_url", "webhook_secret", "webhook_client", "webhook_response_excerpt", "stream", "rabbitmq_url",
    "rabbitmq_exchange", "nats_url", "nats_subject", "kafka_servers", "kafka_topic", "kafka_config",
}  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

# Handlers are registered when modules are imported, which may be before or after `configure`.
registry = Registry()
_current: Outbox | None = None
# The other outboxes of this process, by the names that `configure` has given them.
_named: dict[str, Outbox] = {}
# The outbox that code inside `using` works on; None: the current one.
_using: ContextVar[Outbox | None] = ContextVar("outbox_using", default=None)
# The name of the outbox that a command was told to work on (`--outbox`).
_selected: str | None = None
_lock = threading.RLock()


def configure(
    *,
    name: str | None = None,
    database: peewee.Database | None = None,
    inbox_database: peewee.Database | None = None,
    blocking_database: peewee.Database | None = None,
    **settings: Unpack[SettingArguments],
) -> Outbox:
    """Create the current outbox, with the application's database and with settings that override the environment.

    `settings` have the names of the environment variables (docs/reference/settings.md), in lower case and without
    `OUTBOX_`. Pass `inbox_database` if the application's own tables, and so its inbox, are in another database than the
    outbox. With an asynchronous `database` (`playhouse.pwasyncio`), workers, reports and commands use blocking
    connections to it, which are opened with its parameters; pass a `blocking_database` if they need others.

    With a `name`, configure another outbox beside the current one: a database for each tenant or shard. `outbox.using`
    makes it the one that the functions of the package work on; workers and the scheduler serve all of them.
    """
    global _current
    if name is not None:
        databases = {"database": database, "inbox_database": inbox_database, "blocking_database": blocking_database}
        return _configure_named(name, databases, settings)
    with _lock:
        was_worker = _current is not None and _current.is_worker
        _current = Outbox(
            Settings.load(**settings),
            database=database,
            registry=registry,
            inbox_database=inbox_database,
            blocking_database=blocking_database,
        )
        _current.is_worker = was_worker  # a module may call `configure` after the worker has started
        _bind_models(_current)
        return _current


def _configure_named(name: str, databases: dict[str, peewee.Database | None], settings: SettingArguments) -> Outbox:
    if re.fullmatch(NAME, name) is None:
        raise SettingsError(
            f"The name of an outbox has up to 40 letters, digits, - and _, and begins with a letter: not {name!r}."
        )
    if own := sorted(OF_DESTINATIONS & {key for key, value in settings.items() if value is not None}):
        raise SettingsError(
            f"{', '.join(own)} can't be set for the outbox {name!r}: all outboxes of a process have the same "
            "destinations. Set it for the default outbox."
        )
    if databases["database"] is None and settings.get("database_url") is None:
        raise SettingsError(f"The outbox {name!r} needs a database: outbox.configure(name={name!r}, database=…).")
    loaded = Settings.load(**settings)
    if settings.get("queue") is None:
        loaded = loaded.changed(queue=f"{loaded.queue}.{name}")
    with _lock:
        before = _named.get(name)
        box = Outbox(loaded, registry=registry, **databases)
        box.name = name
        box.delivery = dataclasses.replace(box.delivery, around_calls=lambda: using(box))
        box.delivery.failure_hooks.around_calls = box.delivery.around_calls
        box.is_worker = before is not None and before.is_worker
        _named[name] = box
        return box


@contextmanager
def using(outbox: str | Outbox | None) -> Iterator[Outbox]:
    """Inside the block, make the functions of the package work on another outbox; return it.

    It is for this thread, or for this asynchronous task. Handlers are called inside such a block, with the outbox whose
    events they handle.

    - `outbox`: the name that `configure` has given it, or the Outbox; None is the default one.
    """
    box = named(outbox) if isinstance(outbox, str) else outbox
    token = _using.set(box)
    try:
        yield current() if box is None else box
    finally:
        _using.reset(token)


def named(name: str) -> Outbox:
    """Return the outbox that `configure` has given this name."""
    box = _named.get(name)
    if box is None:
        known = ", ".join(sorted(_named)) or "there is none"
        raise SettingsError(
            f"No outbox of this process is called {name!r} ({known}). Call outbox.configure(name={name!r}, …), or "
            "import the module that does."
        )
    return box


def named_outboxes() -> list[Outbox]:
    """Return the outboxes of this process that have a name."""
    return list(_named.values())


def outboxes() -> list[Outbox]:
    """Return all outboxes of this process: the default one, and those that have a name."""
    with using(None):
        return [current(), *named_outboxes()]


@contextmanager
def selected(name: str | None) -> Iterator[None]:
    """Inside the block, make the outbox of this name the current one of all threads, once it is configured."""
    global _selected
    before, _selected = _selected, name
    try:
        yield
    finally:
        _selected = before


@contextmanager
def replaced_by(box: Outbox) -> Iterator[None]:
    """Make this the current outbox inside the block: for the test of an application."""
    global _current
    with _lock:
        before, _current = _current, box
        _bind_models(box)
    try:
        yield
    finally:
        with _lock:
            _current = before
            if before is not None:
                _bind_models(before)


def _bind_models(box: Outbox) -> None:
    """Make the application's own queries of our models use the tables of this outbox."""
    OutboxEvent.bind(box.database)
    InboxMessage.bind(box.inbox.database)
    for model in (OutboxEvent, InboxMessage):
        use_tables(model, box.settings.tables)


def current() -> Outbox:
    """Return the current outbox. If `configure` was not called before, create it from the environment."""
    if (chosen := _using.get()) is not None:
        return chosen
    if _selected is not None:
        return named(_selected)
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
    _named.clear()


def loaded_settings() -> Settings:
    """Return the settings of the current outbox, or, if there is none, those of the environment.

    Unlike `current`, this creates no outbox and opens no database.
    """
    if _using.get() is not None or _selected in _named:
        return current().settings
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
event = event_types.event
upcaster = event_types.upcaster
on_failure = registry.on_failure
redact = registry.redactions.register
retire = registry.retire

emit = _on_current(Outbox.emit)
emit_many = _on_current(Outbox.emit_many)
aemit = _on_current(Outbox.aemit)
aemit_many = _on_current(Outbox.aemit_many)
cancel = _on_current(Outbox.cancel)
acancel = _on_current(Outbox.acancel)
decrypted = _on_current(Outbox.decrypted)
process_pending_events = _on_current(Outbox.process_pending_events)
cleanup_delivered_events = _on_current(Outbox.cleanup_delivered_events)
retry_failed_events = _on_current(Outbox.retry_failed_events)
create_tables = _on_current(Outbox.create_tables)
