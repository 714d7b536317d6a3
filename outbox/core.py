"""The class Outbox: it creates and connects the parts of an outbox, and has the methods of the public API.

The functions of the package, such as `outbox.emit`, call the methods of one Outbox (`outbox.current()`). A program may
create others. The parts (emitting, delivery, notifying, throttling, retention) don't import this module: Outbox passes
to each part what it needs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import entry_points
from typing import Any
from uuid import UUID

import peewee
from playhouse.pool import PooledDatabase

from outbox.configured_destinations import register_configured_destinations
from outbox.configured_dispatch import make_notifier
from outbox.delivery import deliver
from outbox.delivery.audience import Audiences
from outbox.delivery.batch_size import AdaptiveBatchSize
from outbox.delivery.call_transaction import CallTransaction
from outbox.delivery.context import DeliveryContext
from outbox.delivery.drain_failures import DrainFailures
from outbox.delivery.drain_limit import DrainLimit
from outbox.delivery.drain_thread import DrainThread
from outbox.delivery.failure_hooks import FailureHooks
from outbox.delivery.lease import LeaseKeeper
from outbox.delivery.overlooked_scan import OverlookedScan
from outbox.delivery.process_details import ProcessDetails
from outbox.delivery.quarantine import Quarantine
from outbox.delivery.recovered import Recovery
from outbox.delivery.scan_position import ScanPosition
from outbox.delivery.settled_signal import SettledSignal
from outbox.destinations.handler import Handler
from outbox.destinations.recorded_destinations import RecordedDestinations
from outbox.destinations.recorder import Recorder
from outbox.destinations.registry import Registry
from outbox.destinations.retirement import retire_absent
from outbox.destinations.router import Router
from outbox.encryption.cipher import make_cipher
from outbox.errors import NothingRegistered, SettingsError, as_sentence
from outbox.events import cancel
from outbox.events.cancel import HasActorName, HasMessageId
from outbox.events.declared_object import DeclaredObject
from outbox.events.emit import Emitter
from outbox.events.encrypted_row import decrypted
from outbox.events.new_event import NewEvent, OnDuplicate, Ordered, Unique, as_new_event
from outbox.inbox.inbox import Inbox
from outbox.operations import apply_action
from outbox.operations.archive import delete_ended
from outbox.settings import INLINE, Settings
from outbox.storage import retention, schema
from outbox.storage.async_database import awaitable
from outbox.storage.blocking_database import blocking_beside
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


class Outbox:
    """One outbox: a table in a database, and what this process does with it."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        database: peewee.Database | None = None,
        registry: Registry | None = None,
        inbox_database: peewee.Database | None = None,
        blocking_database: peewee.Database | None = None,
    ) -> None:
        self.settings = Settings.load() if settings is None else settings
        self.cipher = make_cipher(self.settings.encryption_keys)
        # What the application's transactions are on, and so where `emit` writes.
        self.application_database = self._open_database() if database is None else behind_proxy(database)
        self.emit_dialect: Dialect = dialect_of(self.application_database, self.settings.tables)
        # What everything else uses: the same database, with blocking connections.
        self.database = blocking_beside(self.application_database, blocking_database, self.settings)
        self.dialect: Dialect = self.emit_dialect
        if self.database is not self.application_database:
            self.dialect = dialect_of(self.database, self.settings.tables)
        self.registry = Registry() if registry is None else registry
        self.counters = Counters()
        inbox_dialect = self.dialect
        if inbox_database is not None:
            inbox_dialect = dialect_of(behind_proxy(inbox_database), self.settings.tables)
        is_apart = inbox_database is None and self.database is not self.application_database
        self.inbox = Inbox(inbox_dialect, self.counters, self.settings.inbox_hours, is_apart=is_apart)
        # The first reads the destinations that all workers have recorded. The second records those of this process.
        self.recorded_destinations = RecordedDestinations(self.dialect)
        self.recorder = Recorder(self.dialect, self.registry, self.recorded_destinations, self.warn_once)
        self.throttles = Throttles(self.settings)
        self.drain_failures = DrainFailures(self.counters)
        self.notifier = make_notifier(self.settings.dispatch, self)
        details = ProcessDetails(self.settings, self.registry, self.throttles, self.drain_failures, self.cipher)
        self.reporter = ProcessReporter(self.dialect, self.counters, self.settings.publish_seconds, details.collect)
        self.reporter.stop_with(self)
        self.emitter = Emitter(
            self.emit_dialect, self.settings, self.notifier, self.counters, self.reporter.start, cipher=self.cipher
        )
        self.name: str | None = None  # what `configure(name=…)` has called it; None for the default
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
        event_type: str | DeclaredObject | type[Any],
        payload: object = None,
        *,
        idempotency_key: str | Unique | None = None,
        on_duplicate: OnDuplicate = "raise",
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        tenant_id: str | None = None,
        max_attempts: int | None = None,
        deliver_after: datetime | timedelta | None = None,
        ordering_key: str | None = None,
        ordered: Ordered = False,
        hold: bool = False,
        subject: str | None = None,
    ) -> OutboxEvent:
        """Store an event in the caller's transaction: it is delivered if and only if the transaction commits.

        - `aggregate_type`, `aggregate_id`: what the event is about, such as "Order" and 42.
        - `event_type`: what happened, such as "order.placed"; or an object of a class that `outbox.event` has declared,
          which is the payload, too; or such a class, with its object or a dict as the payload.
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
        - `ordering_key`: each destination gets the events of one key in the order in which they were emitted.
        - `ordered`: True takes "{aggregate_type}:{aggregate_id}" as the ordering key. "strict" also locks the key until
          the transaction ends, so that transactions that run at the same time commit in the order of their events.
        - `hold`: with `deliver_after`, later events of the ordering key wait for this one. By default they don't.
        - `subject`: whom the data is about, such as "user:7": `outbox erase --subject user:7` erases it.
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
            ordering_key=ordering_key,
            ordered=ordered,
            hold=hold,
            subject=subject,
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

    aemit = awaitable(emit, "aemit")
    aemit_many = awaitable(emit_many, "aemit_many")

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
        return cancel.cancel(self.emit_dialect, id, event_type=event_type, actor=actor, idempotency_key=idempotency_key)

    acancel = awaitable(cancel, "acancel")

    def decrypted(self, event: OutboxEvent) -> OutboxEvent:
        """Return a copy of an event that a query has read, with its payload and headers in plain text.

        Raise EncryptionKeyMissing if this process lacks the key, or DecryptionError if the row was changed after it was
        encrypted. Don't save the copy: it would be stored in plain text.

        - `event`: the row. If it is not encrypted, it is returned itself.
        """
        return decrypted(event, self.cipher)

    # For workers, and for programs that deliver events themselves

    def process_pending_events(self, batch_size: int | None = None) -> dict[str, int]:
        """Deliver one batch of events in this thread.

        Return {"processed": how many events were claimed, "remaining": how many are still due, counted up to a limit}.
        """
        size = self.settings.batch_size if batch_size is None else batch_size
        if size < 1:
            raise SettingsError(f"batch_size must be at least 1, not {size}.")
        return deliver.process_pending_events(self.delivery, size)

    def drain(self, thread: DrainThread | None = None) -> int:
        """Deliver batch after batch, until one is not full or ten seconds are over; return how many were claimed."""
        return deliver.drain(self.delivery, thread=thread)

    def become_worker(self, modules: Sequence[str] = (), *, has_jobs: bool = False) -> None:
        """Make this process a worker (a process that was started to deliver events), and record its destinations.

        The worker program calls this after it has imported the application's modules, before the first claim. Raise
        NothingRegistered if no destination is registered, because then the process would end events without sending
        them. The error names the `modules`.
        """
        self.check_registered(modules, has_jobs=has_jobs)
        self.is_worker = True
        for name, destination in self.registry.destinations.items():
            for risk in getattr(destination, "risks", ()):
                self.warn_once(f"{name}: {risk}. Use an https:// URL.")
        try:
            self.recorder.keep_current()
        except CONNECTION_ERRORS as error:
            logger.warning(
                "Could not record the destinations: %s They are recorded before the first claim.", as_sentence(error)
            )

    def check_registered(self, modules: Sequence[str] = (), *, has_jobs: bool = False) -> None:
        """Raise NothingRegistered unless a destination is registered here, or an event type is ignored.

        A process that can enqueue jobs of the application needs no destination. Raise RegistrationError if a handler
        takes objects of a class, and its events can't be read as such.
        """
        if self.registry.is_empty and not has_jobs:
            raise NothingRegistered(modules)
        for destination in self.registry.destinations.values():
            if isinstance(destination, Handler):
                destination.check_classes()

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
        uses_threads = settings.dispatch != INLINE and not is_private_to_a_thread(self.database)
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
            cipher=self.cipher,
            drain_failures=self.drain_failures,
            failure_hooks=FailureHooks(self.database, runs_in_background=uses_threads),
            leases=LeaseKeeper(self.dialect, settings),
            stopping=self.stopping,
            router_of=self._router_of,
            is_worker=lambda: self.is_worker,
            warn_once=self.warn_once,
            start_reporting=self.reporter.start,
            overlooked_scan=OverlookedScan(settings.sweep_seconds),
            recovery=Recovery(),
            settled=SettledSignal(),
            uses_threads=uses_threads,
            call_transaction=CallTransaction(self.dialect),
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
        """Archive (if configured) and delete events that ended longer ago than the retention; stop after `seconds`.

        Return {"deleted": how many were deleted, "remaining": how many are left to delete, counted up to a limit}.
        """
        hours = self.settings.retention_hours if retention_hours is None else retention_hours
        directory = self.settings.archive_directory
        return delete_ended(self.dialect, directory, hours, stopping=self.stopping, seconds=seconds)

    def delete_old_records(self) -> None:
        """Delete old reports, counts, audit entries and attempts; retire destinations that no worker has any more."""
        retire_absent(self.dialect, self.settings)
        retention.delete_old_records(self.dialect, self.settings.retention_hours)

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
        return open_database(self.settings.database_url, prepared_statements=self.settings.prepared_statements)
