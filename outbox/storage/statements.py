"""Write out the templates of `sql/` for one database: its dialect, its placeholder for parameters, its table names.

The dialects run the statements; the rest of the library reads them as `dialect.statements.claim` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache

from outbox.storage import status, timestamp
from outbox.storage.schema_ordering import CAN_HOLD
from outbox.storage.sql import (
    archive,
    attempts,
    control,
    delivery,
    destinations,
    emit,
    encryption,
    erasure,
    inbox,
    operations,
    ordering,
    overview,
    periodic,
    telemetry,
    testing,
)
from outbox.table_names import Tables

SUBJECTS = (
    archive,
    emit,
    delivery,
    ordering,
    operations,
    destinations,
    inbox,
    telemetry,
    periodic,
    encryption,
    control,
    attempts,
    erasure,
    overview,
    testing,
)


@dataclass(frozen=True, slots=True)
class Statements:
    """Every statement, written out for one database and one set of table names."""

    insert: str
    insert_later: str
    insert_kind: str
    insert_kind_later: str
    insert_ordered: str
    insert_ordered_later: str
    insert_with_subject: str
    lock_key: str
    draw_numbers: str
    reserve_numbers: str
    insert_many: str
    insert_many_ordered: str
    replace: str
    set_aside: str
    cancel: str
    cancel_by_key: str
    due: str
    claim: str
    delivered: str
    settled: str
    partly_settled: str
    released: str
    renewed: str
    count_due: str
    earlier: str
    parked: str
    wait: str
    recorded_waits: str
    waits_since: str
    first_waiting: str
    waiting_destinations: str
    waiting_pairs: str
    blocked_pairs: str
    count_waiting: str
    count_parked: str
    release: str
    first_events: str
    forget_waiting: str
    make_due: str
    unpark_all: str
    unpark: str
    forget_destination: str
    delete_ended: str
    count_ended: str
    retry: str
    retry_now: str
    fail_by_hand: str
    delete_by_hand: str
    replay: str
    skip: str
    skip_where_failed: str
    audit_begin: str
    audit_add: str
    audit_stop: str
    audit_batch: str
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
    inbox_handlers: str
    inbox_forget: str
    inbox_delete: str
    inbox_count: str
    process_seen: str
    process_gone: str
    count_workers: str
    totals: str
    minutes: str
    forget_processes: str
    forget_minutes: str
    forget_quarters: str
    forget_hours: str
    forget_audit: str
    forget_audit_batches: str
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
    find_untried: str
    replace_row: str
    newest_id: str
    stored_texts: str
    reencrypt: str
    keys_of_newest: str
    keys_of_unfinished: str
    controls: str
    controls_set: str
    sooner: str
    near: str
    unpause: str
    in_flight: str
    attempts_add: str
    attempts_add_first: str
    attempts_trim: str
    attempts_forget: str
    attempts_forget_old: str
    erase: str
    archive: str
    backlog: str
    failures: str
    due_ids: str
    hide: str
    show: str
    move_events_back: str
    move_waiting_back: str
    move_inbox_back: str


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
    "latest": _LATEST,
    "pairs": "unnest(?::text[], ?::text[]) AS item (key, destination)",
    "any_waits": "(SELECT EXISTS (SELECT FROM {waiting_table}))",
    "seconds_since_update": "EXTRACT(EPOCH FROM statement_timestamp() - updated_at)::float8",
    "row": "ctid",
    # The transaction that wrote a row.
    "version": "xmin::text",
    "distinct_now": "statement_timestamp()",
    "parcel": "({process_table}.details->>'parcel')::bigint",
    "counts": "json_to_recordset(?) AS item (name text, labels text, value float8)",
    "minute": "date_trunc('minute', statement_timestamp())",
    "quarter": "to_timestamp(floor(extract(epoch FROM statement_timestamp()) / 900) * 900)",
    "hour": "to_timestamp(floor(extract(epoch FROM statement_timestamp()) / 3600) * 3600)",
    "number": "?::integer",
    # As a subquery the object is parsed once, not for every row.
    "audience_of_type": "((SELECT ?::jsonb) ->> event_type)::integer",
    # From the clock, so that no number is used twice, even after a failover or when the row was restored by hand.
    "next_version": "GREATEST(version + 1, (EXTRACT(EPOCH FROM statement_timestamp()) * 1000000)::bigint)",
    "checked_ago": "LEAST(EXTRACT(EPOCH FROM statement_timestamp() - checked_at), ?)",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
    "in_list": "= ANY (ARRAY",
    "entries": "LATERAL json_each(progress)",
    "failed_hour": f"floor(extract(epoch FROM LEAST(GREATEST(updated_at, {_EARLIEST}), {_LATEST})) / 3600)::bigint",
    "entry_state": "item.value ->> 'state'",
    "entry_error": "item.value ->> 'error'",
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
    "latest": f"'{timestamp.to_text(timestamp.LATEST)}'",
    "pairs": """(SELECT json_extract(value, '$[0]') AS key, json_extract(value, '$[1]') AS destination
        FROM json_each(?)) AS item""",
    "any_waits": "EXISTS (SELECT 1 FROM {waiting_table})",
    "seconds_since_update": "(julianday('now') - julianday(updated_at)) * 86400",
    "row": "rowid",
    # SQLite stores no transaction id. Two rows of the same millisecond differ by random microseconds.
    "version": "rowid || ' ' || processed_at",
    "distinct_now": "strftime('%Y-%m-%d %H:%M:%f', 'now') || printf('%03d+00:00', abs(random() % 1000))",
    "parcel": "json_extract({process_table}.details, '$.parcel')",
    "counts": """(SELECT json_extract(value, '$.name') AS name, json_extract(value, '$.labels') AS labels,
        json_extract(value, '$.value') AS value FROM json_each(?)) AS item""",
    "minute": "strftime('%Y-%m-%d %H:%M:00.000000+00:00', 'now')",
    "quarter": """strftime('%Y-%m-%d %H:%M:00.000000+00:00', CAST(strftime('%s', 'now') AS INTEGER) / 900 * 900,
        'unixepoch')""",
    "hour": "strftime('%Y-%m-%d %H:00:00.000000+00:00', 'now')",
    "number": "?",
    "audience_of_type": "(SELECT entry.value FROM json_each(?) AS entry WHERE entry.key = event_type)",
    "next_version": "MAX(version + 1, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))",
    "checked_ago": "MIN((julianday('now') - julianday(checked_at)) * 86400, ?)",
    "skip_locked": "",
    "in_list": "IN ",
    "entries": "json_each(progress)",
    "failed_hour": "CAST(strftime('%s', updated_at) AS INTEGER) / 3600",
    "entry_state": "CASE WHEN item.type = 'object' THEN json_extract(item.value, '$.state') END",
    "entry_error": "json_extract(item.value, '$.error')",
    "end": "",
}


@cache
def postgres(tables: Tables) -> Statements:
    """Return the statements for PostgreSQL with these table names, written out once."""
    return _write_out("POSTGRES", _POSTGRES, tables, parameter="%s")


@cache
def asyncpg(tables: Tables) -> Statements:
    """Return the statements for PostgreSQL with asyncpg, which are given arrays and timestamps as text.

    asyncpg encodes a parameter as the type that the server infers for it. Without the cast from text that would be the
    array or the timestamp, for which it takes no text.
    """
    written = postgres(tables)
    texts = {field.name: _TEXT_PARAMETER.sub(r"%s::text\1", getattr(written, field.name)) for field in fields(written)}
    return Statements(**texts)


# The columns that are read as text.
JSON = ("payload", "headers", "progress")
# A parameter that is cast to an array or to a timestamp.
_TEXT_PARAMETER = re.compile(r"%s(::(?:\w+\[\]|timestamptz))")


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
        "can_hold": CAN_HOLD,
    }
    # Parts that contain others.
    parts["is_made_due"] = ordering.IS_MADE_DUE.strip().format(**parts)
    parts["parcel"] = parts["parcel"].format(**parts)
    parts["any_waits"] = parts["any_waits"].format(**parts)
    parts["destinations_version"] = delivery.DESTINATIONS_VERSION.format(**parts)
    parts["claimed"] = delivery.CLAIMED_COLUMNS.format(**parts)
    parts["ended"] = operations.ENDED.format(**parts)
    parts["archived"] = ", ".join(str(parts.get(name, name)) if name in JSON else name for name in archive.ARCHIVED)
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
