"""The lease keeper: one thread per process that looks after all of its batches.

It renews their leases while work goes on, up to a limit, so that a long handler keeps its event and a dead worker
loses it soon. And when a batch has taken its time, it settles what is finished and gives back what has not begun,
although a handler may still be busy with one of the others.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbox.database import is_private_to_a_thread
from outbox.delivery.batch import Batch
from outbox.delivery.settle import close
from outbox.identifier import as_uuid

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# A batch is meant to be about this much work. What has not begun by then, others may take.
SLICE_SECONDS = 1.0
# Without a batch the thread waits this long for another, and then ends.
LINGER_SECONDS = 10.0


class LeaseKeeper:
    """Watches over the batches that this process holds."""

    def __init__(self, box: Outbox) -> None:
        self._box = box
        self._start_afresh()
        _keepers.add(self)

    def _start_afresh(self) -> None:
        self._changed = threading.Condition()
        self._batches: dict[Batch, float] = {}  # and when each is to be looked at next
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    @contextmanager
    def keeping(self, batch: Batch) -> Iterator[None]:
        """Look after the batch inside the block."""
        if is_private_to_a_thread(self._box.database):
            yield  # no other thread can see the database, so nobody can take the lease either
            return
        try:
            with self._changed:
                look_at = self._batches[batch] = self._next_look(batch, batch.started_at)
                if self._thread is None:
                    thread = threading.Thread(target=self._keep, name="outbox-leases", daemon=True)
                    thread.start()
                    self._thread = thread
                if look_at < self._wakes_at:  # else the thread need not hear of it now
                    self._changed.notify()
            yield
        finally:
            with self._changed:
                self._batches.pop(batch, None)

    @property
    def _renew_every(self) -> float:
        return self._box.settings.lease_seconds / 3

    def _keep(self) -> None:
        while self._has_work():
            try:
                self._look()
            except Exception as error:
                logger.warning("leases could not be looked after, trying again: %s", str(error).strip())

    def _has_work(self) -> bool:
        with self._changed:
            if not self._batches:
                self._wait(LINGER_SECONDS)
            if not self._batches:
                self._thread = None
            return bool(self._batches)

    def _look(self) -> None:
        """Wait until a batch wants looking at, and do so."""
        with self._changed:
            now = time.monotonic()
            next_at = min(self._batches.values(), default=now)
            if next_at > now:
                self._wait(next_at - now)
                return
            ripe = [batch for batch, due_at in self._batches.items() if due_at <= now]
            for batch in ripe:
                self._batches[batch] = self._next_look(batch, now)
        if not ripe:
            return
        with self._box.dialect.connection():
            self.renew([batch for batch in ripe if now - batch.started_at < self._box.settings.max_run_seconds])
            for batch in ripe:
                if now - batch.started_at >= SLICE_SECONDS:
                    self.end_slice(batch)
        for batch in ripe:
            if now - batch.started_at >= self._box.settings.max_run_seconds and batch.overdue is not None:
                batch.overdue()

    def _wait(self, seconds: float) -> None:
        self._wakes_at = time.monotonic() + seconds
        self._changed.wait(seconds)

    def _next_look(self, batch: Batch, now: float) -> float:
        moments = (SLICE_SECONDS, self._box.settings.max_run_seconds)
        return min([now + self._renew_every, *(at for moment in moments if (at := batch.started_at + moment) > now)])

    def renew(self, batches: list[Batch]) -> None:
        """Extend all these leases, in one statement."""
        held = {batch: batch.held() for batch in batches}
        ids = [id for ids in held.values() for id in ids]
        if not ids:
            return
        dialect, settings = self._box.dialect, self._box.settings
        sent_at = time.monotonic()
        leases = dialect.ids([batch.lease_id for batch in batches])
        parameters = (dialect.seconds(settings.lease_seconds), dialect.ids(ids), leases)
        kept = {as_uuid(id) for (id,) in dialect.run(dialect.statements.renewed, parameters).fetchall()}
        for batch, ids in held.items():
            batch.renewed(sent_at + settings.lease_seconds, lost=set(ids) - kept)

    def end_slice(self, batch: Batch) -> None:
        """The batch's time is up: settle what is finished, and let others have what has not begun."""
        if close(self._box, batch):
            self._box.bell.ring()


_keepers: weakref.WeakSet[LeaseKeeper] = weakref.WeakSet()


def _after_fork() -> None:
    for keeper in _keepers:
        keeper._start_afresh()


os.register_at_fork(after_in_child=_after_fork)
