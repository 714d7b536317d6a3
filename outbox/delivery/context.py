"""What claim, dispatch and settle work with, in one frozen object.

The Outbox builds it once and hands it to the functions of this folder, which don't know the Outbox itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from outbox.delivery.audience import Audiences
from outbox.delivery.batch_size import AdaptiveBatchSize
from outbox.delivery.call_transaction import CallTransaction
from outbox.delivery.drain_failures import DrainFailures
from outbox.delivery.drain_limit import DrainLimit
from outbox.delivery.failure_hooks import FailureHooks
from outbox.delivery.lease import LeaseKeeper
from outbox.delivery.overlooked_scan import OverlookedScan
from outbox.delivery.quarantine import Quarantine
from outbox.delivery.recovered import Recovery
from outbox.delivery.scan_position import ScanPosition
from outbox.delivery.settled_signal import SettledSignal
from outbox.destinations.outcome import Outcome
from outbox.destinations.recorder import Recorder
from outbox.destinations.registry import Registry
from outbox.destinations.router import Router
from outbox.encryption.cipher import Cipher
from outbox.events.event import Event
from outbox.notify.notifier import Notifier
from outbox.settings import Settings
from outbox.storage.dialect import Dialect
from outbox.telemetry.counters import Counters
from outbox.throttle.throttles import Throttles


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """How long the threads of a delivery wait."""

    # For the shares of a batch, in a drain. Most shares have ended by then, and are settled with one statement.
    drain_seconds: float = 0.1
    # For a connection, if the pool has none left.
    connection_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """The parts of one outbox that deliver its events."""

    dialect: Dialect
    settings: Settings
    counters: Counters
    notifier: Notifier
    # Which destinations there are, and how much each of them may be given now.
    registry: Registry
    recorder: Recorder
    audiences: Audiences
    throttles: Throttles
    # How many events to claim, from where in the index, whether alone in this process, by how many drains at the same
    # time, and how many drains have failed.
    batch_size: AdaptiveBatchSize
    scan_position: ScanPosition
    quarantine: Quarantine
    drain_limit: DrainLimit
    drain_failures: DrainFailures
    # Decrypts the events; None if this process has no keys.
    cipher: Cipher | None
    # Calls the hooks of `outbox.on_failure`.
    failure_hooks: FailureHooks
    # Renews the leases of the events that were claimed.
    leases: LeaseKeeper
    # Set when this process is about to end: events that have not begun are given back.
    stopping: threading.Event
    # Returns what finds the destinations of rows of a kind other than event; None if there is none for this kind.
    router_of: Callable[[str], Router | None]
    # Returns whether this process was started to deliver events.
    is_worker: Callable[[], bool]
    # Logs a warning, once for each text.
    warn_once: Callable[[str], None]
    # Starts the thread that reports on this process, unless it is running.
    start_reporting: Callable[[], None]
    # When to look again for events that nothing has released, and where to go on.
    overlooked_scan: OverlookedScan
    # The destinations that were reached again: events that wait for them are made due, some at a time.
    recovery: Recovery
    # Says that events with ordering keys were settled: others may wait for that.
    settled: SettledSignal
    # Whether destinations get a thread each. With inline delivery they don't: everything runs in the emitter's thread,
    # where a debugger can follow it. With SQLite in memory they don't either, because each thread would see a database
    # of its own.
    uses_threads: bool
    # What becomes of a transaction that a call leaves open.
    call_transaction: CallTransaction
    waits: WaitTimes = WaitTimes()
    # Called with each outcome of an event at a destination, before it is settled.
    on_outcome: Callable[[Event, str, Outcome], None] | None = None
    # Entered around the calls of destinations: code that they run finds the outbox whose events it handles.
    around_calls: Callable[[], AbstractContextManager[object]] = nullcontext
