"""plan: which destinations an event goes to now, and what is decided without asking any."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from outbox.delivery import retry
from outbox.delivery.audience import Audience
from outbox.delivery.batch import Delivery
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Destination
from outbox.destinations.recorded_destinations import Snapshot
from outbox.errors import Unavailable
from outbox.events.event import Event
from outbox.storage.models import FAILED
from outbox.storage.progress import NEW, NOBODY, NOT_REGISTERED, OTHERS, ProgressEntry, not_registered, parse

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")


def plan(box: Outbox, event: Event, audience: Audience, now: datetime) -> tuple[Delivery, Sequence[Destination]]:
    """Return the event with its progress so far, and the destinations to call now."""
    destinations, names, absent, id, recorded = audience
    if destinations and not absent and not event.from_expired_lease and not event.has_progress:
        # The usual: no destination has had it yet, and all that want it are registered here.
        return Delivery(event, dict.fromkeys(names, NEW), names, audience=id), destinations
    progress = parse(event.progress)
    if destinations or absent:
        progress.pop(NOBODY, None)
    _hand_over(recorded, progress, (*names, *absent))
    delivery = Delivery(event, progress)
    # The first claim was shared with a batch, and says nothing about a single event; only one alone does.
    if event.from_expired_lease and event.claims > max(event.max_attempts, 2):
        _fail_unsent(delivery, (*names, *absent))
        return delivery, []
    for name in (*names, *absent):
        progress.setdefault(name, progress.get(OTHERS, NEW))
    _leave_to_others(box, delivery, audience, now)
    _decide_for_the_missing(box, delivery, (*names, *absent), now)
    if progress.keys() - {NOBODY} == set(names):
        delivery.audience = id
    due = [destination for destination in destinations if progress[destination.name].is_due(now)]
    delivery.awaited = tuple(destination.name for destination in due)
    return delivery, due


def _hand_over(recorded: Snapshot, progress: dict[str, ProgressEntry], wanted: Collection[str]) -> None:
    """Bring what earlier plans have written to the destinations of today.

    A successor goes on where the one that it replaces stopped. What is open for a destination that is retired, or that
    no longer wants the type, ends. What had ended so, for one that is back, is open again.
    """
    handed_over: set[str] = set()
    # What is open comes first: one that replaces several makes up for those that had not ended.
    for name in sorted(progress, key=lambda name: not progress[name].is_open):
        if name in wanted:
            progress[name] = progress[name].reopened()
            continue
        heir = recorded.successor_of(name)
        if heir in wanted:
            before = progress.pop(name).reopened()
            if heir not in handed_over and _is_untried(progress.get(heir)):
                progress[heir] = before
                handed_over.add(heir)
        elif progress[name].is_open and name in recorded.by_name:
            progress[name] = progress[name].retired()


def _is_untried(entry: ProgressEntry | None) -> bool:
    return entry is None or (entry.is_open and entry.attempts == entry.waits == 0)


def _leave_to_others(box: Outbox, delivery: Delivery, audience: Audience, now: datetime) -> None:
    """Put off what this worker lacks and others have recorded: another worker delivers it."""
    for name in audience.absent:
        entry = delivery.progress[name]
        if entry.is_due(now):
            is_running = audience.recorded.is_running(name)
            delivery.progress[name] = retry.after_absence(entry, now, is_running=is_running)
            delivery.deferred = True
            box.warn_once(
                f"Events wait for the destination {name}, which other workers have recorded and this process does not "
                "have: a worker that has it delivers them. If it is gone for good: `outbox retire NAME`."
            )


def unplannable(box: Outbox, event: Event, now: datetime, error: str) -> Delivery:
    """An event that can't even be looked up: it costs an attempt, and in the end it fails."""
    before = ProgressEntry(attempts=event.claims - 1)
    return Delivery(event, {NOBODY: retry.after(before, Retry(error), now, event.max_attempts, box.settings)})


def _fail_unsent(delivery: Delivery, wanted: Collection[str]) -> None:
    """Its workers died, as often as it may be tried: whatever it does to them, it won't do it again."""
    event = delivery.event
    attempts = event.claims - 1
    error = f"the worker died, or lost its lease, during attempt {attempts}; not sent again"
    for name in {*(wanted or [NOBODY]), *delivery.progress}:
        if delivery.progress.get(name, ProgressEntry()).is_open:
            delivery.progress[name] = ProgressEntry(state=FAILED, attempts=attempts, error=error)


def _decide_for_the_missing(box: Outbox, delivery: Delivery, wanted: Collection[str], now: datetime) -> None:
    """Settle what is open for names that neither this process nor the table has, and events that no name wants."""
    event, progress = delivery.event, delivery.progress
    missing = [name for name, entry in progress.items() if entry.is_open and name not in wanted]
    if not wanted and not progress:
        missing = [NOBODY]
        progress[NOBODY] = ProgressEntry()
    for name in missing:
        if progress[name].is_due(now):
            outcome = Unavailable(not_registered(name)) if wanted else _outcome_for_missing(box, event, name)
            entry = retry.after(progress[name], outcome, now, event.max_attempts, box.settings)
            progress[name] = replace(entry, reason=NOT_REGISTERED) if entry.is_open else entry


def _outcome_for_missing(box: Outbox, event: Event, name: str) -> Outcome:
    """What the settings say about a type that no destination of the deployment wants."""
    if box.registry.ignores(event.event_type):
        return DELIVERED_OUTCOME
    if box.registry.is_empty and not box.is_worker:
        box.warn_once(
            "Nothing is registered in this process, so events are marked delivered without going anywhere. "
            "Import the module with your @outbox.handler functions first."
        )
        return DELIVERED_OUTCOME
    if name == NOBODY:
        error = (
            f"nothing here handles {event.event_type!r}: start the worker with the module that does "
            f"(dramatiq jobs your.module), or declare outbox.ignore({event.event_type!r})"
        )
    else:
        error = not_registered(name)
    match box.settings.unhandled:
        case "deliver":
            return DELIVERED_OUTCOME
        case "fail":
            return Failed(f"{error} (OUTBOX_UNHANDLED=fail)")
        case _:
            return Unavailable(error)
