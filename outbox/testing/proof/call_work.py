"""The work of the process of one call: connect the application to the copies, and call the handler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from outbox import current_inbox, current_outbox
from outbox.core import Outbox
from outbox.delivery.call_transaction import CallTransaction
from outbox.destinations.handler import Handler
from outbox.errors import OutboxError
from outbox.events.event import Event
from outbox.inbox.once_decorator import HANDLER_NAME_ATTRIBUTE
from outbox.storage.async_database import is_async
from outbox.testing.box import settings_of_test
from outbox.testing.proof.call_process import Work
from outbox.testing.proof.copies import Copies
from outbox.testing.proof.outside_calls import OutsideCalls
from outbox.testing.proof.trace_drivers import Watch, trace_drivers

# Objects that must not be deleted before the process of a call ends.
_kept: list[object] = []


@contextmanager
def on_copies(
    box: Outbox, copies: Copies, watch: Watch, outside: Callable[[str], None], *, allow_calls: bool
) -> Iterator[None]:
    """Run the block with the application connected to the copies, with `box` as the outbox; for a process of its own.

    Nothing is restored at the end: the process ends with the block.
    """
    _kept.append(copies.use())
    calls = OutsideCalls(outside, allowed=allow_calls, hosts=_hosts(box))
    trace_drivers(watch, copies.names, calls.refused)
    with current_outbox.replaced_by(box), current_outbox.using(box):
        calls.watch()
        yield


def work_of(handler: Handler, event: Event, attempt: int, copies: Copies, box: Outbox, *, allow_calls: bool) -> Work:
    """Return what the process of a call runs: one call of the handler, on these copies."""

    def work(watch: Watch, outside: Callable[[str], None]) -> None:
        with on_copies(box, copies, watch, outside, allow_calls=allow_calls):
            mine = copy.copy(event)
            mine.attempt = attempt
            handler.call(mine)
            if CallTransaction(box.dialect).ended():
                raise OutboxError("The handler has left a transaction open. A worker would roll it back.")

    return work


def with_inbox(handler: Handler) -> Handler | None:
    """Return the handler inside `outbox.inbox.once`, or None if it is already inside it, or can't be."""
    if is_in_inbox(handler) or handler.is_async:
        return None
    return _with_function(handler, current_inbox.once(handler.name)(handler.function))


def without_inbox(handler: Handler) -> Handler | None:
    """Return the handler without `outbox.inbox.once`, or None if it does not use it."""
    inner = getattr(handler.function, "__wrapped__", None)
    if not is_in_inbox(handler) or inner is None or hasattr(inner, HANDLER_NAME_ATTRIBUTE):
        return None
    return _with_function(handler, inner)


def is_in_inbox(handler: Handler) -> bool:
    """Return whether the function is decorated with `outbox.inbox.once`."""
    return hasattr(handler.function, HANDLER_NAME_ATTRIBUTE)


def _with_function(handler: Handler, function: Callable[[Event], object]) -> Handler:
    changed = copy.copy(handler)
    changed.function = function
    return changed


def quiet_outbox(box: Outbox) -> Outbox:
    """Return an outbox on the same database objects that notifies no worker after a commit, and reports nothing."""
    is_elsewhere = box.inbox.database is not box.database
    return Outbox(
        settings_of_test(box.settings, {}),
        database=box.application_database,
        registry=box.registry,
        inbox_database=box.inbox.database if is_elsewhere else None,
        blocking_database=box.database if is_async(box.application_database) else None,
    )


def _hosts(box: Outbox) -> Collection[str]:
    """Return the hosts that an asynchronous database connects to with Python's sockets."""
    if not is_async(box.application_database):
        return ()
    hosts = box.database.connect_params.get("host") or "localhost"
    return str(hosts).split(",")
