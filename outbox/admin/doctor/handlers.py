"""Whether there is somebody for every event that waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outbox.admin.doctor.check import Context, Finding, note, ok, problem
from outbox.destinations.event_filter import Pattern
from outbox.destinations.recorded_destinations import absent_names, read_recorded
from outbox.operations.count import COUNT_CAP
from outbox.storage.models import OutboxEvent
from outbox.storage.progress import NOBODY, NOT_REGISTERED, parse
from outbox.storage.status import is_unfinished

MOST_TOLD = 10

Wants = Callable[[str], bool]


def missing(context: Context) -> Iterator[Finding]:
    waiting, stranded = _pending(context)
    troubles = [*_unwanted(context, waiting), *_stranded(stranded)]
    yield from troubles[:MOST_TOLD]
    if not troubles:
        yield ok("Every event that waits has somebody who wants it." if waiting else "No event waits.")


def _unwanted(context: Context, waiting: Counter[str]) -> Iterator[Finding]:
    wants = list(_everybody(context))
    if not wants:
        if waiting:
            yield note(
                "Who wants which events is not known: no worker has told.",
                "Name the modules with your handlers: `outbox doctor -m your.module`.",
            )
        return
    more = "+" if waiting.total() >= COUNT_CAP else ""  # that many are looked at
    for event_type, events in waiting.items():
        if not any(want(event_type) for want in wants):
            yield problem(
                f"{events:,}{more} events of the type {event_type!r} wait, and nobody is known who wants them.",
                "Start a worker with the module that handles them: `outbox worker your.module`; if nobody should, "
                f"declare `outbox.ignore({event_type!r})`.",
            )


def _stranded(stranded: Mapping[str, Counter[str]]) -> Iterator[Finding]:
    """What workers have written into the events that they could do nothing with."""
    for name, types in stranded.items():
        told = ", ".join(
            f"{events:,} of the type {event_type!r}" for event_type, events in types.most_common(MOST_TOLD)
        )
        if name == NOBODY:
            yield problem(
                f"A worker knew nobody who wants some events: {told}.",
                "See that every worker loads all modules with handlers: `outbox worker your.module`; if nobody should "
                "have them, declare `outbox.ignore(…)`, or set OUTBOX_UNHANDLED=deliver.",
            )
        else:
            yield problem(
                f"Events wait for {name!r}, which a worker did not know: {told}.",
                f"See that every worker registers {name!r}: `outbox worker your.module`; if it was renamed, give it "
                f"its old name: `name={name!r}`; if it is gone for good: `outbox retire {name}`.",
            )


def _pending(context: Context) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """By type, how many events wait; and by destination, what it is that waits for one that is missing."""
    event = OutboxEvent
    query = (
        event.select(event.event_type, event.progress)
        .where(*is_unfinished())
        .order_by(event.next_attempt_at)
        .limit(COUNT_CAP)
    )
    absent = absent_names(read_recorded(context.box.dialect)[1], ())
    waiting: Counter[str] = Counter()
    stranded: dict[str, Counter[str]] = defaultdict(Counter)
    for row in context.box.dialect.select(query):
        waiting[row.event_type] += 1
        for name, entry in parse(row.progress).items():
            if name == NOBODY or entry.reason == NOT_REGISTERED or (entry.absences and name in absent):
                stranded[name][row.event_type] += 1
    return waiting, stranded


def _everybody(context: Context) -> Iterator[Wants]:
    registry = context.box.registry
    if not registry.is_empty:
        yield lambda event_type: bool(registry.wanting(event_type)) or registry.ignores(event_type)
    for process in context.overview.workers:
        yield from (_wants(each) for each in process.details.get("destinations", {}).values())
        yield from map(_matching, process.details.get("ignored", ()))


def _wants(published: Mapping[str, Any]) -> Wants:
    """One that does not say what it wants may want anything."""
    events = published.get("events")
    if events is None:
        return lambda _: True
    patterns = [Pattern(text) for text in events]
    return lambda event_type: any(pattern.matches(event_type) for pattern in patterns)


def _matching(text: str) -> Wants:
    return Pattern(text).matches
