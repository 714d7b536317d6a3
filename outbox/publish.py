"""What a process tells about itself, every few seconds: that it is alive, what it delivers to, what it has counted.

It goes into the database, which every process has: so an operator sees all of them from anywhere, and the counts of
any number of processes on any number of hosts add up. What was counted since the last time is lost with a process
that is killed; nothing else goes by it.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import peewee

import outbox
from outbox.counters import Labels, Series
from outbox.database import CONNECTION_ERRORS, is_private_to_a_thread
from outbox.errors import SchemaError

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

WORKER, SCHEDULER, CONSUMER, APPLICATION = "worker", "scheduler", "consumer", "application"
UP = "up"  # workers and a scheduler in one process

# What the last hours are told by; the rest is of interest as a total only.
BY_THE_MINUTE = ("emitted", "delivered", "retried", "failed", "latency_bucket", "latency_sum")
STOP_SECONDS = 2.0


class Publisher:
    """Publishes one process's counts and its being there, from a thread of its own."""

    def __init__(self, box: Outbox) -> None:
        self._box = weakref.proxy(box)
        self._start_afresh()
        _publishers.add(self)

    def _start_afresh(self) -> None:
        """Also what a fork leaves behind: neither the thread nor what the parent has yet to tell is the child's."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False
        self.kind: str | None = None
        self.id = str(uuid4())

    def start(self, kind: str = APPLICATION) -> None:
        """From now on, until `stop`; in an application's process the first emit does that."""
        if self.kind is None and self._is_first(kind):
            self._begin()

    def _is_first(self, kind: str) -> bool:
        with self._lock:
            first = self.kind is None
            if first:
                self.kind = kind
            return first

    def _begin(self) -> None:
        with self._lock:
            if self._box.settings.publish_seconds == 0 or is_private_to_a_thread(self._box.database):
                return
            self._stopped.clear()
            thread = threading.Thread(target=self._run, name="outbox-publisher", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no room for one more, or the interpreter is ending
                logger.debug("nothing is published: %s", error)
            else:
                self._thread = thread

    def stop(self) -> None:
        """Publish what is left, and be gone."""
        with self._lock:
            thread, self._thread = self._thread, None
            self.kind = None
        if thread is not None:
            self._stopped.set()
            thread.join(STOP_SECONDS)

    def publish(self) -> None:
        """Once, now, through the calling thread's connection."""
        dialect = self._box.dialect
        taken = self._box.counters.take()
        try:
            with dialect.connection(), dialect.all_or_nothing():
                dialect.run(dialect.statements.process_seen, self._row())
                if taken:
                    dialect.run(dialect.statements.totals, (_as_json(taken),))
                recent = {series: count for series, count in taken.items() if series.name in BY_THE_MINUTE}
                if recent:
                    dialect.run(dialect.statements.minutes, (_as_json(recent),))
        except BaseException:
            self._box.counters.give_back(taken)
            raise

    def _run(self) -> None:
        try:
            if self.kind != APPLICATION:  # an application has just begun to write something of its own
                self._try(self.publish)
            while not self._stopped.wait(self._box.settings.publish_seconds):
                self._try(self.publish)
            self._try(self.publish)
            self._try(self._withdraw)
        except ReferenceError:
            pass  # the outbox itself is gone

    def _withdraw(self) -> None:
        with self._box.dialect.connection():
            self._box.dialect.run(self._box.dialect.statements.process_gone, (self.id,))

    def _try(self, do: Any) -> None:
        try:
            do()
        except (*CONNECTION_ERRORS, peewee.PeeweeException, SchemaError) as error:
            # Deliveries have the same trouble, and tell it.
            level = logging.DEBUG if self._failing else logging.INFO
            logger.log(level, "what this process has counted could not be published: %s", str(error).strip())
            self._failing = True
        else:
            self._failing = False

    def _row(self) -> tuple[Any, ...]:
        details = json.dumps(details_of(self._box))
        return (self.id, self.kind or APPLICATION, socket.gethostname()[:255], os.getpid(), details)


def details_of(box: Outbox) -> dict[str, Any]:
    """What a process knows that others may want to compare."""
    return {
        "version": outbox.__version__,
        "destinations": {
            name: {"kind": type(each).__name__, "seconds": getattr(each, "hold_seconds", None)}
            for name, each in box.registry.destinations.items()
        },
        "publish_seconds": box.settings.publish_seconds,
        "breakers": box.gates.report(),
        "settings": {name: getattr(box.settings, name) for name in ("queue", "lease_seconds", "max_run_seconds")},
    }


def labels_as_text(labels: Labels) -> str:
    """As they are kept: a JSON object, always in the same order."""
    return json.dumps(dict(sorted(labels)), separators=(",", ":")) if labels else ""


def labels_from_text(text: str) -> Labels:
    return tuple(sorted(json.loads(text).items())) if text else ()


def _as_json(counts: Mapping[Series, float]) -> str:
    rows: Iterable[dict[str, Any]] = (
        {"name": series.name, "labels": labels_as_text(series.labels), "value": count}
        for series, count in counts.items()
    )
    return json.dumps(list(rows))


_publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _after_fork() -> None:
    for publisher in _publishers:
        publisher._start_afresh()
        publisher._box.counters._start_afresh()


def _at_exit() -> None:
    for publisher in list(_publishers):
        publisher.stop()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
