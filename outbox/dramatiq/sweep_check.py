"""A check of `outbox doctor`: send a sweep, and see whether a worker takes it.

A sweep is a message that makes a worker deliver the events that are due. The scheduler sends one every
OUTBOX_SWEEP_SECONDS. If no worker takes it, wake-ups and sweeps don't reach the workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import dramatiq

from outbox.admin.doctor.check import Check, Context, Finding, ok, problem
from outbox.dramatiq import wakeup
from outbox.dramatiq.actor_names import DELIVER, actor_of
from outbox.dramatiq.broker import find_broker
from outbox.dramatiq.broker_kind import is_in_process
from outbox.errors import SettingsError, as_sentence, describe
from outbox.settings import INLINE

POLL_SECONDS = 0.02


def look(context: Context) -> Iterator[Finding]:
    """Yield whether a worker takes a sweep. Yield nothing if no broker connects processes, or no worker is running."""
    settings, seconds = context.box.settings, context.thresholds.sweep_seconds
    if settings.dispatch == INLINE or not context.overview.workers:
        return
    try:
        broker = find_broker(settings)
    except SettingsError as error:
        yield problem(str(error), "Correct this for all processes, and restart them.")
        return
    if is_in_process(broker):
        return
    try:
        taken = worker_takes_sweep(broker, settings.queue, seconds, context.box.name)
    except Exception as error:  # each broker has errors of its own
        yield problem(
            f"Could not send a sweep: {as_sentence(describe(error))} Wake-ups of emitters and sweeps of the "
            "scheduler would not arrive either.",
            "Make sure that the broker can be reached from this machine.",
        )
        return
    if taken:
        yield ok("A worker took a sweep.")
    else:
        yield problem(
            f"A sweep was sent to the queue {settings.queue!r}, but no worker took it within {seconds:g} s, "
            "although workers are running: they are busy, or use another broker, namespace or queue.",
            "Start workers, scheduler and this command with the same OUTBOX_REDIS_URL, OUTBOX_NAMESPACE and "
            "OUTBOX_QUEUE; if a module of yours sets the broker, name it in all three (here: `-m your.broker`).",
        )


def worker_takes_sweep(broker: dramatiq.Broker, queue: str, seconds: float, outbox: str | None = None) -> bool:
    """Send a sweep; return whether a worker takes a message for the outbox's actors within this many seconds."""
    flag = wakeup.flag_for(broker, queue)
    wakeup.send(broker, queue, actor_of(DELIVER, outbox))
    before = max(flag.unanswered(), 1)  # the count is 0 if a worker has taken the sweep already
    ends_at = time.monotonic() + seconds
    while flag.unanswered() >= before:
        if time.monotonic() > ends_at:
            return False
        time.sleep(POLL_SECONDS)
    return True


SWEEP = Check("sweep", look, ("database", "schema"))
