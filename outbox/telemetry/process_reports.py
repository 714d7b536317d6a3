"""Report this process to the database every OUTBOX_PUBLISH_SECONDS: that it runs, its details, and what it has counted.

All processes report to the same database. So an operator sees them all from any host (`outbox status`, `outbox doctor`,
the dashboard), and the counts of all processes on all hosts add up. A process that is killed loses the counts since its
last report; only the metrics use them.

The counts of each report have a number, and the process's row stores the last number. If a connection breaks during a
commit, the process does not know whether the counts were stored. It sends them again with the same number, and they are
added only if the row does not have that number yet.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from outbox.background_thread import BackgroundThread
from outbox.errors import as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import Dialect
from outbox.storage.private_connection import can_be_private, private_connection
from outbox.telemetry.counters import Counters, Series
from outbox.telemetry.labels import labels_as_text
from outbox.text import clean_json, clean_label

logger = logging.getLogger(__name__)

# The kinds of processes.
WORKER, SCHEDULER, CONSUMER, APPLICATION = "worker", "scheduler", "consumer", "application"
UP = "up"  # workers and a scheduler in one process

# A process that has missed this many of its reports counts as gone.
MISSED_REPORTS = 3

# The series that are also stored by the minute, the quarter of an hour and the hour, for the dashboard's charts; the
# others are stored as totals only.
BY_THE_MINUTE = frozenset(
    (
        "emitted", "delivered", "retried", "failed", "latency_bucket", "latency_sum", "outcomes", "send_bucket",
        "jobs_stored", "jobs_enqueued", "jobs_failed", "types_delivered", "types_failed", "type_bucket",
    )
)  # fmt: skip
# The series that are stored by the minute only: there may be many of them, and no metric has them.
NOT_IN_TOTAL = frozenset(("types_delivered", "types_failed", "type_bucket"))
# How long a process that ends waits for its last report, and how long it pauses between two tries to write it.
STOP_SECONDS = 2.0
TRY_AGAIN_SECONDS = 0.1
# How long a report waits for a row that another process has locked: that process may be frozen inside its transaction.
LOCK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class NumberedCounts:
    """What was counted since the previous report, and the number of these counts."""

    number: int
    counts: dict[Series, float]


class ProcessReporter:
    """Writes the reports of one process, from a background thread.

    `details` returns the values for the column `details`. The reporter holds no reference to the outbox: if the
    application drops its last reference to the outbox, the thread writes the last report and ends.
    """

    def __init__(
        self,
        dialect: Dialect,
        counters: Counters,
        every_seconds: float,
        details: Callable[[], dict[str, Any]],
        *,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        self._dialect = dialect
        self._counters = counters
        self._every_seconds = every_seconds
        self._details = details
        self._lock_seconds = lock_seconds
        # The size of the worker's connection pool, and what the worker needs; set when a worker starts.
        self.pool_size: Mapping[str, int] | None = None
        # How far a consumer, or its group, is behind its stream or queue; the consumer sets it.
        self.stream: Mapping[str, Any] | None = None
        self._thread = BackgroundThread("outbox-reporter", self._run, after_fork=self._begin_in_child)
        self._begin()
        _reporters.add(self)

    def _begin(self) -> None:
        """Set up the state of a process that has not reported yet."""
        self._failing = False
        self._number = 0
        # The counts whose commit failed: the database may have stored them or not.
        self._unconfirmed: NumberedCounts | None = None
        # Why this process can't reach its broker; the fallback poller of a worker sets it.
        self.broker_error: str | None = None
        self.kind: str | None = None
        self.id = str(uuid4())

    def _begin_in_child(self) -> None:
        """Set up the state of a forked child: it reports nothing that the parent has counted."""
        self._begin()
        self._counters.reset()

    def start(self, kind: str = APPLICATION) -> None:
        """Report from now on, until `stop`. In an application's process the first emit calls this."""
        if self.kind is None and self._take_kind(kind):
            self._start_thread(kind)

    def _take_kind(self, kind: str) -> bool:
        with self._thread.changed:
            is_first = self.kind is None
            if is_first:
                self.kind = kind
            return is_first

    def _start_thread(self, kind: str) -> None:
        if self._every_seconds == 0 or not can_be_private(self._dialect.database):
            return
        try:
            self._thread.start(kind)
        except RuntimeError as error:
            logger.debug("This process is not reported: %s", error)
        _stop_with_multiprocessing_child()

    def stop(self) -> None:
        """Write the last report, and remove this process from the table; wait for that for STOP_SECONDS at most."""
        thread = self.tell_to_stop()
        if thread is not None:
            thread.join(STOP_SECONDS)

    def tell_to_stop(self) -> threading.Thread | None:
        """Tell the thread to write the last report and end; return the thread, so that the caller can join it."""
        with self._thread.changed:
            self.kind = None
            return self._thread.tell_to_stop()

    def stop_with(self, owner: object) -> None:
        """Tell the thread to write the last report and end when `owner` is garbage-collected."""
        weakref.finalize(owner, self.tell_to_stop).atexit = False

    def report_now(self) -> None:
        """Write one report through the calling thread's connection.

        Don't call it inside a transaction: if that is rolled back, the counts are lost.
        """
        with self._thread.fork_lock, self._dialect.connection():
            self._report(self.kind)

    def _report(self, kind: str | None) -> None:
        process = (self.id, APPLICATION if kind is None else kind, socket.gethostname()[:255], os.getpid())
        details = self._collect_details()  # before the transaction, because it may wait for Redis
        if self._unconfirmed is not None:
            self._write(self._unconfirmed, process, details)
        self._number += 1
        self._write(NumberedCounts(self._number, self._counters.take()), process, details)

    def _collect_details(self) -> dict[str, Any]:
        details = self._details() | {"pool": self.pool_size}
        if self.stream is not None:
            details["stream"] = self.stream
        if self.broker_error is not None:
            details["broker_error"] = clean_label(self.broker_error)
        return details

    def _write(self, new: NumberedCounts, process: tuple[Any, ...], details: dict[str, Any]) -> None:
        self._unconfirmed = new
        dialect = self._dialect
        recent = {series: count for series, count in new.counts.items() if series.name in BY_THE_MINUTE}
        in_total = {series: count for series, count in new.counts.items() if series.name not in NOT_IN_TOTAL}
        with dialect.atomic():
            if dialect.name == "postgres":
                dialect.run("SELECT set_config('lock_timeout', %s, true)", (f"{self._lock_seconds:g}s",))
            row = (*process, json.dumps(clean_json(details) | {"parcel": new.number}), new.number)
            is_new = dialect.run(dialect.statements.process_seen, row).rowcount
            if is_new and in_total:
                dialect.run(dialect.statements.totals, (_as_json(in_total),))
            if is_new and recent:
                dialect.run(dialect.statements.minutes, (_as_json(recent),))
        self._unconfirmed = None

    # In the thread

    def _run(self, stopped: threading.Event, kind: str) -> None:
        # In an application an emit has started this thread, inside a transaction that is still open: report later.
        if kind != APPLICATION:
            self._try(lambda: self._report(kind))
        while not stopped.wait(self._every_seconds):
            self._try(lambda: self._report(kind))
        ends_at = time.monotonic() + STOP_SECONDS
        while not self._try(lambda: self._report(kind)) and time.monotonic() < ends_at:
            time.sleep(TRY_AGAIN_SECONDS)
        if self._unconfirmed is None:
            self._try(self._remove)

    def _remove(self) -> None:
        self._dialect.run(self._dialect.statements.process_gone, (self.id,))

    def _try(self, do: Callable[[], None]) -> bool:
        """Call `do` with a private connection; return False if the database could not be reached."""
        with self._thread.fork_lock:  # a child must not share the connection either
            try:
                with private_connection(self._dialect.database):
                    do()
            except Exception as error:  # any error: a report must not harm the application
                self._failed(error)
                return not isinstance(error, CONNECTION_ERRORS)
            self._failing = False
            return True

    def _failed(self, error: Exception) -> None:
        # Only INFO, and only once, because deliveries have the same problem and log warnings.
        level = logging.DEBUG if self._failing else logging.INFO
        logger.log(
            level,
            "Could not write this process's report: %s Its counts are kept for the next report.",
            as_sentence(error),
        )
        self._failing = True


def _as_json(counts: Mapping[Series, float]) -> str:
    """Return the rows for the tables of counts, as a JSON array.

    Series whose labels have the same text are added up, because one statement must not write a row twice.
    """
    rows: dict[tuple[str, str], float] = {}
    for series, count in counts.items():
        key = (series.name, labels_as_text(series.labels))
        if math.isfinite(count):
            rows[key] = rows.get(key, 0) + count
    return json.dumps([{"name": name, "labels": labels, "value": count} for (name, labels), count in rows.items()])


_reporters: weakref.WeakSet[ProcessReporter] = weakref.WeakSet()


def _stop_at_exit() -> None:
    threads = [reporter.tell_to_stop() for reporter in list(_reporters)]
    ends_at = time.monotonic() + STOP_SECONDS
    for thread in threads:
        if thread is not None:
            thread.join(max(0.0, ends_at - time.monotonic()))


def _stop_with_multiprocessing_child() -> None:
    """Stop the reporters at the end of a child that multiprocessing has made: it runs no `atexit` handlers."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _stop_at_exit, exitpriority=0)


atexit.register(_stop_at_exit)
