"""plan: decide which destinations are called with an event now, and update the progress of those that are not.

`dispatch` calls `plan` for each event of a batch, `plan_routed` for each job and run, and `plan_after_error` if one of
them raised an error. An event's progress has one entry for each destination: whether the destination has the event, how
many attempts were made, and when the next one is due. An entry is *open* until it is delivered, failed or retired.

The words for destinations, as this module uses them:

- *registered*: declared in the code of this process.
- *recorded*: written to the database by any worker of the deployment.
- *wanted*: registered or recorded, and one of its patterns matches the event's type. The wanted destinations are the
  event's *audience*.
- *absent*: wanted and recorded, but not registered in this process. Another worker has it.
- *unknown*: it has an entry in the event's progress, and is neither registered nor recorded.
- *retired*: no longer part of the deployment. It gets no more events.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from outbox.delivery import retry
from outbox.delivery.audience import Audience
from outbox.delivery.batch import Delivery
from outbox.delivery.context import DeliveryContext
from outbox.destinations.controls import Controls
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
    PAUSED,
    THROTTLED,
    ProgressEntry,
    not_registered,
    parse,
)


def plan(
    context: DeliveryContext, event: Event, audience: Audience, now: datetime
) -> tuple[Delivery, Sequence[Destination]]:
    """Return the event with its progress, and the destinations to call now."""
    destinations, names, absent, audience_id, recorded = audience
    if destinations and not absent and not event.from_expired_lease and not event.has_progress:
        # The usual case: no destination was called yet, and all wanted destinations are registered in this process.
        return Delivery(event, dict.fromkeys(names, NEW), awaited=names, audience=audience_id), destinations
    wanted = (*names, *absent)
    progress = parse(event.progress)
    if wanted:
        progress.pop(NO_DESTINATION, None)  # written by an earlier claim, when no destination wanted the event
    _match_destinations(recorded, progress, wanted)
    # An operator may have replayed the event to one destination only: then OTHER_DESTINATIONS says that the others have
    # it already.
    for name in wanted:
        progress.setdefault(name, progress.get(OTHER_DESTINATIONS, NEW))
    _try_sooner(context.audiences.recorded.controls, progress, now)
    delivery = Delivery(event, progress)
    if _has_killed_its_workers(event, progress):
        _fail_open_entries(delivery, wanted)
        return delivery, []
    _put_off_absent_destinations(context, delivery, audience, now)
    _put_off_unknown_destinations(context, delivery, wanted, now)
    if progress.keys() - {NO_DESTINATION} == set(names):
        # If all of them get the event, this is the set of destinations that have it, and `settle` need not look it up.
        delivery.audience = audience_id
    due = [destination for destination in destinations if progress[destination.name].is_due(now)]
    delivery.awaited = tuple(destination.name for destination in due)
    return delivery, due


def plan_routed(context: DeliveryContext, event: Event, now: datetime) -> tuple[Delivery, Sequence[Destination]]:
    """Return the plan for a job or a run. It has exactly one destination, which the router for its kind finds.

    Patterns are not used here: the arguments of a job must never reach a destination of events, such as a webhook.
    """
    destination, problem = _route(context, event)
    name = event.kind if destination is None else destination.name
    # Use the open entry whatever its name is: the broker may have had another name at an earlier attempt.
    entries = [entry for entry in parse(event.progress).values() if entry.is_open] if event.has_progress else []
    delivery = Delivery(event, {name: entries[0] if entries else NEW})
    if _has_killed_its_workers(event, delivery.progress):
        _fail_open_entries(delivery, (name,))
        return delivery, []
    if destination is None:
        _leave_to_another_worker(context, delivery, name, problem, now)
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


def _leave_to_another_worker(
    context: DeliveryContext, delivery: Delivery, name: str, problem: str, now: datetime
) -> None:
    """Put off a job or run whose destination this process does not have. It fails after OUTBOX_MAX_AGE_HOURS."""
    entry, event = delivery.progress[name], delivery.event
    outcome = Unavailable(problem, not_before=retry.absence_wait(entry.waits))
    paused = context.audiences.recorded.paused_for(name, now)
    later = retry.after(entry, outcome, now, event.max_attempts, context.settings, paused_seconds=paused)
    delivery.progress[name] = replace(later, reason=NOT_REGISTERED) if later.is_open else later
    delivery.deferred = True


def plan_after_error(context: DeliveryContext, event: Event, now: datetime, error: str) -> Delivery:
    """Return the plan for an event for which `plan` raised an error. The error counts as an attempt."""
    before = ProgressEntry(attempts=event.claims - 1)  # each earlier claim has ended with an error, too
    return Delivery(
        event, {NO_DESTINATION: retry.after(before, Retry(error), now, event.max_attempts, context.settings)}
    )


def _match_destinations(recorded: Snapshot, progress: dict[str, ProgressEntry], wanted: Collection[str]) -> None:
    """Match the entries that earlier attempts have written to the destinations that are wanted now.

    - If a wanted destination replaces another, it gets that destination's entry.
    - If a destination is retired, or its patterns no longer match the event, its open entry ends as retired.
    - If a destination is wanted again, its entry is opened again.
    """
    taken_over: set[str] = set()
    # Open entries come first: a destination that replaces several must get an open entry, not one that has ended.
    for name in sorted(progress, key=lambda name: not progress[name].is_open):
        if name in wanted:
            progress[name] = progress[name].reopened()
            continue
        successor = recorded.successor_of(name)
        if successor in wanted:
            before = progress.pop(name).reopened()
            if successor not in taken_over and progress.get(successor, NEW).is_untried:
                progress[successor] = before
                taken_over.add(successor)
        elif progress[name].is_open and name in recorded.by_name:  # not unknown, and not wanted
            progress[name] = progress[name].retired()


def _try_sooner(controls: Controls, progress: dict[str, ProgressEntry], now: datetime) -> None:
    """Make entries due that wait for a pause or a throttle which has ended, and all if the event was claimed too early.

    If it was claimed before any entry is due, `storage/sooner.py` has changed its due time: a destination is no longer
    paused, or can be reached again. It is tried wherever that does no harm. The due time says nothing if another entry
    is due, too.
    """
    is_early = not any(entry.is_due(now) for entry in progress.values())
    for name, entry in progress.items():
        if is_early or _has_ended(controls, name, entry, now):
            progress[name] = entry.due_sooner()


def _has_ended(controls: Controls, name: str, entry: ProgressEntry, now: datetime) -> bool:
    """Return whether the entry waits for the end of a pause or a throttle of its destination that is over."""
    if entry.reason == PAUSED:
        return controls.pause_of(name, now) is None
    return entry.reason == THROTTLED and controls.rate_of(name, now) is None


def _has_killed_its_workers(event: Event, progress: Mapping[str, ProgressEntry]) -> bool:
    """Return whether workers that had the event died, or lost its lease, as often as it may be attempted.

    The first worker claimed a whole batch, so another event may have killed it. After that the event was claimed alone.
    Therefore at least two workers must have died. Attempts that a handler's own `max_attempts` allows beyond the
    event's have ended without a death, so they don't count.
    """
    if not event.from_expired_lease:
        return False
    ended = max((entry.attempts for entry in progress.values() if entry.is_open), default=0)
    claims = event.claims if ended < event.max_attempts else event.claims - ended
    return claims > max(event.max_attempts, 2)


def _fail_open_entries(delivery: Delivery, wanted: Collection[str]) -> None:
    """Mark the event as failed at every destination that does not have it, so that it can't kill another worker."""
    event = delivery.event
    attempts = event.claims - 1
    error = f"the worker died, or lost its lease, during attempt {attempts}; not sent again"
    for name in {*(wanted or [NO_DESTINATION]), *delivery.progress}:
        if delivery.progress.get(name, NEW).is_open:
            delivery.progress[name] = ProgressEntry(state=FAILED, attempts=attempts, error=error)


def _put_off_absent_destinations(
    context: DeliveryContext, delivery: Delivery, audience: Audience, now: datetime
) -> None:
    """Put off the destinations that this process does not have, so that a worker that has them delivers the event."""
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


def _put_off_unknown_destinations(
    context: DeliveryContext, delivery: Delivery, wanted: Collection[str], now: datetime
) -> None:
    """Update the open entries of unknown destinations: they wait, since a worker that has them may still start.

    If no destination is wanted at all, the settings decide instead (`_outcome_without_destination`).
    """
    event, progress = delivery.event, delivery.progress
    unknown = [name for name, entry in progress.items() if entry.is_open and name not in wanted]
    if not wanted and not progress:
        unknown = [NO_DESTINATION]
        progress[NO_DESTINATION] = NEW
    for name in unknown:
        if progress[name].is_due(now):
            outcome = (
                Unavailable(not_registered(name)) if wanted else _outcome_without_destination(context, event, name)
            )
            paused = context.audiences.recorded.paused_for(name, now)
            entry = retry.after(
                progress[name], outcome, now, event.max_attempts, context.settings, paused_seconds=paused
            )
            progress[name] = replace(entry, reason=NOT_REGISTERED) if entry.is_open else entry


def _outcome_without_destination(context: DeliveryContext, event: Event, name: str) -> Outcome:
    """Return the outcome of an event that no destination of the deployment wants.

    `outbox.ignore` and OUTBOX_UNHANDLED decide. `name` is that of the entry: an unknown destination, or NO_DESTINATION.
    """
    if context.registry.ignores(event.event_type):
        return DELIVERED_OUTCOME
    # This process is a test or a script that delivers by hand, and it registers no handlers. A worker without handlers
    # must not end events unsent.
    if context.registry.is_empty and not context.is_worker():
        context.warn_once(
            "Nothing is registered in this process, so events are marked delivered without going anywhere. "
            "Import the module with your @outbox.handler functions first."
        )
        return DELIVERED_OUTCOME
    if name == NO_DESTINATION:
        error = (
            f"nothing here handles {event.event_type!r}: start the worker with the module that does "
            f"(outbox worker your.module), or declare outbox.ignore({event.event_type!r})"
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
