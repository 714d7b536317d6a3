"""Check that there is a destination for every event that waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outbox.admin.doctor.check import Context, Finding, note, ok, problem
from outbox.destinations.event_filter import Pattern
from outbox.destinations.recorded_destinations import absent_names, read_recorded
from outbox.operations.count import COUNT_CAP
from outbox.storage.models import EVENT, RUN, OutboxEvent
from outbox.storage.progress import NO_DESTINATION, NOT_REGISTERED, parse
from outbox.storage.status import is_unfinished

MOST_REPORTED = 10

# Says of an event type whether it is wanted.
Wants = Callable[[str], bool]


def missing_handlers(context: Context) -> Iterator[Finding]:
    """Check that a destination wants each waiting event, and that no event waits for a destination that is missing."""
    waiting, missing, without_worker = _count_waiting(context)
    findings = [
        *_without_destination(context, waiting),
        *_waiting_for_missing(missing),
        *_waiting_for_worker(without_worker),
    ]
    yield from findings[:MOST_REPORTED]
    if not findings:
        yield ok("A destination wants every event that waits." if waiting else "No event waits.")


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


def _waiting_for_worker(waiting: Counter[tuple[str, str]]) -> Iterator[Finding]:
    """Yield a problem for each actor or periodic function whose jobs or runs were claimed by a worker without it."""
    for (kind, name), rows in waiting.items():
        what = f"runs of the periodic job {name}" if kind == RUN else f"jobs for the actor {name}"
        yield problem(
            f"{rows:,} {what} wait for a worker that has it.",
            "Start every worker with the module that declares it: `outbox worker your.module`.",
        )


def _count_waiting(context: Context) -> tuple[Counter[str], dict[str, Counter[str]], Counter[tuple[str, str]]]:
    """Return how many events of each type wait, and for each missing destination, how many of each type wait for it.

    Jobs and runs are no events: also return how many of each kind and name wait for another worker.
    """
    event = OutboxEvent
    query = (
        event.select(event.kind, event.event_type, event.progress)
        .where(*is_unfinished())
        .order_by(event.next_attempt_at)
        .limit(COUNT_CAP)
    )
    absent = absent_names(read_recorded(context.box.dialect)[1], ())
    waiting: Counter[str] = Counter()
    missing: dict[str, Counter[str]] = defaultdict(Counter)
    without_worker: Counter[tuple[str, str]] = Counter()
    for row in context.box.dialect.select(query):
        if row.kind != EVENT:
            is_left = any(entry.reason == NOT_REGISTERED for entry in parse(row.progress).values())
            without_worker[row.kind, row.event_type] += int(is_left)
            continue
        waiting[row.event_type] += 1
        for name, entry in parse(row.progress).items():
            if name == NO_DESTINATION or entry.reason == NOT_REGISTERED or (entry.absences and name in absent):
                missing[name][row.event_type] += 1
    return waiting, missing, +without_worker  # without zeros


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
