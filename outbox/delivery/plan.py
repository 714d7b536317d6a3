"""plan: which destinations an event goes to now, and what is decided without asking any."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from outbox import retry
from outbox.delivery.batch import Delivery
from outbox.destinations import Destination
from outbox.errors import Unavailable
from outbox.event import Event
from outbox.models import FAILED
from outbox.outcome import DELIVERED, Failed, Outcome, Retry
from outbox.retry import NEW, Standing

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# Stands in `progress` for the handler that is missing; it makes way for the first one that appears.
NOBODY = "(nobody)"


def plan(box: Outbox, event: Event, now: datetime) -> tuple[Delivery, Sequence[Destination]]:
    """The event with its standings so far, and the destinations to call now."""
    destinations, names = box.registry.audience(event.event_type)
    if destinations and not event.suspect and not event.has_progress:
        # The usual: nobody has had it yet, and everybody who wants it is here.
        return Delivery(event, dict.fromkeys(names, NEW), names), destinations
    standings = {name: Standing.from_json(entry) for name, entry in event.progress.items()}
    if destinations:
        standings.pop(NOBODY, None)
    delivery = Delivery(event, standings)
    # The first claim was shared with a batch, and says nothing about a single event; only one alone does.
    if event.suspect and event.claims > max(event.max_attempts, 2):
        _fail_unsent(delivery, destinations)
        return delivery, []
    _decide_for_the_missing(box, delivery, destinations, now)
    for destination in destinations:
        standings.setdefault(destination.name, standings.get(retry.OTHERS, NEW))
    due = [destination for destination in destinations if standings[destination.name].is_due(now)]
    delivery.awaited = tuple(destination.name for destination in due)
    return delivery, due


def unplannable(box: Outbox, event: Event, now: datetime, error: str) -> Delivery:
    """An event that can't even be looked up: it costs an attempt, and in the end it fails."""
    before = Standing(attempts=event.claims - 1)
    return Delivery(event, {NOBODY: retry.after(before, Retry(error), now, event.max_attempts, box.settings)})


def _fail_unsent(delivery: Delivery, destinations: tuple[Destination, ...]) -> None:
    """Its workers died, as often as it may be tried: whatever it does to them, it won't do it again."""
    event = delivery.event
    attempts = event.claims - 1
    error = f"the worker died, or lost its lease, during attempt {attempts}; not sent again"
    names = [destination.name for destination in destinations] or [NOBODY]
    for name in {*names, *delivery.standings}:
        if delivery.standings.get(name, Standing()).open:
            delivery.standings[name] = Standing(state=FAILED, attempts=attempts, error=error)


def _decide_for_the_missing(
    box: Outbox, delivery: Delivery, destinations: tuple[Destination, ...], now: datetime
) -> None:
    """Settle what nothing here can take: an event without a handler, or a destination that this worker lacks."""
    event, standings = delivery.event, delivery.standings
    known = {destination.name for destination in destinations}
    missing = [name for name, standing in standings.items() if standing.open and name not in known]
    if not destinations and not missing and not standings:
        missing = [NOBODY]
        standings[NOBODY] = Standing()
    for name in missing:
        if standings[name].is_due(now):
            outcome = _outcome_for_missing(box, event, name)
            standings[name] = retry.after(standings[name], outcome, now, event.max_attempts, box.settings)


def _outcome_for_missing(box: Outbox, event: Event, name: str) -> Outcome:
    if box.registry.ignores(event.event_type):
        return DELIVERED
    if box.registry.is_empty and not box.is_worker:
        box.warn_once(
            "Nothing is registered in this process, so events are marked delivered without going anywhere. "
            "Import the module with your @outbox.handler functions first."
        )
        return DELIVERED
    if name == NOBODY:
        error = (
            f"nothing here handles {event.event_type!r}: start the worker with the module that does "
            f"(dramatiq jobs your.module), or declare outbox.ignore({event.event_type!r})"
        )
    else:
        error = f"{name!r} is not registered in this worker"
    match box.settings.unhandled:
        case "deliver":
            return DELIVERED
        case "fail":
            return Failed(f"{error} (OUTBOX_UNHANDLED=fail)")
        case _:
            return Unavailable(error)
