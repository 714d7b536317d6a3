"""The lease keeper: one thread per process that renews the leases of all batches that the process has in flight.

Leases are renewed while work goes on, up to a limit, so that a long handler keeps its event and a dead worker loses it
soon. The lease keeper also ends a batch's time slice: after about a second the finished events are settled and those
that have not begun are given back, even if a handler is still busy with another event.

The lease keeper's own thread never waits for a lock. Otherwise one row that another transaction has locked, or a pool
without a free connection, would let the leases of all other events of the process expire. So the thread renews leases
through a connection of its own, with a statement that skips locked rows. Settling may have to wait for a locked row, so
it runs in another thread, one for each batch.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from outbox.background_thread import BackgroundThread
from outbox.delivery.batch import Batch
from outbox.errors import as_sentence
from outbox.settings import Settings
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.storage.peewee_database import is_private_to_a_thread
from outbox.storage.private_connection import can_be_private, private_connection

logger = logging.getLogger(__name__)

# A batch is meant to be about this much work. Events that have not begun by then are given back to other workers.
SLICE_SECONDS = 1.0
# How often a lease is renewed in its length: two renewals may fail before it expires.
RENEWALS = 3
# A thread without a batch waits this long for the next one, and then ends.
LINGER_SECONDS = 10.0


class LeaseKeeper:
    """Renews the leases of the batches that this process has in flight."""

    def __init__(
        self, dialect: Dialect, settings: Settings, *, slice_seconds: float = SLICE_SECONDS, renewals: int = RENEWALS
    ) -> None:
        self._dialect = dialect
        self._settings = settings
        self._slice_seconds = slice_seconds
        self._renewals = renewals
        # No other worker can take a lease over if no other thread sees the database.
        self._renews = not is_private_to_a_thread(dialect.database)
        self._thread = BackgroundThread("outbox-leases", self._run, after_fork=self._begin)
        self._begin()

    def _begin(self) -> None:
        """Set up the state without batches, in a forked child too: the parent renews the leases of its own batches."""
        self._batches: dict[Batch, float] = {}  # the batches, and when each needs attention next
        self._steps_running: set[tuple[Batch, str]] = set()
        self._wakes_at = 0.0

    def renew_while_in_flight(self, batch: Batch) -> None:
        """Renew the batch's lease until `stop_renewing`; call its hooks, `on_slice_end` and `on_overdue`, when due."""
        if not self._renews:
            return
        changed = self._thread.changed
        with changed:
            attention_at = self._batches[batch] = self._next_attention(batch, batch.started_at)
            self._thread.start()
            if attention_at < self._wakes_at:  # otherwise the thread wakes up early enough anyway
                changed.notify()

    def stop_renewing(self, batch: Batch) -> None:
        with self._thread.changed:
            self._batches.pop(batch, None)

    @property
    def _renew_every(self) -> float:
        return self._settings.lease_seconds / self._renewals

    def _next_attention(self, batch: Batch, now: float) -> float:
        """Return when the batch's lease is to be renewed or one of its hooks is to be called, whichever comes first."""
        limits = (self._slice_seconds, self._settings.max_run_seconds)
        return min([now + self._renew_every, *(at for limit in limits if (at := batch.started_at + limit) > now)])

    # The lease keeper's thread

    def _run(self, _stopped: threading.Event) -> None:
        with ExitStack() as connection:
            while self._has_batches():
                due = self._due_batches()
                with self._thread.fork_lock:
                    try:
                        self._attend(due, connection)
                    except Exception as error:
                        connection.close()
                        logger.warning("leases could not be renewed, trying again: %s", as_sentence(error))
                    if not self._batches:
                        connection.close()

    def _has_batches(self) -> bool:
        """Wait for a batch, if there is none, for LINGER_SECONDS; return False if none came: then this thread ends."""
        with self._thread.changed:
            self._wakes_at = math.inf  # a new batch must notify this thread
            return self._thread.wait_for_work(lambda: bool(self._batches), LINGER_SECONDS)

    def _due_batches(self) -> list[Batch]:
        """Return the batches that need attention now; if none does, wait until one will, and return none."""
        with self._thread.changed:
            now = time.monotonic()
            next_at = min(self._batches.values(), default=now)
            if next_at > now:
                self._wait(next_at - now)
                return []
            due = [batch for batch, attention_at in self._batches.items() if attention_at <= now]
            for batch in due:
                self._batches[batch] = self._next_attention(batch, now)
            return due

    def _attend(self, due: list[Batch], connection: ExitStack) -> None:
        """Renew the leases of these batches, and start their hooks. The connection stays open for the next call."""
        if not due:
            return
        now, max_run_seconds = time.monotonic(), self._settings.max_run_seconds
        try:
            if self._dialect.database.is_closed():
                connection.enter_context(self._connection())
            self.renew([batch for batch in due if now - batch.started_at < max_run_seconds])
        finally:
            for batch in due:
                if now - batch.started_at >= self._slice_seconds:
                    self._in_thread(batch, "end of the time slice", batch.on_slice_end)
                if now - batch.started_at >= max_run_seconds:
                    self._in_thread(batch, "interrupt", batch.on_overdue)

    def _wait(self, seconds: float) -> None:
        self._wakes_at = time.monotonic() + seconds
        self._thread.changed.wait(seconds)

    def _connection(self) -> AbstractContextManager[None]:
        database = self._dialect.database
        return private_connection(database) if can_be_private(database) else self._dialect.connection()

    def renew(self, batches: list[Batch]) -> None:
        """Extend the leases of all these batches, in one statement."""
        held = {batch: batch.held() for batch in batches}
        ids = [id for ids in held.values() for id in ids]
        if not ids:
            return
        dialect, lease_seconds = self._dialect, self._settings.lease_seconds
        sent_at = time.monotonic()
        leases = dialect.ids([batch.lease_id for batch in batches])
        parameters = (dialect.seconds(lease_seconds), dialect.ids(ids), leases)
        kept = {as_uuid(id) for (id,) in dialect.run(dialect.statements.renewed, parameters).fetchall()}
        for batch, ids in held.items():
            batch.renewed(sent_at + lease_seconds, lost=set(ids) - kept)

    # Threads that settle

    def _in_thread(self, batch: Batch, step: str, hook: Callable[[], None]) -> None:
        """Call the hook in a thread of its own, which may wait for a locked row, unless such a thread is running."""
        with self._thread.changed:
            if (batch, step) in self._steps_running:
                return
            self._steps_running.add((batch, step))
        try:
            threading.Thread(target=self._call, args=(batch, step, hook), name="outbox-closing", daemon=True).start()
        except RuntimeError as error:  # no memory for one more thread: the next renewal tries again
            logger.warning("could not start a thread that settles a batch, trying again: %s", error)
            self._step_ended(batch, step)

    def _call(self, batch: Batch, step: str, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception as error:
            logger.warning("a batch could not be settled, trying again: %s", as_sentence(error))
        finally:
            self._step_ended(batch, step)

    def _step_ended(self, batch: Batch, step: str) -> None:
        with self._thread.changed:
            self._steps_running.discard((batch, step))
