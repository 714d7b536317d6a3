"""Claim due events when nothing else makes this worker process claim.

Wake-ups and sweeps travel through the broker, and sweeps come from the scheduler. With either of them gone, events must
be delivered all the same, only later. So every worker process has one thread that checks, about every
OUTBOX_SWEEP_SECONDS, whether a claim was started in this process since its last check. If none was, it asks the broker:

- the broker can't be reached: the thread claims. That repeats until the broker answers.
- the broker answers: perhaps no message was meant for this worker, since the workers of a fleet share the sweeps.
  With n live workers each gets one every n × OUTBOX_SWEEP_SECONDS. After twice that time without a claim the thread
  claims once. This covers a scheduler that is gone, a queue to which no process sends, and threads that are all busy.

In a fleet where sweeps arrive the thread claims nothing. It runs SQL once a minute, to refresh the record of this
worker's destinations.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any

import peewee

from outbox.core import Outbox
from outbox.delivery.deliver import DRAIN_SECONDS
from outbox.destinations.recorded_destinations import REFRESH_SECONDS
from outbox.dramatiq.broker_probe import BrokerProbe
from outbox.telemetry.process_reports import MISSED_REPORTS

logger = logging.getLogger(__name__)

# Checks come up to a quarter of OUTBOX_SWEEP_SECONDS early, at random: the workers of a fleet must not claim at once.
EARLIEST = 0.75
# While the broker can be reached: how many sweeps a worker may miss, and by how much more it waits at most, at random.
MISSED_SWEEPS = 2
LATEST = 1.5
# How long the number of live workers is taken as it was.
COUNT_SECONDS = 60.0


class FallbackPoller:
    """The thread of one worker process."""

    def __init__(self, box: Outbox, broker: Any) -> None:
        self._box = box
        self._probe = BrokerProbe(broker, box.settings.queue)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-fallback-poller", daemon=True)
        self._claims_seen = box.delivery.drain_limit.claims_started
        self._began_at = time.monotonic()
        self._delay = random.uniform(1.0, LATEST)  # noqa: S311  (nothing secret)
        self._workers = 1
        self._counted_at: float | None = None
        self._failing = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin no further claim; one that has begun is finished."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._wait():
            try:
                if self._is_needed():
                    self._claim()
            except Exception as error:  # the thread must survive any error: nothing else would claim
                self._failed(error)

    def _wait(self) -> bool:
        """Wait until it is time for the next check; return True if the worker stops.

        Meanwhile refresh this worker's record of its destinations: a worker without work still counts as running.
        """
        ends_at = time.monotonic() + self._box.settings.sweep_seconds * random.uniform(EARLIEST, 1.0)  # noqa: S311
        while (left := ends_at - time.monotonic()) > 0:
            if self._stopped.wait(min(left, REFRESH_SECONDS)):
                return True
            self._refresh_records()
        return self._stopped.is_set()

    def _refresh_records(self) -> None:
        try:
            self._box.recorder.keep_current()
        except Exception as error:  # the thread must survive any error
            logger.debug("Could not record the destinations: %s", error)

    def _is_needed(self) -> bool:
        """Return whether this worker must claim although no message asked it to."""
        limit = self._box.delivery.drain_limit
        broker_was_down = self._box.reporter.broker_error is not None
        seen, self._claims_seen = self._claims_seen, limit.claims_started
        if limit.claims_started != seen and not broker_was_down:
            return False
        error = self._probe.error()
        self._note_broker(error)
        return error is not None or self._has_missed_sweeps()

    def _has_missed_sweeps(self) -> bool:
        idle_seconds = time.monotonic() - max(self._began_at, self._box.delivery.drain_limit.claim_started_at)
        patience = MISSED_SWEEPS * self._box.settings.sweep_seconds * self._delay
        # Workers are counted only when their number decides: not while sweeps arrive.
        return idle_seconds >= patience and idle_seconds >= patience * self._live_workers()

    def _live_workers(self) -> int:
        publish_seconds = self._box.settings.publish_seconds
        if publish_seconds == 0:
            return 1  # workers don't report that they are running
        now = time.monotonic()
        if self._counted_at is None or now - self._counted_at >= COUNT_SECONDS:
            self._workers = max(1, self._count_workers(MISSED_REPORTS * publish_seconds + 1))
            self._counted_at = now
        return self._workers

    def _count_workers(self, seconds: float) -> int:
        dialect = self._box.dialect
        try:
            with dialect.connection():
                (number,) = dialect.run(dialect.statements.count_workers, (dialect.seconds(seconds),)).fetchone()
        except peewee.PeeweeException as error:
            logger.debug("Could not count the live workers: %s", error)
            return 1  # the claim itself shows whether the database can be used
        return int(number)

    def _claim(self) -> None:
        self._delay = random.uniform(1.0, LATEST)  # noqa: S311
        self._box.counters.add(polls=1)
        while self._drain_to_the_end_of_its_time() and not self._stopped.is_set():
            if self._box.reporter.broker_error is None:
                break  # the drain has sent a wake-up
        self._claims_seen = self._box.delivery.drain_limit.claims_started
        if self._failing:
            logger.info("Claiming due events works again.")
        self._failing = False

    def _drain_to_the_end_of_its_time(self) -> bool:
        """Drain; return whether the drain ended because its time was up, so that more is due."""
        began_at = time.monotonic()
        self._box.drain()
        return time.monotonic() - began_at >= DRAIN_SECONDS

    def _note_broker(self, error: str | None) -> None:
        """Log when the broker becomes unreachable and when it is back, and report it with this process."""
        reporter = self._box.reporter
        every = self._box.settings.sweep_seconds
        if error is not None and reporter.broker_error is None:
            logger.warning(
                "The broker can't be reached: %s. This worker claims due events every %g s until it can.",
                error,
                every,
            )
        elif error is None and reporter.broker_error is not None:
            logger.info("The broker can be reached again.")
        reporter.broker_error = error

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            logger.warning(
                "Could not claim due events: %s. The next try is in %g s; further failures are not logged.",
                str(error).strip(),
                self._box.settings.sweep_seconds,
            )
        self._failing = True
