"""Run all checks of `outbox doctor`, one after the other.

A check that raises an error becomes a finding, and the other checks still run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbox.admin.doctor import (
    backlog,
    connection,
    control,
    database,
    destination_risks,
    encryption,
    event_types,
    fleet_consistency,
    handlers,
    locks,
    message_brokers,
    ordering,
    periodic,
    postgres,
    processes,
    redis,
    schema,
    settings,
    sqlite,
)
from outbox.admin.doctor.check import LEVELS, OK, PROBLEM, Check, Context, Finding, Thresholds, note, problem
from outbox.admin.overview import Overview
from outbox.buses.url_passwords import passwords_in
from outbox.encryption.keys import PLAIN
from outbox.errors import describe
from outbox.text import one_line
from outbox.webhooks.redaction import Redaction

if TYPE_CHECKING:
    from outbox.core import Outbox

# What a check may need: the names of the checks that must not have found a problem.
DATABASE = ("database",)
TABLES = ("database", "schema")
# What reads events has to wait while another session locks their table.
EVENTS = (*TABLES, "locks")
# Without a worker, every event is late.
RUNNING = (*EVENTS, "workers")
REDIS = ("redis",)

# Settings that hold a URL. A URL is a secret only if it contains a password.
ADDRESSES = ("database_url", "redis_url")

CHECKS = (
    Check("settings", settings.risky_settings),
    Check("database", database.reachable),
    Check("pooler", connection.pooler, DATABASE, only_on="postgres"),
    Check("network", connection.network, DATABASE, only_on="postgres"),
    Check("clock", database.clock, DATABASE, only_on="postgres"),
    Check("schema", schema.tables, DATABASE),
    Check("inbox", schema.inbox, DATABASE),
    Check("locks", locks.lock_queues, TABLES, everywhere=True),
    Check("indexes", schema.indexes, EVENTS),
    Check("transactions", postgres.transactions, DATABASE, only_on="postgres"),
    Check("vacuum", postgres.vacuum, EVENTS, only_on="postgres"),
    Check("file", sqlite.file, DATABASE, only_on="sqlite"),
    Check("integrity", sqlite.integrity, DATABASE, only_on="sqlite"),
    Check("redis", redis.reachable),
    Check("eviction", redis.eviction, REDIS),
    Check("persistence", redis.persistence, REDIS),
    Check("memory", redis.memory, REDIS),
    Check("workers", processes.workers, TABLES, everywhere=True),
    Check("broker", processes.broker_connections, TABLES, everywhere=True),
    Check("scheduler", processes.scheduler, TABLES, everywhere=True),
    Check("periodic", periodic.overdue_jobs, EVENTS, everywhere=True),
    Check("silent", processes.silent_processes, TABLES, everywhere=True),
    Check("calls", processes.stuck_calls, TABLES, everywhere=True),
    Check("drains", processes.failing_drains, TABLES, everywhere=True),
    Check("pool", processes.connection_pools, TABLES, everywhere=True),
    Check("hosts", processes.hosts, TABLES, only_on="sqlite"),
    Check("deadlines", settings.deadlines, TABLES),
    Check("brokers", message_brokers.reachable),
    Check("exposed", destination_risks.exposed, TABLES),
    Check("destinations", fleet_consistency.destinations, TABLES, everywhere=True),
    Check("recorded", fleet_consistency.recorded_destinations, TABLES, everywhere=True),
    Check("versions", fleet_consistency.versions, TABLES),
    Check("kinds", fleet_consistency.kinds, EVENTS, everywhere=True),
    Check("agreement", fleet_consistency.settings, TABLES),
    Check("handlers", handlers.missing_handlers, EVENTS),
    Check("encryption", encryption.encrypted_rows, EVENTS),
    Check("types", event_types.unreadable_events, EVENTS),
    Check("leases", backlog.expired_leases, RUNNING, everywhere=True),
    Check("backlog", backlog.due_events, RUNNING, everywhere=True),
    Check("paused", control.paused, TABLES, everywhere=True),
    Check("breakers", backlog.open_breakers, EVENTS, everywhere=True),
    Check("failed", backlog.failed_events, EVENTS, everywhere=True),
    Check("keys", ordering.blocked_keys, EVENTS, everywhere=True),
    Check("order", ordering.workers_without_order, EVENTS),
)


def run_checks(
    box: Outbox,
    *,
    thorough: bool = False,
    thresholds: Thresholds | None = None,
    checks: Iterable[Check] = CHECKS,
    has_own_broker: bool = False,
    view: Overview | None = None,
) -> list[Finding]:
    """Run the checks in order; return their findings, each with the name of its check and without secrets.

    With a `view`, which the caller has read, no check opens a connection or compares this process with the others.
    """
    thresholds = Thresholds() if thresholds is None else thresholds
    context = Context(box, thorough, thresholds, has_own_broker, given=view, compares_itself=view is None)
    return list(each_finding(context, checks))


def each_finding(context: Context, checks: Iterable[Check]) -> Iterator[Finding]:
    """Run the checks in order; yield what each has found as soon as it has ended."""
    redaction = Redaction(secrets_of(context.box))
    with_problems: set[str] = set()
    skipped: dict[str, list[str]] = {}
    for check in checks:
        if check.only_on not in (None, context.box.dialect.name):
            continue
        obstacle = next((name for name in check.needs if name in with_problems), None)
        if obstacle is not None:
            skipped.setdefault(obstacle, []).append(check.name)
            continue
        for finding in _run(check, context):
            if finding.level == PROBLEM:
                with_problems.add(check.name)
            yield _name_and_redact(check, finding, redaction)
    for obstacle, names in skipped.items():
        what = f"These checks were skipped because of the problem with the {obstacle}: {', '.join(names)}."
        yield dataclasses.replace(note(what), check=obstacle)


def worst(findings: Iterable[Finding]) -> str:
    """Return the worst level among the findings."""
    return max((finding.level for finding in findings), key=LEVELS.index, default=OK)


def secrets_of(box: Outbox) -> Iterator[str]:
    """Yield the secrets in the settings and in the connection parameters, since an error's text may contain one."""
    for field in dataclasses.fields(box.settings):
        value = getattr(box.settings, field.name)
        if field.metadata.get("secret") and isinstance(value, str):
            passwords = [*passwords_in(value.split(), user_is_token=field.name == "nats_url")]
            yield from passwords
            if passwords or field.name not in ADDRESSES:
                yield from (value, *(part for part in value.split() if part != PLAIN))
            if field.name == "dashboard_users":
                yield from (entry.split(":", 2)[-1] for entry in value.split())
            if field.name == "kafka_config":
                yield from (entry.partition("=")[2] for entry in value.split())
    for parameters in (getattr(each.database, "connect_params", {}) for each in (box.dialect, box.inbox)):
        password = parameters.get("password")
        if isinstance(password, str):
            yield password


def _run(check: Check, context: Context) -> list[Finding]:
    """Return the findings of one check. If the check raises an error, that is its last finding."""
    findings: list[Finding] = []
    try:
        with _connection(check, context):
            findings.extend(check.run(context))
    except Exception as error:  # whatever it is, the other checks must still run
        findings.append(problem(f"The check failed: {one_line(describe(error))}", _advice_after(context, str(error))))
    return findings


def _advice_after(context: Context, error: str) -> str:
    again = "Fix the cause and run `outbox doctor` again"
    if "statement timeout" in error:
        return f"{again}; the check `locks` names the session that blocks others."
    return f"{again}." if context.on_postgres else f"{again}; with `--thorough` it checks whether the file is intact."


@contextmanager
def _connection(check: Check, context: Context) -> Iterator[None]:
    """Open a connection with a statement timeout, for checks that need the database."""
    if "database" not in check.needs or context.given is not None:
        yield
        return
    with context.box.dialect.bounded(context.thresholds.statement_seconds):
        yield


def _name_and_redact(check: Check, finding: Finding, redaction: Redaction) -> Finding:
    advice = None if finding.advice is None else redaction.redact(finding.advice)
    what, brief = redaction.redact(finding.what), redaction.redact(finding.brief)
    return dataclasses.replace(finding, check=check.name, what=what, advice=advice, brief=brief)
