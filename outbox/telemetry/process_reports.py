"""What a process tells about itself, every few seconds: that it is alive, what it delivers to, what it has counted.

It goes into the database, which every process has: so an operator sees all of them from anywhere, and the counts of
any number of processes on any number of hosts add up. What was counted since the last time is lost with a process
that is killed; nothing else goes by it.

A parcel of counts has a number, which its process's row remembers: one whose commit nobody has heard of is sent again,
and does nothing if it had arrived.
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from outbox.delivery.pool_size import PoolSize
from outbox.destinations.description import description
from outbox.destinations.registry import Registry
from outbox.settings import Settings
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.private_connection import can_have_one, private_connection
from outbox.telemetry.counters import Labels, Series
from outbox.text import clean_json, clean_label
from outbox.throttle.throttles import Throttles
from outbox.version import __version__

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

WORKER, SCHEDULER, CONSUMER, APPLICATION = "worker", "scheduler", "consumer", "application"
UP = "up"  # workers and a scheduler in one process

# A process that has missed this many of its turns is silent.
MISSED_TURNS = 3

# What the last hours are told by; the rest is of interest as a total only.
BY_THE_MINUTE = ("emitted", "delivered", "retried", "failed", "latency_bucket", "latency_sum")
# How long the end of a process waits for its last counts to be published, and between two tries.
STOP_SECONDS = 2.0
AGAIN_SECONDS = 0.1
# A process that is frozen in mid-transaction must not hold up the others.
LOCK_SECONDS = 2.0
# A fork waits this long for what is being published: its connection is none of the child's.
FORK_SECONDS = 1.0
# Names are the user's: what is longer is cut off.


@dataclass(frozen=True, slots=True)
class Parcel:
    """Counts on their way."""

    number: int
    counts: dict[Series, float]


class ProcessReporter:
    """Publishes one process's counts and its being there, from a thread of its own.

    It knows the outbox's parts, not the outbox: should that be dropped, the thread publishes the rest and ends.
    """

    def __init__(self, box: Outbox) -> None:
        self._settings = box.settings
        self._dialect = box.dialect
        self._counters = box.counters
        self._registry = box.registry
        self._throttles = box.throttles
        self._drain_failures = box.drain_failures
        # Set when a worker starts.
        self.pool_size: PoolSize | None = None
        self._start_afresh()
        _reporters.add(self)
        weakref.finalize(box, _abandon, weakref.ref(self)).atexit = False

    def _start_afresh(self) -> None:
        """Also what a fork leaves behind: neither the thread nor what the parent has yet to tell is the child's."""
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False
        self._number = 0
        self._unsure: Parcel | None = None
        # Why this process can't reach its broker; only workers know.
        self.broker_error: str | None = None
        self.kind: str | None = None
        self.id = str(uuid4())

    def start(self, kind: str = APPLICATION) -> None:
        """From now on, until `stop`; in an application's process the first emit does that."""
        if self.kind is None and self._is_first(kind):
            self._begin(kind)

    def _is_first(self, kind: str) -> bool:
        with self._lock:
            first = self.kind is None
            if first:
                self.kind = kind
            return first

    def _begin(self, kind: str) -> None:
        with self._lock:
            if self._settings.publish_seconds == 0 or not can_have_one(self._dialect.database):
                return
            self._stopped = threading.Event()
            arguments = (kind, self._stopped)
            thread = threading.Thread(target=self._run, args=arguments, name="outbox-reporter", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no room for one more, or the interpreter is ending
                logger.debug("nothing is published: %s", error)
            else:
                self._thread = thread
        _also_at_the_end_of_a_child()

    def stop(self) -> None:
        """Publish what is left, and be gone."""
        thread = self._told_to_stop()
        if thread is not None:
            thread.join(STOP_SECONDS)

    def _told_to_stop(self) -> threading.Thread | None:
        with self._lock:
            thread, self._thread = self._thread, None
            self.kind = None
            self._stopped.set()
            return thread

    def report_now(self) -> None:
        """Once, now, through the calling thread's connection; not inside a transaction, which may be rolled back."""
        with self._publishing, self._dialect.connection():
            self._report(self.kind)

    def _report(self, kind: str | None) -> None:
        who = (self.id, APPLICATION if kind is None else kind, socket.gethostname()[:255], os.getpid())
        details = details_of(self._settings, self._registry, self._throttles)  # asks Redis: not in a transaction
        details["drain_failures"] = self._drain_failures.report()
        details["pool"] = None if self.pool_size is None else self.pool_size.to_json()
        if self.broker_error is not None:
            details["broker_error"] = clean_label(self.broker_error)
        if self._unsure is not None:
            self._send(self._unsure, who, details)
        self._number += 1
        self._send(Parcel(self._number, self._counters.take()), who, details)

    def _send(self, parcel: Parcel, who: tuple[Any, ...], details: dict[str, Any]) -> None:
        self._unsure = parcel
        dialect = self._dialect
        recent = {series: count for series, count in parcel.counts.items() if series.name in BY_THE_MINUTE}
        with dialect.atomic():
            if dialect.name == "postgres":
                dialect.run("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_SECONDS:g}s",))
            row = (*who, json.dumps(clean_json(details) | {"parcel": parcel.number}), parcel.number)
            new = dialect.run(dialect.statements.process_seen, row).rowcount
            if new and parcel.counts:
                dialect.run(dialect.statements.totals, (_as_json(parcel.counts),))
            if new and recent:
                dialect.run(dialect.statements.minutes, (_as_json(recent),))
        self._unsure = None

    # In a thread of its own

    def _run(self, kind: str, stopped: threading.Event) -> None:
        if kind != APPLICATION:  # an application has just begun to write something of its own
            self._try(lambda: self._report(kind))
        while not stopped.wait(self._settings.publish_seconds):
            self._try(lambda: self._report(kind))
        ends_at = time.monotonic() + STOP_SECONDS
        while not self._try(lambda: self._report(kind)) and time.monotonic() < ends_at:
            time.sleep(AGAIN_SECONDS)
        if self._unsure is None:
            self._try(self._withdraw)

    def _withdraw(self) -> None:
        self._dialect.run(self._dialect.statements.process_gone, (self.id,))

    def _try(self, do: Callable[[], None]) -> bool:
        """Whether there is no use in trying again."""
        try:
            with self._publishing, private_connection(self._dialect.database):
                do()
        except Exception as error:  # whatever it is, nobody else may come to harm by it
            # Deliveries have the same trouble, and tell it.
            level = logging.DEBUG if self._failing else logging.INFO
            logger.log(level, "what this process has counted could not be published: %s", str(error).strip())
            self._failing = True
            return not isinstance(error, CONNECTION_ERRORS)
        self._failing = False
        return True


def details_of(settings: Settings, registry: Registry, throttles: Throttles) -> dict[str, Any]:
    """What a process knows that others may want to compare."""
    stuck = throttles.stuck()
    return {
        "version": __version__,
        "destinations": {name: description(each) for name, each in registry.destinations.items()},
        "ignored": [pattern.text for pattern in registry._ignored],
        "publish_seconds": settings.publish_seconds,
        "breakers": throttles.breakers(),
        "stuck": stuck,
        "ready": not any(each["all_places"] for each in stuck.values()),
        "settings": {name: getattr(settings, name) for name in ("queue", "lease_seconds", "max_run_seconds")},
    }


def labels_as_text(labels: Labels) -> str:
    """As they are kept: a JSON object, always in the same order."""
    if not labels:
        return ""
    return json.dumps({name: clean_label(value) for name, value in sorted(labels)}, separators=(",", ":"))


def labels_from_text(text: str) -> Labels:
    return tuple(sorted(json.loads(text).items())) if text else ()


def _as_json(counts: Mapping[Series, float]) -> str:
    """Series that have become one are added up: a statement may not touch a row twice."""
    rows: dict[tuple[str, str], float] = {}
    for series, count in counts.items():
        key = (series.name, labels_as_text(series.labels))
        if math.isfinite(count):
            rows[key] = rows.get(key, 0) + count
    listed: Iterable[dict[str, Any]] = (
        {"name": name, "labels": labels, "value": count} for (name, labels), count in rows.items()
    )
    return json.dumps(list(listed))


_reporters: weakref.WeakSet[ProcessReporter] = weakref.WeakSet()
_held: list[threading.Lock] = []


def _abandon(gone: weakref.ref[ProcessReporter]) -> None:
    reporter = gone()
    if reporter is not None:
        reporter._told_to_stop()


def _before_fork() -> None:
    _held.extend(
        reporter._publishing for reporter in list(_reporters) if reporter._publishing.acquire(timeout=FORK_SECONDS)
    )


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    _held.clear()
    for reporter in list(_reporters):
        reporter._start_afresh()
        reporter._counters.start_afresh()


def _at_exit() -> None:
    threads = [reporter._told_to_stop() for reporter in list(_reporters)]
    ends_at = time.monotonic() + STOP_SECONDS
    for thread in threads:
        if thread is not None:
            thread.join(max(0.0, ends_at - time.monotonic()))


def _also_at_the_end_of_a_child() -> None:
    """Children that multiprocessing has made end without running exit handlers, but for its own."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _at_exit, exitpriority=0)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
