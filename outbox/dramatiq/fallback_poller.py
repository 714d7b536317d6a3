"""Claim due events when nothing else makes this worker process claim.

A worker claims when it receives a message: a wake-up from an emitting process, or a sweep, which the scheduler sends
every OUTBOX_SWEEP_SECONDS. Both need the broker. If the broker or the scheduler is down, events must still be
delivered, only later. So every worker process has one thread that checks, about every OUTBOX_SWEEP_SECONDS, whether a
claim was started in this process since the last check. If none was, the thread checks the broker:

- If the broker can't be reached, the thread claims. It does so at every check until the broker can be reached again.
- If the broker can be reached, there may simply have been no message for this worker, because all workers share the
  sweeps. With n live workers each gets one every n × OUTBOX_SWEEP_SECONDS. After twice that time without a claim the
  thread claims once. This covers a scheduler that is down, a queue to which no process sends, and a worker whose
  threads are all busy.

While sweeps arrive, the thread claims nothing. It only runs SQL once a minute, to refresh the record of this worker's
destinations.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import peewee

from outbox.core import Outbox
from outbox.delivery.deliver import DRAIN_SECONDS
from outbox.destinations.recorded_destinations import REFRESH_SECONDS
from outbox.dramatiq.broker_probe import BrokerProbe
from outbox.errors import as_sentence
from outbox.telemetry.process_reports import MISSED_REPORTS

logger = logging.getLogger(__name__)

# A check comes after OUTBOX_SWEEP_SECONDS times a random factor between this one and 1, so that the workers don't all
# claim at the same time.
SHORTEST_FACTOR = 0.75
# While the broker can be reached, a worker claims after it has missed this many sweeps. It waits longer by a random
# factor between 1 and LONGEST_FACTOR, for the same reason.
MISSED_SWEEPS = 2
LONGEST_FACTOR = 1.5
# How long the count of live workers is reused before they are counted again.
COUNT_SECONDS = 60.0


class FallbackPoller:
    """The polling thread of one worker process."""

    def __init__(self, box: Outbox, broker: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.box = self._box = box
        self._clock = clock
        self._probe = BrokerProbe(broker, box.settings.queue)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-fallback-poller", daemon=True)
        self._claims_seen = box.delivery.drain_limit.claims_started
        self._began_at = self._clock()
        self._delay_factor = random.uniform(1.0, LONGEST_FACTOR)  # noqa: S311  (nothing secret)
        self._workers = 1
        self._counted_at: float | None = None
        self._failing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end. It finishes a claim that has begun, and begins no other."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, for at most this many seconds."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._wait_for_next_check():
            try:
                if self._is_needed():
                    self._claim()
            except Exception as error:  # the thread must survive any error: nothing else would claim
                self._log_failure(error)

    def _wait_for_next_check(self) -> bool:
        """Wait until it is time for the next check; return True if the thread is to end.

        Meanwhile refresh the record of this worker's destinations, so that an idle worker still counts as running.
        """
        ends_at = self._clock() + self._box.settings.sweep_seconds * random.uniform(SHORTEST_FACTOR, 1.0)  # noqa: S311
        while (left := ends_at - self._clock()) > 0:
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
        """Return whether this thread must claim, because messages that make the worker claim may be missing."""
        limit = self._box.delivery.drain_limit
        broker_was_down = self._box.reporter.broker_error is not None
        seen, self._claims_seen = self._claims_seen, limit.claims_started
        if limit.claims_started != seen and not broker_was_down:
            return False
        error = self._probe.find_error()
        self._report_broker(error)
        return error is not None or self._has_missed_sweeps()

    def _has_missed_sweeps(self) -> bool:
        """Return whether the last claim of this process is longer ago than MISSED_SWEEPS allows."""
        idle_seconds = self._clock() - max(self._began_at, self._box.delivery.drain_limit.claim_started_at)
        allowed_seconds = MISSED_SWEEPS * self._box.settings.sweep_seconds * self._delay_factor
        # The first comparison avoids counting the workers while sweeps arrive.
        return idle_seconds >= allowed_seconds and idle_seconds >= allowed_seconds * self._live_workers()

    def _live_workers(self) -> int:
        """Return how many workers report that they are running, at least 1. The count may be a minute old."""
        publish_seconds = self._box.settings.publish_seconds
        if publish_seconds == 0:
            return 1  # reports are switched off, so the workers can't be counted
        now = self._clock()
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
            return 1  # if the database is down, the claim that follows fails and logs it
        return int(number)

    def _claim(self) -> None:
        self._delay_factor = random.uniform(1.0, LONGEST_FACTOR)  # noqa: S311
        self._box.counters.add(polls=1)
        while self._drain_until_time_is_up() and not self._stopped.is_set():
            if self._box.reporter.broker_error is None:
                break  # the drain has sent a wake-up, so a worker continues
        self._claims_seen = self._box.delivery.drain_limit.claims_started
        if self._failing:
            logger.info("Claiming due events works again.")
        self._failing = False

    def _drain_until_time_is_up(self) -> bool:
        """Drain: deliver batch after batch. Return True if the drain ended because its time was up: more may be due."""
        began_at = self._clock()
        self._box.drain()
        return self._clock() - began_at >= DRAIN_SECONDS

    def _report_broker(self, error: str | None) -> None:
        """Log when the broker becomes unreachable or reachable, and put the error into this process's report."""
        reporter = self._box.reporter
        every = self._box.settings.sweep_seconds
        if error is not None and reporter.broker_error is None:
            logger.warning(
                "The broker can't be reached: %s This worker claims due events every %g s until it can.",
                as_sentence(error),
                every,
            )
        elif error is None and reporter.broker_error is not None:
            logger.info("The broker can be reached again.")
        reporter.broker_error = error

    def _log_failure(self, error: Exception) -> None:
        if not self._failing:
            logger.warning(
                "Could not claim due events: %s The next try is in %g s; further failures are not logged.",
                as_sentence(error),
                self._box.settings.sweep_seconds,
            )
        self._failing = True
