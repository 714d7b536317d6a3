"""The doctor's check of the way to the workers: it sends a sweep, and sees whether a worker answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import dramatiq

from outbox.admin.doctor.check import Check, Context, Finding, ok, problem
from outbox.core import INLINE
from outbox.dramatiq import wakeup
from outbox.dramatiq.broker import broker_in_use, is_in_process
from outbox.dramatiq.names import DELIVER
from outbox.errors import SettingsError, describe

# How long a worker may take to answer: all its threads may be busy.
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 0.02


def look(context: Context) -> Iterator[Finding]:
    """Yield what became of a sweep; nothing where no other process could be reached, or none is at work."""
    settings = context.box.settings
    if settings.dispatch == INLINE or not context.overview.workers:
        return
    try:
        broker = broker_in_use(settings)
    except SettingsError as error:
        yield problem(str(error), "Do so for all processes, and restart them.")
        return
    if is_in_process(broker):
        return
    try:
        answered = is_answered(broker, settings.queue)
    except Exception as error:  # each broker has errors of its own
        yield problem(
            f"A sweep could not be sent: {describe(error)}. Wake-ups of emitters and sweeps of the scheduler would not "
            "arrive either.",
            "See that the broker can be reached from here.",
        )
        return
    if answered:
        yield ok("A worker has answered a sweep.")
    else:
        yield problem(
            f"A sweep that was sent to the queue {settings.queue!r} was not answered by a worker within "
            f"{ANSWER_SECONDS:g} s, though workers are at work: they are busy, or use another broker, namespace or "
            "queue.",
            "Start workers, scheduler and this command with the same OUTBOX_REDIS_URL, OUTBOX_NAMESPACE and "
            "OUTBOX_QUEUE; if a module of yours sets the broker, name it in all three (here: `-m your.broker`).",
        )


def is_answered(broker: dramatiq.Broker, queue: str) -> bool:
    """Send a sweep; return whether a worker takes a message of ours in time."""
    flag = wakeup.flag_for(broker, queue)
    wakeup.send(broker, queue, DELIVER)
    sent = max(flag.unanswered(), 1)  # 0: it is answered already
    ends_at = time.monotonic() + ANSWER_SECONDS
    while flag.unanswered() >= sent:
        if time.monotonic() > ends_at:
            return False
        time.sleep(LOOK_SECONDS)
    return True


SWEEP = Check("sweep", look, ("database", "schema"))
