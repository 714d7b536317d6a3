"""Check for what prevents PostgreSQL's vacuum from removing dead rows: open snapshots, and settings of autovacuum.

Each delivery updates the event's row a few times, and each update leaves a dead row.
"""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.admin.durations import format_seconds
from outbox.storage.connect import POSTGRES_DEFAULTS

MOST_REPORTED = 10
FILLFACTOR = "fillfactor=50"

# The text of the queries is left out, because it may contain data. Autovacuum's processes are left out, because they
# may run for long, but block nothing; and sessions that wait for a lock, because they go on when they get it.
_OPEN_TRANSACTIONS = """
SELECT pid, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::float8,
    backend_xid IS NOT NULL OR backend_xmin IS NOT NULL,
    application_name <> '' AND application_name IN (%s, current_setting('application_name'))
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND xact_start <= clock_timestamp() - %s * interval '1 second' AND wait_event_type IS DISTINCT FROM 'Lock'
ORDER BY xact_start LIMIT %s
"""
# A role without pg_read_all_stats sees that other roles have sessions, but no details.
_HIDDEN_SESSIONS = """
SELECT count(*), current_user FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NULL AND backend_type IS NULL
"""
_PREPARED_TRANSACTIONS = """
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts
WHERE database = current_database() AND prepared <= clock_timestamp() - %s * interval '1 second'
ORDER BY prepared LIMIT %s
"""
# Slots of other databases are included, because vacuum keeps rows for them as well.
_REPLICATION_SLOTS = """
SELECT slot_name, active, age(xmin) FROM pg_replication_slots WHERE age(xmin) >= %s ORDER BY age(xmin) DESC LIMIT %s
"""
_STANDBYS = """
SELECT pid, application_name, age(backend_xmin) FROM pg_stat_replication
WHERE age(backend_xmin) >= %s ORDER BY age(backend_xmin) DESC LIMIT %s
"""

_TABLES = """
SELECT c.relname, coalesce(c.reloptions, '{}'), coalesce(pg_stat_get_live_tuples(c.oid), 0),
    coalesce(pg_stat_get_dead_tuples(c.oid), 0)
FROM pg_class AS c
WHERE c.oid = ANY (SELECT to_regclass(name) FROM unnest(%s::text[]) AS name)
ORDER BY c.relname
"""
_OF_OUR_OWN = (
    "It belongs to a process of the outbox or of the application: find out why that process does not end it (its log, "
    "`py-spy dump`), and restart the process if it hangs."
)
_AUTOVACUUM_SETTINGS = "SELECT current_setting('autovacuum'), current_setting('track_counts')"


def transactions(context: Context) -> Iterator[Finding]:
    """Check for old snapshots. While one is open, vacuum can't remove any row that was changed since."""
    findings = [
        *_open_transactions(context),
        *_prepared_transactions(context),
        *_replication_slots(context),
        *_standbys(context),
    ]
    yield from findings
    ((hidden, role),) = context.rows(_HIDDEN_SESSIONS)
    if hidden:
        yield note(
            f"{hidden} sessions on this database belong to other roles, and this role can't see their transactions.",
            f'To check them as well, run `GRANT pg_read_all_stats TO "{role}"` as an administrator.',
        )
    if not findings:
        yield ok(f"No transaction has been open for more than {format_seconds(context.thresholds.open_seconds)}.")


def vacuum(context: Context) -> Iterator[Finding]:
    """Check that autovacuum is on and keeps up with the dead rows, and that the fillfactor is 50."""
    findings = [*_switched_off(context)]
    tables = context.box.dialect.tables
    for table, options, live, dead in context.rows(_TABLES, [tables.event, tables.total, tables.minute]):
        findings += _table_settings(context, tables.in_schema(table), options, live, dead)
    yield from findings
    if not findings:
        yield ok("Autovacuum is on, and keeps up with the dead rows.")


def _open_transactions(context: Context) -> Iterator[Finding]:
    thresholds = context.thresholds
    own_name = POSTGRES_DEFAULTS["application_name"]
    for pid, application, state, seconds, has_snapshot, is_own in context.rows(
        _OPEN_TRANSACTIONS, own_name, thresholds.open_seconds, MOST_REPORTED
    ):
        session = f"process {pid} ({application or 'no application_name'}, {state})"
        effect = "vacuum can't remove rows that were changed since" if has_snapshot else "its locks stay held"
        kind = problem if seconds >= thresholds.open_too_long_seconds else warning
        yield kind(
            f"A transaction of {session} has been open for {format_seconds(seconds)}: {effect}.",
            _OF_OUR_OWN
            if is_own
            else f"End it with `SELECT pg_terminate_backend({pid})`. To end such transactions automatically: "
            "`ALTER DATABASE … SET idle_in_transaction_session_timeout = '5min'`.",
        )


def _prepared_transactions(context: Context) -> Iterator[Finding]:
    for gid, seconds in context.rows(_PREPARED_TRANSACTIONS, context.thresholds.open_seconds, MOST_REPORTED):
        yield problem(
            f"The prepared transaction {gid!r} has been left open for {format_seconds(seconds)}: vacuum can't "
            "remove rows that were changed since, and its locks stay held, even after a restart of the server.",
            f"Run `COMMIT PREPARED '{gid}'` or `ROLLBACK PREPARED '{gid}'`, as its transaction manager has decided.",
        )


def _replication_slots(context: Context) -> Iterator[Finding]:
    for name, active, age in context.rows(_REPLICATION_SLOTS, context.thresholds.snapshot_age, MOST_REPORTED):
        yield warning(
            f"The replication slot {name!r}, which is {'in use' if active else 'not in use'}, keeps the rows that "
            f"were changed in the last {age:,} transactions: vacuum can't remove them.",
            f"Let its standby catch up; if that standby was removed, run `SELECT pg_drop_replication_slot('{name}')`.",
        )


def _standbys(context: Context) -> Iterator[Finding]:
    for pid, application, age in context.rows(_STANDBYS, context.thresholds.snapshot_age, MOST_REPORTED):
        yield warning(
            f"A query on the standby {application or 'without a name'} (process {pid} here) keeps the rows that were "
            f"changed in the last {age:,} transactions: vacuum can't remove them.",
            "End that query on the standby, or set `hot_standby_feedback = off` there.",
        )


def _switched_off(context: Context) -> Iterator[Finding]:
    for name, value in zip(("autovacuum", "track_counts"), context.rows(_AUTOVACUUM_SETTINGS)[0], strict=True):
        if value != "on":
            yield problem(
                f"{name} is {value}: dead rows are not removed, and the table grows with every delivery.",
                f"Run `ALTER SYSTEM SET {name} = on` and `SELECT pg_reload_conf()`.",
            )


def _table_settings(context: Context, table: str, options: list[str], live: int, dead: int) -> Iterator[Finding]:
    if any(option.lower() in ("autovacuum_enabled=false", "autovacuum_enabled=off") for option in options):
        yield problem(
            f"Autovacuum is off for {table}: dead rows are not removed, and the table grows with every delivery.",
            f"Run `ALTER TABLE {table} RESET (autovacuum_enabled)`.",
        )
    if FILLFACTOR not in options:
        yield warning(
            f"The fillfactor of {table} is not 50: a page has no room for the new version of a row, so every claim "
            "writes to every index.",
            f"Run `ALTER TABLE {table} SET (fillfactor = 50)`. Pages that are full already only change with "
            "`VACUUM FULL`, which locks the table.",
        )
    if dead >= context.thresholds.dead_rows and dead > live:
        yield warning(
            f"{table} has {dead:,} dead rows and {live:,} live ones: vacuum does not keep up.",
            f"Run `VACUUM {table}`; if dead rows remain, the check `transactions` shows which session "
            "keeps them. To run autovacuum more often: "
            f"`ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.05)`.",
        )
