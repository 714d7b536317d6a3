"""Settings that are allowed, and that one may come to regret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.admin.durations import format_seconds
from outbox.delivery.retry import JITTER
from outbox.destinations.description import description
from outbox.settings import Settings

SHORTEST_LEASE = 5.0  # seconds
SMALLEST_BATCH = 10
SHORTEST_OUTAGE = 1.0  # hours
SHORTEST_RETENTION = 24.0  # hours
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def look(context: Context) -> Iterator[Finding]:
    troubles = [finding for rule in RULES for finding in rule(context)]
    yield from troubles
    if not troubles:
        yield ok("Nothing is set that one may come to regret.")


def deadlines(context: Context) -> Iterator[Finding]:
    """A destination's own deadline, against the longest that an event may belong to a worker."""
    known = {(name, each["seconds"], run) for name, each, run in _known(context) if each.get("seconds") is not None}
    troubles = [
        problem(
            f"A delivery to {name} may take {format_seconds(seconds)}, but no lease is renewed for longer than "
            f"OUTBOX_MAX_RUN_SECONDS ({run:g}): it is cut short, and tried again in vain.",
            f"Set OUTBOX_MAX_RUN_SECONDS to {seconds:.0f} or more, or give {name} a shorter `timeout`.",
        )
        for name, seconds, run in sorted(known)
        if seconds > run
    ]
    yield from troubles
    if not troubles:
        yield ok("Leases may last as long as any destination takes.")


def retries_hours(settings: Settings) -> float:
    """How long an event may go on being tried, at the longest."""
    # With 2^60 bases every cap is reached; the sum need not go on wait by wait.
    waits = (
        min(settings.backoff_base_seconds * 2.0 ** min(number, 60), settings.backoff_cap_seconds)
        for number in range(settings.max_attempts - 1)
    )
    refused = sum(waits) * (1 + JITTER if settings.backoff_jitter else 1) / 3600
    return max(refused, settings.max_age_hours)


def _retention(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    retries = retries_hours(settings)
    if settings.retention_hours < retries:
        yield warning(
            f"Events, and their idempotency keys, are forgotten {settings.retention_hours:g} h after they ended "
            f"(OUTBOX_RETENTION_HOURS), but an event may be tried again for {retries:.3g} h: a handler that emits, and "
            "is called again after that, emits its event twice.",
            f"Set OUTBOX_RETENTION_HOURS to {retries:.0f} or more.",
        )
    elif settings.retention_hours < SHORTEST_RETENTION:
        yield warning(
            f"Failed events are deleted after {settings.retention_hours:g} h (OUTBOX_RETENTION_HOURS): who is not "
            "there by then never sees them.",
            f"Set OUTBOX_RETENTION_HOURS to {SHORTEST_RETENTION:g} or more; 168 is a week.",
        )


def _lease(context: Context) -> Iterator[Finding]:
    seconds = context.box.settings.lease_seconds
    if seconds < SHORTEST_LEASE:
        yield warning(
            f"Leases are short (OUTBOX_LEASE_SECONDS={seconds:g}): a host that stands still for a moment loses them, "
            "and events are delivered twice.",
            f"Set OUTBOX_LEASE_SECONDS to {SHORTEST_LEASE:g} or more; 30 is the default.",
        )


def _sweep(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.sweep_seconds > settings.lease_seconds:
        yield warning(
            f"Sweeps (OUTBOX_SWEEP_SECONDS={settings.sweep_seconds:g}) are further apart than a lease lasts "
            f"(OUTBOX_LEASE_SECONDS={settings.lease_seconds:g}): the events of a worker that died, and retries, wait "
            "for the next one.",
            f"Set OUTBOX_SWEEP_SECONDS to {min(10.0, settings.lease_seconds):g}.",
        )


def _batch(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.batch_size < SMALLEST_BATCH:
        yield warning(
            f"Batches are small (OUTBOX_BATCH_SIZE={settings.batch_size}): most of the time goes into claiming.",
            "Set OUTBOX_BATCH_SIZE to 100; batches shrink by themselves where deliveries are slow.",
        )
    most = settings.batch_size * settings.drains * settings.max_payload_bytes
    if most > context.thresholds.payload_bytes:
        yield warning(
            f"A worker process may have to hold {most / 1024**3:.1f} GiB of payloads: OUTBOX_BATCH_SIZE times "
            "OUTBOX_DRAINS times OUTBOX_MAX_PAYLOAD_BYTES.",
            "Lower OUTBOX_BATCH_SIZE, or OUTBOX_MAX_PAYLOAD_BYTES if payloads are never that large.",
        )


def _attempts(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.max_attempts == 1:
        yield warning(
            "Nothing is tried twice (OUTBOX_MAX_ATTEMPTS=1): the first hiccup of a destination fails an event.",
            "Set OUTBOX_MAX_ATTEMPTS to 5.",
        )
    if settings.max_age_hours < SHORTEST_OUTAGE:
        yield warning(
            f"An outage of {format_seconds(settings.max_age_hours * 3600)} of a destination fails its events "
            f"(OUTBOX_MAX_AGE_HOURS={settings.max_age_hours:g}).",
            "Set OUTBOX_MAX_AGE_HOURS to 72.",
        )


def _unhandled(context: Context) -> Iterator[Finding]:
    if context.box.settings.unhandled == "deliver":
        yield warning(
            "An event that a worker knows no handler for is marked delivered (OUTBOX_UNHANDLED=deliver): one worker "
            "with a module missing makes events vanish.",
            "Set OUTBOX_UNHANDLED=wait, and declare what nobody wants with `outbox.ignore(…)`.",
        )


def _unsigned(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.webhook_url is not None and settings.webhook_secret is None:
        yield warning(
            "What is posted to OUTBOX_WEBHOOK_URL is not signed: its receiver can't tell who sent it.",
            "Set OUTBOX_WEBHOOK_SECRET to what `outbox.webhooks.new_secret()` makes.",
        )


def _publishing(context: Context) -> Iterator[Finding]:
    if context.box.settings.publish_seconds == 0:
        yield warning(
            "Processes don't tell that they are there (OUTBOX_PUBLISH_SECONDS=0): neither this command nor any other "
            "can see them, or what they count.",
            "Set OUTBOX_PUBLISH_SECONDS to 10.",
        )


def _transaction(context: Context) -> Iterator[Finding]:
    if context.on_postgres and not context.box.settings.require_transaction:
        yield note(
            "emit is allowed outside a transaction (OUTBOX_REQUIRE_TRANSACTION=false): where an application forgets "
            "`outbox.configure(database=db)`, events are stored over another connection, and stay when its own "
            "transaction is rolled back.",
            "Set OUTBOX_REQUIRE_TRANSACTION=true, if every emit belongs to a change of data.",
        )


def _dashboard(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    open_to_others = settings.dashboard_host not in LOOPBACK
    if open_to_others and (settings.dashboard_user is None or settings.dashboard_password is None):
        yield warning(
            f"The dashboard is to listen where others reach it (OUTBOX_DASHBOARD_HOST={settings.dashboard_host}), and "
            "has no password: it refuses to start.",
            "Set OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD, or OUTBOX_DASHBOARD_HOST=127.0.0.1.",
        )


RULES: tuple[Callable[[Context], Iterator[Finding]], ...] = (
    _retention,
    _lease,
    _sweep,
    _batch,
    _attempts,
    _unhandled,
    _unsigned,
    _publishing,
    _transaction,
    _dashboard,
)


def _known(context: Context) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Every destination that is registered here, or that a worker has told of, and how long a lease lasts there."""
    own = context.box.settings.max_run_seconds
    for name, each in context.box.registry.destinations.items():
        yield name, description(each), own
    for process in context.overview.workers:
        run = process.details.get("settings", {}).get("max_run_seconds", own)
        for name, published in process.details.get("destinations", {}).items():
            yield name, published, run
