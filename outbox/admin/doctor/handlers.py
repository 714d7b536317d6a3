"""Check that there is a destination for every event that waits, and a worker for every job."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from outbox.admin.doctor.check import Context, Finding, note, ok, problem
from outbox.destinations.event_filter import Pattern
from outbox.destinations.recorded_destinations import absent_names, read_recorded
from outbox.operations.count import COUNT_CAP, Count
from outbox.storage.models import EVENT, JOB, OutboxEvent
from outbox.storage.progress import NO_DESTINATION, NOT_REGISTERED, parse
from outbox.storage.status import is_unfinished

MOST_REPORTED = 10

# Returns whether an event type is wanted.
Wants = Callable[[str], bool]


class _Waiting(NamedTuple):
    """What waits: how many rows, by event type, by destination and type, or by kind and name."""

    # Events, by type.
    events: Counter[str]
    # By each destination that a worker did not have: the events that wait for it, by type.
    missing: dict[str, Counter[str]]
    # Jobs and runs, by kind and name; and those of them for which no worker was found.
    others: Counter[tuple[str, str]]
    others_without_worker: Counter[tuple[str, str]]


def missing_handlers(context: Context) -> Iterator[Finding]:
    """Check that a destination wants each waiting event, and that no event waits for a destination that is missing.

    No destination wants a job: it waits for a worker that has its actor, or a broker like the sender's.
    """
    waiting = _count_waiting(context)
    findings = [
        *_without_destination(context, waiting.events),
        *_waiting_for_missing(waiting.missing),
        *_without_worker(waiting.others_without_worker),
    ]
    yield from findings[:MOST_REPORTED]
    if findings:
        return
    if waiting.others:
        yield ok("A destination wants every event that waits, and no job waits for a worker that has its actor.")
    else:
        yield ok("A destination wants every event that waits." if waiting.events else "No event waits.")


def _without_destination(context: Context, waiting: Counter[str]) -> Iterator[Finding]:
    wants = list(_wanted_types(context))
    if not wants:
        if waiting:
            yield note(
                "It is not known which events are wanted: no worker has reported its destinations.",
                "Name the modules with your handlers: `outbox doctor -m your.module`.",
            )
        return
    more = "+" if waiting.total() >= COUNT_CAP else ""  # the query reads no more than that
    for event_type, events in waiting.items():
        if not any(want(event_type) for want in wants):
            yield problem(
                f"{events:,}{more} events of the type {event_type!r} wait, and no known destination wants them.",
                "Start a worker with the module that handles them: `outbox worker your.module`. If they need no "
                f"handler, declare `outbox.ignore({event_type!r})`.",
            )


def _waiting_for_missing(missing: Mapping[str, Counter[str]]) -> Iterator[Finding]:
    """Yield a problem for each destination that a worker did not have. Workers store that in the column `progress`."""
    for name, types in missing.items():
        counts = ", ".join(
            f"{events:,} of the type {event_type!r}" for event_type, events in types.most_common(MOST_REPORTED)
        )
        if name == NO_DESTINATION:
            yield problem(
                f"A worker has claimed events that no destination wants: {counts}.",
                "Make sure that every worker imports all modules with handlers: `outbox worker your.module`. If the "
                "events need no handler, declare `outbox.ignore(…)`, or set OUTBOX_UNHANDLED=deliver.",
            )
        else:
            yield problem(
                f"Events wait for the destination {name!r}, which a worker did not have: {counts}.",
                f"Make sure that every worker registers {name!r}: `outbox worker your.module`. If it was renamed, give "
                f"it its old name: `name={name!r}`. If it was removed, run `outbox retire {name}`.",
            )


def _without_worker(waiting: Counter[tuple[str, str]]) -> Iterator[Finding]:
    """Yield a problem for each actor and periodic function that was missing in the workers that claimed its rows."""
    for (kind, name), number in waiting.most_common(MOST_REPORTED):
        if kind == JOB:
            yield problem(
                f"{Count(number).of(kind)} of the actor {name!r} {_wait(number)}: the worker that claimed them has "
                "neither this actor nor a broker like that of the sender.",
                "Start a worker with the module that declares the actor: `outbox worker your.module`. If the actor was "
                f"removed or renamed, run `outbox fail --actor {shlex.quote(name)}`.",
            )
        else:
            yield problem(
                f"{Count(number).of(kind)} of the periodic job {name!r} {_wait(number)}: the worker that claimed them "
                "has no such function.",
                "Start a worker with the module that declares it: `outbox worker your.module`. If it was removed, run "
                f"`outbox fail --kind run --type {shlex.quote(name)}`.",
            )


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _count_waiting(context: Context) -> _Waiting:
    event = OutboxEvent
    query = (
        event.select(event.event_type, event.kind, event.progress)
        .where(*is_unfinished())
        .order_by(event.next_attempt_at)
        .limit(COUNT_CAP)
    )
    absent = absent_names(read_recorded(context.box.dialect)[1], ())
    waiting = _Waiting(Counter(), defaultdict(Counter), Counter(), Counter())
    for row in context.box.dialect.select(query):
        entries = parse(row.progress)
        if row.kind != EVENT:
            waiting.others[row.kind, row.event_type] += 1
            if any(entry.reason == NOT_REGISTERED for entry in entries.values()):
                waiting.others_without_worker[row.kind, row.event_type] += 1
            continue
        waiting.events[row.event_type] += 1
        for name, entry in entries.items():
            if name == NO_DESTINATION or entry.reason == NOT_REGISTERED or (entry.absences and name in absent):
                waiting.missing[name][row.event_type] += 1
    return waiting


def _wanted_types(context: Context) -> Iterator[Wants]:
    """Yield a predicate for each rule by which a type is wanted or ignored, here or in a running worker."""
    registry = context.box.registry
    if not registry.is_empty:
        yield lambda event_type: bool(registry.wanting(event_type)) or registry.ignores(event_type)
    for process in context.overview.workers:
        yield from (_wants(each) for each in process.details.get("destinations", {}).values())
        yield from map(_matches, process.details.get("ignored", ()))


def _wants(reported: Mapping[str, Any]) -> Wants:
    """Return a predicate for the types that a destination wants. If it reports no types, it wants any type."""
    events = reported.get("events")
    if events is None:
        return lambda _: True
    patterns = [Pattern(text) for text in events]
    return lambda event_type: any(pattern.matches(event_type) for pattern in patterns)


def _matches(text: str) -> Wants:
    return Pattern(text).matches
