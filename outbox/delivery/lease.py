"""The lease keeper: one thread per process that looks after all of its batches.

It renews their leases while work goes on, up to a limit, so that a long handler keeps its event and a dead worker
loses it soon. And when a batch has taken its time, it has what is finished settled and what has not begun given back,
although a handler may still be busy with one of the others.

The keeper itself waits for nobody: one row that another transaction has locked, or a pool without a free connection,
must not end the leases of every other event of the process. So it renews through a connection of its own, in a
statement that skips locked rows; what settles may wait for such a row, and runs in a thread for each batch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from outbox.delivery.batch import Batch
from outbox.delivery.settle import close
from outbox.storage.ids import as_uuid
from outbox.storage.peewee_database import is_private_to_a_thread
from outbox.storage.private_connection import can_have_one, private_connection

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# A batch is meant to be about this much work. What has not begun by then, others may take.
SLICE_SECONDS = 1.0
# Without a batch the thread waits this long for another, and then ends.
LINGER_SECONDS = 10.0


Step = Callable[[Batch], None]


class LeaseKeeper:
    """Watches over the batches that this process holds."""

    def __init__(self, box: Outbox) -> None:
        self._box = box
        self._start_afresh()
        _keepers.add(self)

    def _start_afresh(self) -> None:
        self._changed = threading.Condition()
        self._batches: dict[Batch, float] = {}  # and when each is to be looked at next
        self._ending: set[tuple[Batch, Step]] = set()  # what threads of their own are doing
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
        with ExitStack() as connection:
            while self._has_work():
                try:
                    self._look(connection)
                except Exception as error:
                    connection.close()
                    logger.warning("leases could not be looked after, trying again: %s", str(error).strip())
                if not self._batches:
                    connection.close()

    def _has_work(self) -> bool:
        with self._changed:
            if not self._batches:
                self._wait(LINGER_SECONDS)
            if not self._batches:
                self._thread = None
            return bool(self._batches)

    def _look(self, connection: ExitStack) -> None:
        """Wait until a batch wants looking at, and do so; the connection is kept for the next time."""
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
        try:
            if self._box.database.is_closed():
                connection.enter_context(self._connection())
            self.renew([batch for batch in ripe if now - batch.started_at < self._box.settings.max_run_seconds])
        finally:
            for batch in ripe:
                if now - batch.started_at >= SLICE_SECONDS:
                    self._elsewhere(batch, self.end_slice)
                if now - batch.started_at >= self._box.settings.max_run_seconds:
                    self._elsewhere(batch, _end_run)

    def _connection(self) -> AbstractContextManager[None]:
        database = self._box.database
        return private_connection(database) if can_have_one(database) else self._box.dialect.connection()

    def _elsewhere(self, batch: Batch, step: Step) -> None:
        """Do this in a thread of its own, which may wait for a locked row; unless one is at it."""
        with self._changed:
            if (batch, step) in self._ending:
                return
            self._ending.add((batch, step))
        try:
            threading.Thread(target=self._end, args=(batch, step), name="outbox-closing", daemon=True).start()
        except RuntimeError as error:  # no room for one more: it is tried again with the next renewal
            logger.warning("a batch gets no thread that settles it: %s", error)
            self._ended(batch, step)

    def _end(self, batch: Batch, step: Step) -> None:
        try:
            step(batch)
        except Exception as error:
            logger.warning("a batch could not be settled, trying again: %s", str(error).strip())
        finally:
            self._ended(batch, step)

    def _ended(self, batch: Batch, step: Step) -> None:
        with self._changed:
            self._ending.discard((batch, step))

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
            self._box.notifier.notify()


def _end_run(batch: Batch) -> None:
    """The batch has taken too long: interrupt what goes on, and settle the rest."""
    if batch.overdue is not None:
        batch.overdue()


_keepers: weakref.WeakSet[LeaseKeeper] = weakref.WeakSet()


def _after_fork() -> None:
    for keeper in _keepers:
        keeper._start_afresh()


os.register_at_fork(after_in_child=_after_fork)
