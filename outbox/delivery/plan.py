"""plan: decide which destinations are called with an event now, and settle what needs no call.

`dispatch` calls it for each event of a batch. An event's progress has one entry for each destination: whether it has
the event, how often it was tried, and when it is tried next.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from outbox.delivery import retry
from outbox.delivery.audience import Audience
from outbox.delivery.batch import Delivery
from outbox.delivery.context import DeliveryContext
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Destination
from outbox.destinations.recorded_destinations import Snapshot
from outbox.errors import SettingsError, Unavailable
from outbox.events.event import Event
from outbox.storage.models import FAILED
from outbox.storage.progress import (
    NEW,
    NO_DESTINATION,
    NOT_REGISTERED,
    OTHER_DESTINATIONS,
    ProgressEntry,
    not_registered,
    parse,
)


def plan(
    context: DeliveryContext, event: Event, audience: Audience, now: datetime
) -> tuple[Delivery, Sequence[Destination]]:
    """Return the event with its progress so far, and the destinations to call now."""
    destinations, names, absent, id, recorded = audience
    if destinations and not absent and not event.from_expired_lease and not event.has_progress:
        # The usual case: no destination was called yet, and all that want the event are registered in this process.
        return Delivery(event, dict.fromkeys(names, NEW), names, audience=id), destinations
    progress = parse(event.progress)
    if destinations or absent:
        progress.pop(NO_DESTINATION, None)
    _match_destinations(recorded, progress, (*names, *absent))
    delivery = Delivery(event, progress)
    if _has_killed_its_workers(event):
        _fail_unsent(delivery, (*names, *absent))
        return delivery, []
    for name in (*names, *absent):
        progress.setdefault(name, progress.get(OTHER_DESTINATIONS, NEW))
    _leave_to_other_workers(context, delivery, audience, now)
    _decide_for_unknown_destinations(context, delivery, (*names, *absent), now)
    if progress.keys() - {NO_DESTINATION} == set(names):
        delivery.audience = id
    due = [destination for destination in destinations if progress[destination.name].is_due(now)]
    delivery.awaited = tuple(destination.name for destination in due)
    return delivery, due


def plan_routed(context: DeliveryContext, event: Event, now: datetime) -> tuple[Delivery, Sequence[Destination]]:
    """Return the plan for a job or a run: it has exactly one destination, which the router of its kind finds.

    No pattern is matched here: the arguments of a job must never reach a destination of events, such as a webhook.
    """
    destination, problem = _route(context, event)
    name = event.kind if destination is None else destination.name
    # An earlier attempt may have written the entry under another name, such as that of a broker that was replaced.
    entries = [entry for entry in parse(event.progress).values() if entry.is_open] if event.has_progress else []
    delivery = Delivery(event, {name: entries[0] if entries else NEW})
    if _has_killed_its_workers(event):
        _fail_unsent(delivery, (name,))
        return delivery, []
    if destination is None:
        _wait_for_another_worker(context, delivery, name, problem, now)
        return delivery, []
    delivery.awaited = (name,)
    delivery.audience = context.audiences.id_of((name,))
    return delivery, (destination,)


def _route(context: DeliveryContext, event: Event) -> tuple[Destination | None, str]:
    """Return the destination of a job or a run, or None and the reason why this process does not have it."""
    router = context.router_of(event.kind)
    try:
        destination = None if router is None else router.destination_for(event)
    except SettingsError as error:  # the settings of this process are wrong; those of another worker may be right
        return None, f"waits for a worker with other settings: {error}"
    return destination, (
        f"waits for a worker that has {event.event_type!r}: start one with the module that declares it "
        "(outbox worker your.module)"
    )


def _wait_for_another_worker(
    context: DeliveryContext, delivery: Delivery, name: str, problem: str, now: datetime
) -> None:
    """Put off a job or run whose destination this process does not have. It fails after OUTBOX_MAX_AGE_HOURS."""
    entry, event = delivery.progress[name], delivery.event
    outcome = Unavailable(problem, not_before=retry.absence_wait(entry.waits))
    later = retry.after(entry, outcome, now, event.max_attempts, context.settings)
    delivery.progress[name] = replace(later, reason=NOT_REGISTERED) if later.is_open else later
    delivery.deferred = True


def plan_after_error(context: DeliveryContext, event: Event, now: datetime, error: str) -> Delivery:
    """Return the plan for an event for which `plan` raised an error. The error counts as an attempt."""
    before = ProgressEntry(attempts=event.claims - 1)
    return Delivery(
        event, {NO_DESTINATION: retry.after(before, Retry(error), now, event.max_attempts, context.settings)}
    )


def _match_destinations(recorded: Snapshot, progress: dict[str, ProgressEntry], wanted: Collection[str]) -> None:
    """Match the entries that earlier attempts have written to the destinations that want the event now.

    A destination takes over the entry of the one that it replaces. An open entry ends if its destination is retired, or
    no longer wants the type. It is opened again if its destination wants the event again.
    """
    taken_over: set[str] = set()
    # Open entries come first, so that a destination that replaces several takes over an entry that has not ended.
    for name in sorted(progress, key=lambda name: not progress[name].is_open):
        if name in wanted:
            progress[name] = progress[name].reopened()
            continue
        successor = recorded.successor_of(name)
        if successor in wanted:
            before = progress.pop(name).reopened()
            if successor not in taken_over and _is_untried(progress.get(successor)):
                progress[successor] = before
                taken_over.add(successor)
        elif progress[name].is_open and name in recorded.by_name:
            progress[name] = progress[name].retired()


def _is_untried(entry: ProgressEntry | None) -> bool:
    return entry is None or (entry.is_open and entry.attempts == entry.waits == 0)


def _has_killed_its_workers(event: Event) -> bool:
    """Return whether the workers that had the event died as often as it may be attempted.

    The first claim took a whole batch, so another event may have killed that worker. The later ones took this event
    alone.
    """
    return event.from_expired_lease and event.claims > max(event.max_attempts, 2)


def _fail_unsent(delivery: Delivery, wanted: Collection[str]) -> None:
    """Fail an event whose workers died as often as it may be attempted, so that it can't kill another one."""
    event = delivery.event
    attempts = event.claims - 1
    error = f"the worker died, or lost its lease, during attempt {attempts}; not sent again"
    for name in {*(wanted or [NO_DESTINATION]), *delivery.progress}:
        if delivery.progress.get(name, NEW).is_open:
            delivery.progress[name] = ProgressEntry(state=FAILED, attempts=attempts, error=error)


def _leave_to_other_workers(context: DeliveryContext, delivery: Delivery, audience: Audience, now: datetime) -> None:
    """Put off the destinations that only other workers have recorded, so that one of those workers delivers."""
    for name in audience.absent:
        entry = delivery.progress[name]
        if entry.is_due(now):
            is_running = audience.recorded.is_running(name)
            delivery.progress[name] = retry.after_absence(entry, now, is_running=is_running)
            delivery.deferred = True
            context.warn_once(
                f"Events wait for the destination {name}, which other workers have recorded and this process does not "
                f"have: a worker that has it delivers them. If {name} was renamed, register its successor with "
                f"replaces={name!r}; if it was removed, run `outbox retire {name}`."
            )


def _decide_for_unknown_destinations(
    context: DeliveryContext, delivery: Delivery, wanted: Collection[str], now: datetime
) -> None:
    """Decide what becomes of entries whose destination is neither registered nor recorded, and of unwanted events."""
    event, progress = delivery.event, delivery.progress
    missing = [name for name, entry in progress.items() if entry.is_open and name not in wanted]
    if not wanted and not progress:
        missing = [NO_DESTINATION]
        progress[NO_DESTINATION] = NEW
    for name in missing:
        if progress[name].is_due(now):
            outcome = Unavailable(not_registered(name)) if wanted else _outcome_of_unwanted(context, event, name)
            entry = retry.after(progress[name], outcome, now, event.max_attempts, context.settings)
            progress[name] = replace(entry, reason=NOT_REGISTERED) if entry.is_open else entry


def _outcome_of_unwanted(context: DeliveryContext, event: Event, name: str) -> Outcome:
    """Return what the settings say about a type that no destination of the deployment wants."""
    if context.registry.ignores(event.event_type):
        return DELIVERED_OUTCOME
    if context.registry.is_empty and not context.is_worker():
        context.warn_once(
            "Nothing is registered in this process, so events are marked delivered without going anywhere. "
            "Import the module with your @outbox.handler functions first."
        )
        return DELIVERED_OUTCOME
    if name == NO_DESTINATION:
        error = (
            f"nothing here handles {event.event_type!r}: start the worker with the module that does "
            f"(dramatiq jobs your.module), or declare outbox.ignore({event.event_type!r})"
        )
    else:
        error = not_registered(name)
    match context.settings.unhandled:
        case "deliver":
            return DELIVERED_OUTCOME
        case "fail":
            return Failed(f"{error} (OUTBOX_UNHANDLED=fail)")
        case _:
            return Unavailable(error)
