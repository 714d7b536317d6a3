"""Give a test a registry of its own, with which no event leaves the process: recorders replace destinations.

Handlers are not replaced. Webhooks, streams, Dramatiq actors and destinations of the application's own are replaced by
recorders with the same names and patterns. That also holds for destinations that are registered inside the block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dramatiq.brokers.stub import StubBroker

from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.destinations.handler import Handler
from outbox.destinations.order_policy import is_ordered
from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome
from outbox.destinations.protocol import Destination, Lease
from outbox.destinations.router import Router
from outbox.dramatiq.in_process_broker import InProcessBroker
from outbox.dramatiq.job import BrokerRole, broker_of
from outbox.dramatiq.job_destination import NAME, JobRouter
from outbox.dramatiq.known_brokers import broker_of_actor
from outbox.errors import RegistrationError
from outbox.events.event import Event
from outbox.events.event_types import event_types
from outbox.storage.models import JOB
from outbox.testing.deliver_here import Named, destination_names


class RecordingDestination:
    """Takes and keeps every event of the destination that it replaces."""

    def __init__(self, name: str, destination: Destination | None = None) -> None:
        self.name = name
        self.events = () if destination is None else destination.events
        self.replaces = getattr(destination, "replaces", ())
        self.ordered = destination is not None and is_ordered(destination)
        self.on_failed = getattr(destination, "on_failed", "block")
        # The function of the handler that it replaces, so that a test can name the recorder by it.
        self.function = getattr(destination, "function", None)
        self.taken: list[Event] = []

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Keep a copy of each event; yield that it was delivered."""
        for event in events:
            self.taken.append(copy.copy(event))
            yield event, DELIVERED_OUTCOME


class RecordingRouter:
    """Finds the broker of a job if it is a StubBroker, which a test can look into; otherwise a recorder."""

    def __init__(self, recorder: RecordingDestination) -> None:
        self._recorder = recorder
        self._router = JobRouter()

    def destination_for(self, event: Event) -> Destination | None:
        """Return the recorder, or the destination for the StubBroker."""
        role, description = broker_of(event)
        broker = broker_of_actor(event.event_type, description if role is BrokerRole.OTHER else None)
        is_stub = isinstance(broker, StubBroker) and not isinstance(broker, InProcessBroker)
        return self._router.destination_for(event) if is_stub else self._recorder


# The recorders of the `sandbox` blocks that are open, the innermost last.
_open: ContextVar[tuple[dict[str, RecordingDestination], ...]] = ContextVar("outbox_sandboxes", default=())


@contextmanager
def sandbox(*, record: Iterable[Named] = (), keep: Iterable[str] = ()) -> Iterator[None]:
    """Inside the block, deliver nothing out of this process; at its end, restore the registry.

    - `record`: handlers that are also replaced by recorders, because they send something themselves: their names, or
      their functions.
    - `keep`: names of destinations of your own that stay as they are.
    """
    box = current()
    recorders: dict[str, RecordingDestination] = {NAME: RecordingDestination(NAME)}
    substitute = _substitute(recorders, set(_names(box, record)), set(keep))
    routers: dict[str, Router] = {JOB: RecordingRouter(recorders[NAME])}
    token = _open.set((*_open.get(), recorders))
    try:
        with box.registry.separate(substitute), event_types.separate():
            box.registry.routers.update(routers)
            yield
    finally:
        _open.reset(token)


def recorded(destination: Named) -> list[Event]:
    """Return the events that a recorder of the innermost `sandbox` was given, in their order.

    - `destination`: the name of the replaced destination, or the function of the replaced handler. Jobs are recorded
      under "dramatiq", unless their broker is a StubBroker.
    """
    if not _open.get():
        raise RegistrationError("Nothing is recorded outside of outbox.testing.sandbox(), or the fixture outbox_box.")
    recorders = _open.get()[-1]
    for name, recorder in recorders.items():
        if destination == name or (recorder.function is not None and recorder.function is destination):
            return list(recorder.taken)
    shown = destination if isinstance(destination, str) else getattr(destination, "__qualname__", destination)
    raise RegistrationError(
        f"{shown!r} is not recorded. Recorded are: {', '.join(sorted(recorders))}. A handler is called, unless "
        "sandbox(record=[…]) names it."
    )


def _substitute(
    recorders: dict[str, RecordingDestination], record: Collection[object], keep: Collection[str]
) -> Callable[[Destination], Destination]:
    def substitute(destination: Destination) -> Destination:
        name = destination.name
        if isinstance(destination, RecordingDestination):  # of a sandbox around this one, or put there before
            return recorders.setdefault(name, destination)
        if name in keep or (isinstance(destination, Handler) and name not in record):
            return destination
        return recorders.setdefault(name, RecordingDestination(name, destination))

    return substitute


def _names(box: Outbox, named: Iterable[Any]) -> Iterator[str]:
    for each in (named,) if isinstance(named, str) or callable(named) else named:
        yield from destination_names(box, each)
