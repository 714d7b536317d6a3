"""Decrypt the events of a batch before they are planned, and decide what happens to one that can't be decrypted.

If this process lacks the key, the event waits for a worker that has it. That costs no attempt and does not count
towards OUTBOX_MAX_AGE_HOURS, so no event fails because of it. If the stored text was changed, trying again can't help:
the event fails. In both cases no destination is called, and the other events of the batch go on.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from outbox.delivery import retry
from outbox.delivery.audience import Audience
from outbox.delivery.batch import Delivery
from outbox.delivery.context import DeliveryContext
from outbox.delivery.plan import plan
from outbox.destinations.outcome import Failed
from outbox.errors import DecryptionError, EncryptionKeyMissing
from outbox.events.event import Event
from outbox.storage.progress import MISSING_KEY, NEW, ProgressEntry, parse
from outbox.text import clean_error


def decrypt(context: DeliveryContext, event: Event) -> DecryptionError | None:
    """Decrypt an event; return the error if that is not possible."""
    try:
        event.decrypt(context.cipher)
    except EncryptionKeyMissing as error:
        context.warn_once(
            f"Events wait for a worker that can decrypt them: {error}. Start all workers with the key, or mark the "
            "events as failed with `outbox fail` if the key is lost."
        )
        return error
    except DecryptionError as error:
        return error
    return None


def plan_encrypted(
    context: DeliveryContext, event: Event, audience: Audience | None, now: datetime, problem: DecryptionError
) -> Delivery:
    """Return the plan for an event that can't be decrypted. It has an audience unless it is a job or a run."""
    if audience is not None:
        delivery, due = plan(context, event, audience, now)
        names = [destination.name for destination in due]
    else:
        # Its destination is not looked up: the headers say which broker a job is for.
        entries = [entry for entry in parse(event.progress).values() if entry.is_open]
        delivery, names = Delivery(event, {event.kind: entries[0] if entries else NEW}), [event.kind]
    for name in names:
        delivery.progress[name] = _next_entry(context, delivery.progress[name], event, now, problem)
    delivery.awaited = ()
    delivery.deferred = isinstance(problem, EncryptionKeyMissing)
    return delivery


def _next_entry(
    context: DeliveryContext, entry: ProgressEntry, event: Event, now: datetime, problem: DecryptionError
) -> ProgressEntry:
    if isinstance(problem, EncryptionKeyMissing):
        waiting = retry.after_absence(entry, now, is_running=False)
        return replace(waiting, error=clean_error(str(problem)), reason=MISSING_KEY)
    return retry.after(entry, Failed(str(problem)), now, event.max_attempts, context.settings)
