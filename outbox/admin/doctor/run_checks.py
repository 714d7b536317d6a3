"""Run all checks of `outbox doctor`, one after the other.

A check that raises an error becomes a finding, and the other checks still run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from outbox.admin.doctor import (
    backlog,
    connection,
    database,
    fleet_consistency,
    handlers,
    periodic,
    postgres,
    processes,
    redis,
    schema,
    settings,
    sqlite,
)
from outbox.admin.doctor.check import LEVELS, OK, PROBLEM, Check, Context, Finding, Thresholds, note, problem
from outbox.errors import describe
from outbox.text import one_line
from outbox.webhooks.redaction import Redaction

if TYPE_CHECKING:
    from outbox.core import Outbox

# What a check may need: the names of the checks that must not have found a problem.
DATABASE = ("database",)
TABLES = ("database", "schema")
REDIS = ("redis",)

FIND_BLOCKING_SESSIONS = (
    "`SELECT pid, pg_blocking_pids(pid) FROM pg_stat_activity` shows which sessions block which others."
)

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
    Check("indexes", schema.indexes, TABLES),
    Check("transactions", postgres.transactions, DATABASE, only_on="postgres"),
    Check("vacuum", postgres.vacuum, TABLES, only_on="postgres"),
    Check("file", sqlite.file, DATABASE, only_on="sqlite"),
    Check("integrity", sqlite.integrity, DATABASE, only_on="sqlite"),
    Check("redis", redis.reachable),
    Check("eviction", redis.eviction, REDIS),
    Check("persistence", redis.persistence, REDIS),
    Check("memory", redis.memory, REDIS),
    Check("workers", processes.workers, TABLES),
    Check("broker", processes.broker_connections, TABLES),
    Check("scheduler", processes.scheduler, TABLES),
    Check("periodic", periodic.overdue_jobs, TABLES),
    Check("silent", processes.silent_processes, TABLES),
    Check("calls", processes.stuck_calls, TABLES),
    Check("drains", processes.failing_drains, TABLES),
    Check("pool", processes.connection_pools, TABLES),
    Check("hosts", processes.hosts, TABLES, only_on="sqlite"),
    Check("deadlines", settings.deadlines, TABLES),
    Check("destinations", fleet_consistency.destinations, TABLES),
    Check("recorded", fleet_consistency.recorded_destinations, TABLES),
    Check("versions", fleet_consistency.versions, TABLES),
    Check("kinds", fleet_consistency.kinds, TABLES),
    Check("agreement", fleet_consistency.settings, TABLES),
    Check("handlers", handlers.missing_handlers, TABLES),
    Check("leases", backlog.expired_leases, TABLES),
    Check("backlog", backlog.due_events, TABLES),
    Check("breakers", backlog.open_breakers, TABLES),
    Check("failed", backlog.failed_events, TABLES),
)


def run_checks(
    box: Outbox,
    *,
    thorough: bool = False,
    thresholds: Thresholds | None = None,
    checks: Iterable[Check] = CHECKS,
    has_own_broker: bool = False,
) -> list[Finding]:
    """Run the checks in order; return their findings, each with the name of its check and without secrets."""
    context = Context(box, thorough, Thresholds() if thresholds is None else thresholds, has_own_broker)
    redaction = Redaction(secrets_of(box))
    findings: list[Finding] = []
    skipped: dict[str, list[str]] = {}
    for check in checks:
        if check.only_on not in (None, box.dialect.name):
            continue
        with_problems = {finding.check for finding in findings if finding.level == PROBLEM}
        obstacle = next((name for name in check.needs if name in with_problems), None)
        if obstacle is not None:
            skipped.setdefault(obstacle, []).append(check.name)
            continue
        findings += (_name_and_redact(check, finding, redaction) for finding in _run(check, context))
    for obstacle, names in skipped.items():
        what = f"These checks were skipped because of the problem with the {obstacle}: {', '.join(names)}."
        findings.append(dataclasses.replace(note(what), check=obstacle))
    return findings


def worst(findings: Iterable[Finding]) -> str:
    """Return the worst level among the findings."""
    return max((finding.level for finding in findings), key=LEVELS.index, default=OK)


def secrets_of(box: Outbox) -> Iterator[str]:
    """Yield the secrets in the settings and in the connection parameters, since an error's text may contain one."""
    for field in dataclasses.fields(box.settings):
        value = getattr(box.settings, field.name)
        if field.metadata.get("secret") and isinstance(value, str):
            passwords = [*_passwords_in(value)]
            yield from passwords
            if passwords or field.name not in ADDRESSES:
                yield from (value, *value.split())
    for parameters in (getattr(each.database, "connect_params", {}) for each in (box.dialect, box.inbox)):
        password = parameters.get("password")
        if isinstance(password, str):
            yield password


def _passwords_in(url: str) -> Iterator[str]:
    try:
        password = urlsplit(url).password
    except ValueError:
        return
    if password:
        yield from (password, unquote(password))


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
        return f"{again}; {FIND_BLOCKING_SESSIONS}"
    return f"{again}." if context.on_postgres else f"{again}; with `--thorough` it checks whether the file is intact."


@contextmanager
def _connection(check: Check, context: Context) -> Iterator[None]:
    """Open a connection with a statement timeout, for checks that need the database."""
    if "database" not in check.needs:
        yield
        return
    dialect = context.box.dialect
    with dialect.connection():
        if not context.on_postgres:
            yield
            return
        # `true` sets the timeout for this transaction only. A timeout for the session would stay on the server
        # connection, and a pooler such as PgBouncer may give that connection to another program afterwards.
        with context.box.database.atomic():
            milliseconds = int(context.thresholds.statement_seconds * 1000)
            dialect.run("SELECT set_config('statement_timeout', %s, true)", (str(milliseconds),))
            yield


def _name_and_redact(check: Check, finding: Finding, redaction: Redaction) -> Finding:
    advice = None if finding.advice is None else redaction.redact(finding.advice)
    return dataclasses.replace(finding, check=check.name, what=redaction.redact(finding.what), advice=advice)
