"""All checks, one after the other. One that fails is a finding itself, and the others go on."""

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

DATABASE = ("database",)
TABLES = ("database", "schema")
REDIS = ("redis",)

WHO_WAITS = "`SELECT pid, pg_blocking_pids(pid) FROM pg_stat_activity` shows who keeps whom waiting."

# Settings that are secret for the password in them, if there is one.
ADDRESSES = ("database_url", "redis_url")

CHECKS = (
    Check("settings", settings.look),
    Check("database", database.reached),
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
    Check("redis", redis.reached),
    Check("eviction", redis.eviction, REDIS),
    Check("persistence", redis.persistence, REDIS),
    Check("memory", redis.memory, REDIS),
    Check("workers", processes.workers, TABLES),
    Check("broker", processes.broker, TABLES),
    Check("scheduler", processes.scheduler, TABLES),
    Check("silent", processes.silent, TABLES),
    Check("calls", processes.calls, TABLES),
    Check("drains", processes.drains, TABLES),
    Check("pool", processes.pool, TABLES),
    Check("hosts", processes.hosts, TABLES, only_on="sqlite"),
    Check("deadlines", settings.deadlines, TABLES),
    Check("destinations", fleet_consistency.destinations, TABLES),
    Check("recorded", fleet_consistency.recorded, TABLES),
    Check("versions", fleet_consistency.versions, TABLES),
    Check("agreement", fleet_consistency.settings, TABLES),
    Check("handlers", handlers.missing, TABLES),
    Check("leases", backlog.leases, TABLES),
    Check("backlog", backlog.growing, TABLES),
    Check("breakers", backlog.breakers, TABLES),
    Check("failed", backlog.failed, TABLES),
)


def run_checks(
    box: Outbox,
    *,
    thorough: bool = False,
    thresholds: Thresholds | None = None,
    checks: Iterable[Check] = CHECKS,
    has_own_broker: bool = False,
) -> list[Finding]:
    """Look at everything, in order; each finding says which check it is of."""
    context = Context(box, thorough, Thresholds() if thresholds is None else thresholds, has_own_broker)
    redaction = Redaction(secrets_of(box))
    found: list[Finding] = []
    left_out: dict[str, list[str]] = {}
    for check in checks:
        if check.only_on not in (None, box.dialect.name):
            continue
        in_trouble = {finding.check for finding in found if finding.level == PROBLEM}
        obstacle = next((name for name in check.needs if name in in_trouble), None)
        if obstacle is not None:
            left_out.setdefault(obstacle, []).append(check.name)
            continue
        found += (_named(check, finding, redaction) for finding in _findings(check, context))
    for obstacle, names in left_out.items():
        what = f"Not looked at, as there is a problem with the {obstacle}: {', '.join(names)}."
        found.append(dataclasses.replace(note(what), check=obstacle))
    return found


def worst(findings: Iterable[Finding]) -> str:
    return max((finding.level for finding in findings), key=LEVELS.index, default=OK)


def secrets_of(box: Outbox) -> Iterator[str]:
    """Whatever must not be shown, should an error repeat it."""
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


def _findings(check: Check, context: Context) -> list[Finding]:
    found: list[Finding] = []
    try:
        with _patience(check, context):
            found.extend(check.look(context))
    except Exception as error:  # whatever it is, it must not keep the other checks from their work
        found.append(problem(f"This could not be looked at: {one_line(describe(error))}", _advice(context, str(error))))
    return found


def _advice(context: Context, error: str) -> str:
    again = "See to that, and run `outbox doctor` again"
    if "statement timeout" in error:
        return f"{again}; {WHO_WAITS}"
    return f"{again}." if context.on_postgres else f"{again}; with `--thorough` it says whether the file is intact."


@contextmanager
def _patience(check: Check, context: Context) -> Iterator[None]:
    """A connection, and an end to waiting for it; for checks that need one."""
    if "database" not in check.needs:
        yield
        return
    dialect = context.box.dialect
    with dialect.connection():
        if not context.on_postgres:
            yield
            return
        # For one transaction: behind a pooler such as PgBouncer the next one may run on another server connection, and
        # what was set for a session would stay with this one, for other programs.
        with context.box.database.atomic():
            milliseconds = int(context.thresholds.statement_seconds * 1000)
            dialect.run("SELECT set_config('statement_timeout', %s, true)", (str(milliseconds),))
            yield


def _named(check: Check, finding: Finding, redaction: Redaction) -> Finding:
    advice = None if finding.advice is None else redaction.redact(finding.advice)
    return dataclasses.replace(finding, check=check.name, what=redaction.redact(finding.what), advice=advice)
