"""Write out the templates of `sql/` for one database: its dialect, its placeholder for parameters, its table names.

The dialects run the statements; the rest of the library reads them as `dialect.statements.claim` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache

from outbox.storage import status, timestamp
from outbox.storage.sql import delivery, destinations, emit, inbox, operations, periodic, telemetry
from outbox.table_names import Tables

SUBJECTS = (emit, delivery, operations, destinations, inbox, telemetry, periodic)


@dataclass(frozen=True, slots=True)
class Statements:
    """Every statement, written out for one database and one set of table names."""

    insert: str
    insert_later: str
    insert_kind: str
    insert_kind_later: str
    draw_numbers: str
    insert_many: str
    replace: str
    set_aside: str
    cancel: str
    cancel_by_key: str
    due: str
    claim: str
    delivered: str
    settled: str
    released: str
    renewed: str
    count_due: str
    delete_ended: str
    count_ended: str
    retry: str
    fail_by_hand: str
    delete_by_hand: str
    replay: str
    audit_begin: str
    audit_note: str
    audit_add: str
    audit_end: str
    now: str
    destinations: str
    destinations_lock: str
    destinations_changed: str
    destination_record: str
    destination_leave: str
    destination_narrow: str
    destination_retire: str
    destination_retire_unrecorded: str
    destination_link: str
    destination_absent: str
    destinations_expired: str
    audience_find: str
    audience_add: str
    audience_names: str
    names: str
    inbox_insert: str
    inbox_take_back: str
    inbox_delete: str
    inbox_count: str
    process_seen: str
    process_gone: str
    count_workers: str
    totals: str
    minutes: str
    forget_processes: str
    forget_minutes: str
    forget_audit: str
    periodic_declare: str
    periodic_seen: str
    periodic_jobs: str
    periodic_plan: str
    periodic_advance: str
    periodic_stored: str
    periodic_skipped: str
    periodic_unfinished: str
    periodic_request: str
    periodic_take_request: str
    periodic_pause: str
    periodic_resume: str
    periodic_forget: str
    periodic_forget_old: str
    periodic_ended: str


_EARLIEST, _LATEST = (f"timestamptz '{timestamp.to_text(moment)}'" for moment in (timestamp.EARLIEST, timestamp.LATEST))

_POSTGRES = {
    # Constant within a statement, so PostgreSQL can use an index. Unlike now(), it advances within a transaction.
    "now": "statement_timestamp()",
    "after": "(statement_timestamp() + ? * interval '1 second')",
    "before": "(statement_timestamp() - ? * interval '1 second')",
    "moment": "?::timestamptz",
    # Equal, or both null.
    "is_same": "IS NOT DISTINCT FROM",
    "id": "id::text",
    "ids": "id = ANY (?::uuid[])",
    "leases": "lease_id = ANY (?::uuid[])",
    # As a subquery it runs once, not for every row.
    "async_commit": "(SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL",
    "due_at": f"GREATEST(next_attempt_at, {_EARLIEST})",
    "emitted_at": f"LEAST(GREATEST(created_at, {_EARLIEST}), {_LATEST})",
    "payload": "payload::text",
    "headers": "headers::text",
    "progress": "progress::text",
    "row": "ctid",
    # The transaction that wrote a row.
    "version": "xmin::text",
    "distinct_now": "statement_timestamp()",
    "parcel": "({process_table}.details->>'parcel')::bigint",
    "counts": "json_to_recordset(?) AS item (name text, labels text, value float8)",
    "minute": "date_trunc('minute', statement_timestamp())",
    "number": "?::integer",
    # As a subquery the object is parsed once, not for every row.
    "audience_of_type": "((SELECT ?::jsonb) ->> event_type)::integer",
    # From the clock, so that no number is used twice, even after a failover or when the row was restored by hand.
    "next_version": "GREATEST(version + 1, (EXTRACT(EPOCH FROM statement_timestamp()) * 1000000)::bigint)",
    "checked_ago": "LEAST(EXTRACT(EPOCH FROM statement_timestamp() - checked_at), ?)",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
    "in_list": "= ANY (ARRAY",
    "end": ")",
}

# SQLite's clock has milliseconds; written to the width of microseconds it compares with every other timestamp.
_SQLITE_TIME = "strftime('%Y-%m-%d %H:%M:%f000+00:00', 'now'{shift})"

_SQLITE = {
    "now": _SQLITE_TIME.format(shift=""),
    "after": _SQLITE_TIME.format(shift=", ? || ' seconds'"),
    "before": _SQLITE_TIME.format(shift=", '-' || ? || ' seconds'"),
    "moment": "?",
    "is_same": "IS",
    "id": "id",
    "ids": "id IN (SELECT value FROM json_each(?))",
    "leases": "lease_id IN (SELECT value FROM json_each(?))",
    "async_commit": "true",
    "due_at": "next_attempt_at",
    "emitted_at": "created_at",
    "payload": "payload",
    "headers": "headers",
    "progress": "progress",
    "row": "rowid",
    # SQLite stores no transaction id. Two rows of the same millisecond differ by random microseconds.
    "version": "rowid || ' ' || processed_at",
    "distinct_now": "strftime('%Y-%m-%d %H:%M:%f', 'now') || printf('%03d+00:00', abs(random() % 1000))",
    "parcel": "json_extract({process_table}.details, '$.parcel')",
    "counts": """(SELECT json_extract(value, '$.name') AS name, json_extract(value, '$.labels') AS labels,
        json_extract(value, '$.value') AS value FROM json_each(?)) AS item""",
    "minute": "strftime('%Y-%m-%d %H:%M:00.000000+00:00', 'now')",
    "number": "?",
    "audience_of_type": "(SELECT entry.value FROM json_each(?) AS entry WHERE entry.key = event_type)",
    "next_version": "MAX(version + 1, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))",
    "checked_ago": "MIN((julianday('now') - julianday(checked_at)) * 86400, ?)",
    "skip_locked": "",
    "in_list": "IN ",
    "end": "",
}


@cache
def postgres(tables: Tables) -> Statements:
    """Return the statements for PostgreSQL with these table names, written out once."""
    return _write_out("POSTGRES", _POSTGRES, tables, parameter="%s")


@cache
def sqlite(tables: Tables) -> Statements:
    """Return the statements for SQLite with these table names, written out once."""
    return _write_out("SQLITE", _SQLITE, tables, parameter="?")


def _write_out(database: str, syntax: Mapping[str, str], tables: Tables, parameter: str) -> Statements:
    parts = {
        **syntax,
        **tables.placeholders,
        "columns": emit.INSERT_COLUMNS,
        "is_unfinished": status.IS_UNFINISHED,
        "has_ended": status.HAS_ENDED,
        "is_delivered": status.IS_DELIVERED,
        "is_failed": status.IS_FAILED,
        "is_untried": status.IS_UNTRIED,
    }
    # Parts that contain others.
    parts["parcel"] = parts["parcel"].format(**parts)
    parts["destinations_version"] = delivery.DESTINATIONS_VERSION.format(**parts)
    parts["claimed"] = delivery.CLAIMED_COLUMNS.format(**parts)
    parts["ended"] = operations.ENDED.format(**parts)
    parts["old"] = inbox.INBOX_OLD.format(**parts)
    templates = {field.name: _template(field.name, database) for field in fields(Statements)}
    return Statements(**{name: text.format(**parts).replace("?", parameter) for name, text in templates.items()})


def _template(name: str, database: str) -> str:
    """Return the template of this name for the database; an empty text if only the other database has one."""
    for template in (f"{name.upper()}_{database}", name.upper()):
        for subject in SUBJECTS:
            if hasattr(subject, template):
                return str(getattr(subject, template))
    return ""
