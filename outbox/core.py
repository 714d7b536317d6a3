"""The class Outbox: it creates and connects the parts of an outbox, and has the methods of the public API.

The functions of the package, such as `outbox.emit`, call the methods of one Outbox (`outbox.current()`). A program may
create others. The parts (emitting, delivery, notifying, throttling, retention) don't import this module: Outbox passes
to each part what it needs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from importlib.metadata import EntryPoint, entry_points
from typing import Any
from uuid import UUID

import peewee
from playhouse.pool import PooledDatabase

from outbox.configured_destinations import register_configured_destinations
from outbox.delivery import deliver
from outbox.delivery.audience import Audiences
from outbox.delivery.batch_size import AdaptiveBatchSize
from outbox.delivery.context import DeliveryContext
from outbox.delivery.drain_failures import DrainFailures
from outbox.delivery.drain_limit import DrainLimit
from outbox.delivery.lease import LeaseKeeper
from outbox.delivery.process_details import ProcessDetails
from outbox.delivery.quarantine import Quarantine
from outbox.delivery.scan_position import ScanPosition
from outbox.destinations.recorded_destinations import RecordedDestinations
from outbox.destinations.recorder import Recorder
from outbox.destinations.registry import Registry
from outbox.destinations.retirement import retire_absent
from outbox.destinations.router import Router
from outbox.errors import NothingRegistered, SettingsError, as_sentence
from outbox.events import cancel
from outbox.events.cancel import HasActorName, HasMessageId
from outbox.events.emit import Emitter
from outbox.events.new_event import NewEvent, OnDuplicate, Unique, as_new_event
from outbox.inbox.inbox import Inbox
from outbox.notify.notifier import Notifier
from outbox.operations import apply_action
from outbox.settings import INLINE, OFF, Settings
from outbox.storage import retention, schema
from outbox.storage.connect import open_database
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import Dialect
from outbox.storage.dialects import dialect_of
from outbox.storage.models import OutboxEvent
from outbox.storage.peewee_database import behind_proxy, is_private_to_a_thread
from outbox.telemetry.counters import Counters
from outbox.telemetry.process_reports import ProcessReporter
from outbox.throttle.throttles import Throttles

logger = logging.getLogger(__name__)

# True while a thread delivers inline: a handler that emits an event must not start a second, nested delivery.
_delivering_inline: ContextVar[bool] = ContextVar("outbox_delivering_inline", default=False)


class Outbox:
    """One outbox: a table in a database, and what this process does with it."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        database: peewee.Database | None = None,
        registry: Registry | None = None,
        inbox_database: peewee.Database | None = None,
    ) -> None:
        self.settings = Settings.load() if settings is None else settings
        self.database = self._open_database() if database is None else behind_proxy(database)
        self.dialect: Dialect = dialect_of(self.database, self.settings.tables)
        self.registry = Registry() if registry is None else registry
        self.counters = Counters()
        inbox_dialect = self.dialect
        if inbox_database is not None:
            inbox_dialect = dialect_of(behind_proxy(inbox_database), self.settings.tables)
        self.inbox = Inbox(inbox_dialect, self.counters, self.settings.inbox_hours)
        # The first reads the destinations that all workers have recorded. The second records those of this process.
        self.recorded_destinations = RecordedDestinations(self.dialect)
        self.recorder = Recorder(self.dialect, self.registry, self.recorded_destinations, self.warn_once)
        self.throttles = Throttles(self.settings)
        self.drain_failures = DrainFailures(self.counters)
        self.notifier = self._make_notifier()
        details = ProcessDetails(self.settings, self.registry, self.throttles, self.drain_failures)
        self.reporter = ProcessReporter(self.dialect, self.counters, self.settings.publish_seconds, details.collect)
        self.reporter.stop_with(self)
        self.emitter = Emitter(self.dialect, self.settings, self.notifier, self.counters, self.reporter.start)
        # True in a process that was started to deliver events (`become_worker`). It records its destinations.
        self.is_worker = False
        # Set when this process is about to stop. Claimed events whose delivery has not begun are then released.
        self.stopping = threading.Event()
        self._warned: set[str] = set()
        self.delivery = self._make_delivery_context()
        # This comes last: if anything above raises, nothing has been registered.
        register_configured_destinations(self.settings, self.registry)

    # For the application

    def emit(
        self,
        aggregate_type: str,
        aggregate_id: object,
        event_type: str,
        payload: object = None,
        *,
        idempotency_key: str | Unique | None = None,
        on_duplicate: OnDuplicate = "raise",
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        tenant_id: str | None = None,
        max_attempts: int | None = None,
        deliver_after: datetime | timedelta | None = None,
    ) -> OutboxEvent:
        """Store an event in the caller's transaction: it is delivered if and only if the transaction commits.

        - `aggregate_type`, `aggregate_id`: what the event is about, such as "Order" and 42.
        - `event_type`: what happened, such as "order.placed".
        - `payload`: a JSON object; None becomes `{}`.
        - `idempotency_key`: by default "{aggregate_type}:{aggregate_id}", so that an event of this type can be emitted
          once for this aggregate. Pass `outbox.UNIQUE` for an event that may repeat, or a key of your own.
        - `on_duplicate`: what to do if an event with this type and key exists. "raise" raises DuplicateEvent, and the
          transaction can continue; "ignore" returns the existing event; "replace" gives it the new content and due time
          if it was never attempted, and otherwise stores a new event and frees the key of the old one.
        - `headers`: a JSON object for metadata; trace context is added.
        - `correlation_id`, `tenant_id`: by default those of `outbox.context`.
        - `max_attempts`: by default OUTBOX_MAX_ATTEMPTS.
        - `deliver_after`: a datetime with a timezone, or a timedelta from now.
        """
        event = NewEvent(
            aggregate_type,
            aggregate_id,
            event_type,
            payload,
            idempotency_key=idempotency_key,
            headers=headers,
            correlation_id=correlation_id,
            tenant_id=tenant_id,
            max_attempts=max_attempts,
            deliver_after=deliver_after,
        )
        return self.emitter.emit(event, on_duplicate)

    def emit_many(
        self,
        events: Iterable[NewEvent | Mapping[str, Any] | Sequence[Any]],
        *,
        on_duplicate: OnDuplicate = "raise",
    ) -> list[OutboxEvent]:
        """Store many events at once, all or none; return them in the order given."""
        return self.emitter.emit_many(map(as_new_event, events), on_duplicate)

    def cancel(
        self,
        id: UUID | str | OutboxEvent | HasMessageId | None = None,
        *,
        event_type: str | None = None,
        actor: HasActorName | str | None = None,
        idempotency_key: str | None = None,
    ) -> bool:
        """Take back an event or a job that was never attempted, in the caller's transaction; return whether it was.

        - `id`: the event, or its id; for a job the message that `outbox.send` returned, or its id.
        - `event_type`, `idempotency_key`: the type and key of an event, instead of `id`.
        - `actor`, `idempotency_key`: the actor (or its name) and the key of a job, instead of `id`.
        """
        return cancel.cancel(self.dialect, id, event_type=event_type, actor=actor, idempotency_key=idempotency_key)

    # For workers, and for programs that deliver events themselves

    def process_pending_events(self, batch_size: int | None = None) -> dict[str, int]:
        """Deliver one batch of events in this thread.

        Return {"processed": how many events were claimed, "remaining": how many are still due, counted up to a limit}.
        """
        size = self.settings.batch_size if batch_size is None else batch_size
        if size < 1:
            raise SettingsError(f"batch_size must be at least 1, not {size}.")
        return deliver.process_pending_events(self.delivery, size)

    def drain(self) -> int:
        """Deliver batch after batch, until one is not full or ten seconds are over; return how many were claimed."""
        return deliver.drain(self.delivery)

    def become_worker(self, modules: Sequence[str] = (), *, has_jobs: bool = False) -> None:
        """Make this process a worker (a process that was started to deliver events), and record its destinations.

        The worker program calls this after it has imported the application's modules, before the first claim. Raise
        NothingRegistered if no destination is registered, because then the process would end events without sending
        them. The error names the `modules`.
        """
        self.check_registered(modules, has_jobs=has_jobs)
        self.is_worker = True
        try:
            self.recorder.keep_current()
        except CONNECTION_ERRORS as error:
            logger.warning(
                "Could not record the destinations: %s They are recorded before the first claim.", as_sentence(error)
            )

    def check_registered(self, modules: Sequence[str] = (), *, has_jobs: bool = False) -> None:
        """Raise NothingRegistered unless a destination is registered here, or an event type is ignored.

        A process that can enqueue jobs of the application needs no destination.
        """
        if self.registry.is_empty and not has_jobs:
            raise NothingRegistered(modules)

    def _router_of(self, kind: str) -> Router | None:
        """Return the router for rows of this kind, or None.

        The registry has it, or an entry point in the group `outbox.routers` makes it: this module must not import a
        layer above it.
        """
        routers = self.registry.routers
        if kind not in routers:
            for point in entry_points(group="outbox.routers", name=kind):
                routers.setdefault(kind, point.load()())
        return routers.get(kind)

    def _make_delivery_context(self) -> DeliveryContext:
        settings = self.settings
        return DeliveryContext(
            dialect=self.dialect,
            settings=settings,
            counters=self.counters,
            notifier=self.notifier,
            registry=self.registry,
            recorder=self.recorder,
            audiences=Audiences(self.dialect, self.registry, self.recorded_destinations),
            throttles=self.throttles,
            batch_size=AdaptiveBatchSize(settings.batch_size),
            scan_position=ScanPosition(),
            quarantine=Quarantine(search_every=settings.lease_seconds),
            drain_limit=DrainLimit(settings.drains),
            drain_failures=self.drain_failures,
            leases=LeaseKeeper(self.dialect, settings),
            stopping=self.stopping,
            router_of=self._router_of,
            is_worker=lambda: self.is_worker,
            warn_once=self.warn_once,
            start_reporting=self.reporter.start,
            uses_threads=settings.dispatch != INLINE and not is_private_to_a_thread(self.database),
        )

    # Maintenance of the tables

    def create_tables(self) -> None:
        """Create the tables, or upgrade them. Several processes may call this at the same time."""
        self.upgrade_schema()

    def upgrade_schema(self) -> list[schema.Version]:
        """Create or upgrade the tables; return the schema versions that were applied."""
        return schema.upgrade(self.dialect, inbox_elsewhere=self.inbox.database is not self.database)

    def check_schema(self) -> None:
        """Raise SchemaError if the tables are missing, or older than this version needs."""
        schema.check(self.dialect)

    def cleanup_delivered_events(
        self, retention_hours: float | None = None, *, seconds: float | None = None
    ) -> dict[str, int]:
        """Delete events that ended longer ago than the retention. Stop after `seconds`, if given.

        Return {"deleted": how many were deleted, "remaining": how many are left to delete, counted up to a limit}.
        """
        hours = self.settings.retention_hours if retention_hours is None else retention_hours
        return retention.cleanup_delivered_events(self.dialect, hours, stopping=self.stopping, seconds=seconds)

    def delete_old_records(self) -> None:
        """Delete old process reports, counts by the minute and audit entries.

        Also retire destinations that no worker has had for a long time.
        """
        retire_absent(self.dialect, self.settings)
        retention.delete_old_records(self.dialect)

    def retry_failed_events(
        self,
        *,
        ids: Iterable[UUID | str] | None = None,
        event_type: str | None = None,
        actor: str | None = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
    ) -> int:
        """Make failed events and jobs pending again: all, or those that match. Return how many.

        An `actor` selects jobs; a type or an aggregate selects events. Their attempts are counted from 0 again.
        """
        return apply_action.retry_failed_events(
            self.dialect,
            self.notifier.notify_after_commit,
            ids=ids,
            event_type=event_type,
            actor=actor,
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            tenant_id=tenant_id,
            limit=limit,
        )

    def close(self) -> None:
        """Close the pooled connections that are not in use. Later calls open new ones."""
        if isinstance(self.database, PooledDatabase):
            self.database.close_idle()

    def warn_once(self, message: str) -> None:
        """Log a warning, unless the same text was logged before."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)

    def _open_database(self) -> peewee.Database:
        settings = self.settings
        return open_database(settings.database_url, prepared_statements=settings.prepared_statements)

    # Notifying workers after a commit

    def _make_notifier(self) -> Notifier:
        """Return the notifier for OUTBOX_DISPATCH.

        `outbox.dramatiq` is loaded through its entry point in the group `outbox.dispatch`, because this module must not
        import a layer above it.
        """
        name = self.settings.dispatch
        if name == OFF:
            return Notifier(None)
        if name == INLINE:
            return Notifier(self._deliver_inline, inline=True)
        known = {point.name: point for point in entry_points(group="outbox.dispatch")}
        if name not in known:
            choices = ", ".join(sorted({INLINE, OFF, *known}))
            raise SettingsError(f"OUTBOX_DISPATCH must be one of {choices}, not {name!r}.")
        plug_in = known[name]
        return Notifier(lambda: plug_in.load()(self), prepare=lambda: self._prepare_to_notify(plug_in))

    def _prepare_to_notify(self, plug_in: EntryPoint) -> None:
        """Import the plug-in and all that it needs. The notifier calls this at the first emit."""
        notify = plug_in.load()
        if hasattr(notify, "prepare"):
            notify.prepare(self)

    def _deliver_inline(self) -> None:
        """Deliver all due events in the thread that emitted, including events that handlers emit meanwhile."""
        if _delivering_inline.get():
            return
        token = _delivering_inline.set(True)
        seen: set[UUID] = set()
        try:
            while (batch := deliver.deliver_batch(self.delivery, self.settings.batch_size)) is not None:
                ids = {event.id for event in batch.events}
                if ids <= seen:
                    break  # every event was tried already and is due again: the emitter must not wait for its retries
                seen |= ids
        finally:
            _delivering_inline.reset(token)
