"""Collect the events to try handlers with: from files, from sample functions, from the table, and generated ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from outbox.core import Outbox
from outbox.destinations.event_filter import Pattern
from outbox.destinations.handler import Handler
from outbox.errors import RegistrationError
from outbox.events.event import Event
from outbox.events.event_types import event_types, path_of
from outbox.storage.models import EVENT, OutboxEvent
from outbox.testing.proof.call_process import CallProcess
from outbox.testing.proof.call_work import on_copies
from outbox.testing.proof.copies import Copies
from outbox.testing.proof.errors import CannotProve
from outbox.testing.proof.event_fields import event_of_fields, event_of_row, fields_of
from outbox.testing.proof.made_up import made_up_event
from outbox.testing.proof.prove_handler import Prover
from outbox.testing.proof.trace_drivers import Watch

# How many of the newest events in the table are searched for one of each type.
NEWEST = 1_000

Sample = Callable[[], "Event[Any] | Iterable[Event[Any]]"]

# The functions that `sample` has registered, in their order.
_samples: list[Sample] = []


def sample(function: Sample) -> Sample:
    """Register a function that returns an event, or several, to try handlers with: for `outbox prove`.

    It is called on the copy of the database, so it can create the rows that the handlers need.

    - `function`: called without arguments; it returns events that `make_event` has made.
    """
    if not callable(function):
        raise RegistrationError("@outbox.testing.sample stands above a function, and takes no arguments.")
    if function not in _samples:
        _samples.append(function)
    return function


@dataclass
class Events:
    """The events to try handlers with, and where they come from."""

    given: list[tuple[str, Event]] = field(default_factory=list)
    recorded: dict[str, Event] = field(default_factory=dict)

    def of(self, handler: Handler, most: int) -> list[tuple[str, Event]]:
        """Return events of the types that the handler wants, the best source first; one of each recorded type."""
        patterns = [Pattern(each) for each in handler.events]

        def wants(name: str) -> bool:
            return any(pattern.matches(name) for pattern in patterns)

        found = [(source, event) for source, event in self.given if wants(event.event_type)]
        known = {event.event_type for _, event in found}
        recorded = [event for name, event in self.recorded.items() if wants(name) and name not in known]
        found += [("recorded", event) for event in recorded]
        known |= {event.event_type for event in recorded}
        for name in sorted({each.name for each in event_types.declared} - known):
            latest = event_types.latest(name)
            if wants(name) and latest is not None and (event := made_up_event(latest)) is not None:
                found.append(("made up", event))
        return found[:most]


def events_for(proving: Prover, given: list[Event], *, seconds: float) -> Events:
    """Collect the events. Sample functions write into the base, from which every other copy is made."""
    box = proving.box
    found = Events([("of a file", event) for event in given])
    for function in _samples:
        found.given += [("sample", event) for event in _run(box, proving.base, function, seconds)]
    with box.dialect.connection():
        newest = OutboxEvent.select().where(OutboxEvent.kind == EVENT).order_by(OutboxEvent.id.desc()).limit(NEWEST)
        for row in box.dialect.select(newest):
            if row.event_type not in found.recorded:
                found.recorded[row.event_type] = event_of_row(box, row)
    return found


def _run(box: Outbox, base: Copies, function: Sample, seconds: float) -> list[Event]:
    """Call a sample function in a process of its own, on the base."""

    def work(watch: Watch, outside: Callable[[str], None]) -> list[dict[str, Any]]:
        with on_copies(box, base, watch, outside, allow_calls=True):
            returned = function()
            events = [returned] if isinstance(returned, Event) else list(returned)
            return [fields_of(event) for event in events]

    with CallProcess(work) as process:
        process.wait(seconds)
    base.wait_until_unused()
    if not process.outcome.has_returned:
        error = process.outcome.error or f"it did not return within {seconds:g} seconds"
        raise CannotProve(f"The sample {path_of(function)} failed: {error} ({process.outcome.trace})")
    return [event_of_fields(fields) for fields in process.outcome.result]
