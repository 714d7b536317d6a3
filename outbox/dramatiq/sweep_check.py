"""The doctor's check of the way to the workers: send a sweep, and see whether a worker takes it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import dramatiq

from outbox.admin.doctor.check import Check, Context, Finding, ok, problem
from outbox.dramatiq import wakeup
from outbox.dramatiq.actor_names import DELIVER
from outbox.dramatiq.broker import find_broker
from outbox.dramatiq.broker_kind import is_in_process
from outbox.errors import SettingsError, describe
from outbox.settings import INLINE

# How long a worker may take: all its threads may be busy.
ANSWER_SECONDS = 10.0
POLL_SECONDS = 0.02


def look(context: Context) -> Iterator[Finding]:
    """Yield what became of a sweep; yield nothing if no broker connects processes, or if no worker is running."""
    settings = context.box.settings
    if settings.dispatch == INLINE or not context.overview.workers:
        return
    try:
        broker = find_broker(settings)
    except SettingsError as error:
        yield problem(str(error), "Do so for all processes, and restart them.")
        return
    if is_in_process(broker):
        return
    try:
        answered = is_answered(broker, settings.queue)
    except Exception as error:  # each broker has errors of its own
        yield problem(
            f"Could not send a sweep: {describe(error)}. Wake-ups of emitters and sweeps of the scheduler would not "
            "arrive either.",
            "Make sure that the broker can be reached from this machine.",
        )
        return
    if answered:
        yield ok("A worker took a sweep.")
    else:
        yield problem(
            f"A sweep was sent to the queue {settings.queue!r}, and no worker took it within {ANSWER_SECONDS:g} s, "
            "although workers are running: they are busy, or use another broker, namespace or queue.",
            "Start workers, scheduler and this command with the same OUTBOX_REDIS_URL, OUTBOX_NAMESPACE and "
            "OUTBOX_QUEUE; if a module of yours sets the broker, name it in all three (here: `-m your.broker`).",
        )


def is_answered(broker: dramatiq.Broker, queue: str) -> bool:
    """Send a sweep; return whether a worker takes a message to our actors in time."""
    flag = wakeup.flag_for(broker, queue)
    wakeup.send(broker, queue, DELIVER)
    sent = max(flag.unanswered(), 1)  # 0: a worker has taken it already
    ends_at = time.monotonic() + ANSWER_SECONDS
    while flag.unanswered() >= sent:
        if time.monotonic() > ends_at:
            return False
        time.sleep(POLL_SECONDS)
    return True


SWEEP = Check("sweep", look, ("database", "schema"))
