"""Check for settings that are valid but risky."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.admin.durations import format_seconds
from outbox.delivery.retry import JITTER
from outbox.destinations.description import describe_destination
from outbox.settings import Settings

SHORTEST_LEASE = 5.0  # seconds
SMALLEST_BATCH = 10
SHORTEST_OUTAGE = 1.0  # hours
SHORTEST_RETENTION = 24.0  # hours
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def risky_settings(context: Context) -> Iterator[Finding]:
    """Apply each rule of RULES."""
    findings = [finding for rule in RULES for finding in rule(context)]
    yield from findings
    if not findings:
        yield ok("No setting is risky.")


def deadlines(context: Context) -> Iterator[Finding]:
    """Check that no destination's timeout is longer than the time for which a worker keeps a lease."""
    timeouts = {
        (name, each["seconds"], max_run)
        for name, each, max_run in _known_destinations(context)
        if each.get("seconds") is not None
    }
    findings = [
        problem(
            f"A delivery to {name} may take {format_seconds(seconds)}, but a lease is not renewed for longer than "
            f"OUTBOX_MAX_RUN_SECONDS ({max_run:g}): every attempt that takes longer is interrupted.",
            f"Set OUTBOX_MAX_RUN_SECONDS to {seconds:.0f} or more, or give {name} a shorter `timeout`.",
        )
        for name, seconds, max_run in sorted(timeouts)
        if seconds > max_run
    ]
    yield from findings
    if not findings:
        yield ok("No destination has a timeout longer than OUTBOX_MAX_RUN_SECONDS.")


def retries_hours(settings: Settings) -> float:
    """Return for how many hours an event may be tried, at most."""
    # 2^60 times the base is beyond any cap; larger powers would overflow a float.
    waits = (
        min(settings.backoff_base_seconds * 2.0 ** min(number, 60), settings.backoff_cap_seconds)
        for number in range(settings.max_attempts - 1)
    )
    backoffs = sum(waits) * (1 + JITTER if settings.backoff_jitter else 1) / 3600
    return max(backoffs, settings.max_age_hours)


def _retention(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    retries = retries_hours(settings)
    if settings.retention_hours < retries:
        yield warning(
            f"Events and their idempotency keys are deleted {settings.retention_hours:g} h after the events ended "
            f"(OUTBOX_RETENTION_HOURS), but an event may be retried for {retries:.3g} h: a handler that emits an event "
            "and is called again after that time emits it twice.",
            f"Set OUTBOX_RETENTION_HOURS to {retries:.0f} or more.",
        )
    elif settings.retention_hours < SHORTEST_RETENTION:
        yield warning(
            f"Failed events are deleted after {settings.retention_hours:g} h (OUTBOX_RETENTION_HOURS): an "
            "operator who looks later never sees them.",
            f"Set OUTBOX_RETENTION_HOURS to {SHORTEST_RETENTION:g} or more; 168 is a week.",
        )


def _lease(context: Context) -> Iterator[Finding]:
    seconds = context.box.settings.lease_seconds
    if seconds < SHORTEST_LEASE:
        yield warning(
            f"Leases are short (OUTBOX_LEASE_SECONDS={seconds:g}): a host that pauses for a moment loses its "
            "leases, and events are delivered twice.",
            f"Set OUTBOX_LEASE_SECONDS to {SHORTEST_LEASE:g} or more; 30 is the default.",
        )


def _sweep(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.sweep_seconds > settings.lease_seconds:
        yield warning(
            f"The time between sweeps (OUTBOX_SWEEP_SECONDS={settings.sweep_seconds:g}) is longer than a lease "
            f"(OUTBOX_LEASE_SECONDS={settings.lease_seconds:g}): retries, and the events of workers that died, wait "
            "for the next sweep.",
            f"Set OUTBOX_SWEEP_SECONDS to {min(10.0, settings.lease_seconds):g}.",
        )


def _batch(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.batch_size < SMALLEST_BATCH:
        yield warning(
            f"Batches are small (OUTBOX_BATCH_SIZE={settings.batch_size}): workers spend most of their time on claims.",
            "Set OUTBOX_BATCH_SIZE to 100; workers reduce it automatically while deliveries are slow.",
        )
    most = settings.batch_size * settings.drains * settings.max_payload_bytes
    if most > context.thresholds.payload_bytes:
        yield warning(
            f"A worker process may hold {most / 1024**3:.1f} GiB of payloads in memory: OUTBOX_BATCH_SIZE times "
            "OUTBOX_DRAINS times OUTBOX_MAX_PAYLOAD_BYTES.",
            "Lower OUTBOX_BATCH_SIZE, or OUTBOX_MAX_PAYLOAD_BYTES if payloads are never that large.",
        )


def _attempts(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.max_attempts == 1:
        yield warning(
            "An event is not tried again (OUTBOX_MAX_ATTEMPTS=1): a single error of a destination fails it.",
            "Set OUTBOX_MAX_ATTEMPTS to 5.",
        )
    if settings.max_age_hours < SHORTEST_OUTAGE:
        yield warning(
            f"If a destination is unavailable for {format_seconds(settings.max_age_hours * 3600)}, its events fail "
            f"(OUTBOX_MAX_AGE_HOURS={settings.max_age_hours:g}).",
            "Set OUTBOX_MAX_AGE_HOURS to 72.",
        )


def _unhandled(context: Context) -> Iterator[Finding]:
    if context.box.settings.unhandled == "deliver":
        yield warning(
            "An event that no destination wants is marked delivered (OUTBOX_UNHANDLED=deliver): if a module with "
            "handlers is missing, its events are never handled.",
            "Set OUTBOX_UNHANDLED=wait, and declare the event types that need no handler with `outbox.ignore(…)`.",
        )


def _unsigned(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.webhook_url is not None and settings.webhook_secret is None:
        yield warning(
            "Requests to OUTBOX_WEBHOOK_URL are not signed: the receiver can't verify their sender.",
            "Set OUTBOX_WEBHOOK_SECRET to a secret that `outbox.webhooks.new_secret()` returns.",
        )


def _publishing(context: Context) -> Iterator[Finding]:
    if context.box.settings.publish_seconds == 0:
        yield warning(
            "Processes don't report themselves (OUTBOX_PUBLISH_SECONDS=0): this command, the dashboard and the metrics "
            "see neither them nor their counters.",
            "Set OUTBOX_PUBLISH_SECONDS to 10.",
        )


def _transaction(context: Context) -> Iterator[Finding]:
    if context.on_postgres and not context.box.settings.require_transaction:
        yield note(
            "emit is allowed outside a transaction (OUTBOX_REQUIRE_TRANSACTION=false): if an application does not "
            "call `outbox.configure(database=db)`, its events are stored through another connection, and remain when "
            "its own transaction is rolled back.",
            "Set OUTBOX_REQUIRE_TRANSACTION=true if every emit belongs to a change of data.",
        )


def _dashboard(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    is_public = settings.dashboard_host not in LOOPBACK
    has_user = settings.dashboard_user is not None and settings.dashboard_password is not None
    if is_public and not has_user and settings.dashboard_users is None:
        yield warning(
            f"The dashboard can be reached from other hosts (OUTBOX_DASHBOARD_HOST={settings.dashboard_host}), but has "
            "no user and password: it refuses to start.",
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


def _known_destinations(context: Context) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yield each destination that is registered here or reported by a worker.

    With its name, its description, and the max_run_seconds of that process.
    """
    own = context.box.settings.max_run_seconds
    for name, each in context.box.registry.destinations.items():
        yield name, describe_destination(each), own
    for process in context.overview.workers:
        max_run = process.details.get("settings", {}).get("max_run_seconds", own)
        for name, reported in process.details.get("destinations", {}).items():
            yield name, reported, max_run
