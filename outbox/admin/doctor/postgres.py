"""What keeps PostgreSQL from cleaning up behind the deliveries, which change each row a few times."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.admin.durations import format_seconds

MOST_TOLD = 10
FILLFACTOR = "fillfactor=50"

# Never the text of a query, which may hold data. Vacuum itself may take long, and holds up nobody.
_OPEN = """
SELECT pid, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::float8,
    backend_xid IS NOT NULL OR backend_xmin IS NOT NULL
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND xact_start <= clock_timestamp() - %s * interval '1 second'
ORDER BY xact_start LIMIT %s
"""
# Of other roles' sessions nothing but their being there is shown, unless one may see all.
_HIDDEN = """
SELECT count(*), current_user FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NULL AND backend_type IS NULL
"""
_PREPARED = """
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts
WHERE database = current_database() AND prepared <= clock_timestamp() - %s * interval '1 second'
ORDER BY prepared LIMIT %s
"""
# Vacuum heeds those of all databases.
_SLOTS = """
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
_SWITCHES = "SELECT current_setting('autovacuum'), current_setting('track_counts')"


def transactions(context: Context) -> Iterator[Finding]:
    """Snapshots held open: as long as they are, no row that was changed since can be cleaned up."""
    troubles = [*_open(context), *_prepared(context), *_slots(context), *_standbys(context)]
    yield from troubles
    ((hidden, role),) = context.rows(_HIDDEN)
    if hidden:
        yield note(
            f"{hidden} sessions on this database belong to other roles, and can't be looked at.",
            f'To see them, run `GRANT pg_read_all_stats TO "{role}"` as an administrator.',
        )
    if not troubles:
        yield ok(f"No transaction has been open for more than {format_seconds(context.thresholds.open_seconds)}.")


def vacuum(context: Context) -> Iterator[Finding]:
    troubles = [*_switched_off(context)]
    tables = context.box.dialect.tables
    for table, options, live, dead in context.rows(_TABLES, [tables.event, tables.total, tables.minute]):
        troubles += _table(context, tables.in_schema(table), options, live, dead)
    yield from troubles
    if not troubles:
        yield ok("Autovacuum looks after the tables, and keeps up.")


def _open(context: Context) -> Iterator[Finding]:
    thresholds = context.thresholds
    for pid, application, state, seconds, holds in context.rows(_OPEN, thresholds.open_seconds, MOST_TOLD):
        who = f"process {pid} ({application or 'no application_name'}, {state})"
        effect = "vacuum can't clean up what has changed since" if holds else "whatever it has locked stays locked"
        kind = problem if seconds >= thresholds.open_too_long_seconds else warning
        yield kind(
            f"A transaction of {who} has been open for {format_seconds(seconds)}: {effect}.",
            f"End it with `SELECT pg_terminate_backend({pid})`, and let such ones end by themselves: "
            "`ALTER DATABASE … SET idle_in_transaction_session_timeout = '5min'`.",
        )


def _prepared(context: Context) -> Iterator[Finding]:
    for gid, seconds in context.rows(_PREPARED, context.thresholds.open_seconds, MOST_TOLD):
        yield problem(
            f"The prepared transaction {gid!r} has been left open for {format_seconds(seconds)}: vacuum can't clean "
            "up what has changed since, and its locks are held, across restarts.",
            f"Run `COMMIT PREPARED '{gid}'` or `ROLLBACK PREPARED '{gid}'`, whichever its transaction manager decided.",
        )


def _slots(context: Context) -> Iterator[Finding]:
    for name, active, age in context.rows(_SLOTS, context.thresholds.snapshot_age, MOST_TOLD):
        yield warning(
            f"The replication slot {name!r}, which is {'in use' if active else 'not in use'}, keeps what has changed "
            f"in the last {age:,} transactions: vacuum can't clean it up.",
            f"Let its standby catch up; if that is gone for good, run `SELECT pg_drop_replication_slot('{name}')`.",
        )


def _standbys(context: Context) -> Iterator[Finding]:
    for pid, application, age in context.rows(_STANDBYS, context.thresholds.snapshot_age, MOST_TOLD):
        yield warning(
            f"A query on the standby {application or 'without a name'} (process {pid} here) keeps what has changed in "
            f"the last {age:,} transactions: vacuum can't clean it up.",
            "End that query on the standby, or set `hot_standby_feedback = off` there.",
        )


def _switched_off(context: Context) -> Iterator[Finding]:
    for name, value in zip(("autovacuum", "track_counts"), context.rows(_SWITCHES)[0], strict=True):
        if value != "on":
            yield problem(
                f"{name} is {value}: dead rows stay, and the table grows with every delivery.",
                f"Run `ALTER SYSTEM SET {name} = on` and `SELECT pg_reload_conf()`.",
            )


def _table(context: Context, table: str, options: list[str], live: int, dead: int) -> Iterator[Finding]:
    if any(option.lower() in ("autovacuum_enabled=false", "autovacuum_enabled=off") for option in options):
        yield problem(
            f"Autovacuum is switched off for {table}: dead rows stay, and the table grows with every delivery.",
            f"Run `ALTER TABLE {table} RESET (autovacuum_enabled)`.",
        )
    if FILLFACTOR not in options:
        yield warning(
            f"The fillfactor of {table} is not 50: changed rows find no room beside the old ones, and every claim "
            "writes to every index.",
            f"Run `ALTER TABLE {table} SET (fillfactor = 50)`; pages that are full already follow with `VACUUM FULL`, "
            "which locks the table.",
        )
    if dead >= context.thresholds.dead_rows and dead > live:
        yield warning(
            f"{table} has {dead:,} dead rows beside {live:,} live ones: vacuum does not keep up.",
            f"Run `VACUUM {table}`; if dead rows remain, the check `transactions` says who holds them. Then let "
            f"it come sooner: `ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.05)`.",
        )
