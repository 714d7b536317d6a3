"""SQL that `emit`, `emit_many`, `send` and `cancel` run: storing rows, replacing them, and taking them back."""

from __future__ import annotations

# Without `kind`, which is 'event' by default: emitters also work on tables of versions 1 to 3, which lack the column.
INSERT_COLUMNS = """id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
    idempotency_key, max_attempts, status, attempts, next_attempt_at, created_at, updated_at"""

# For a duplicate no row is returned: an error would end the caller's transaction on PostgreSQL. Most events are due at
# once: without a parameter, an expression and a returned column for the due time, their insert takes a tenth less time.
INSERT = """
INSERT INTO {event_table} ({columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, {now}, {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at
"""
INSERT_LATER = """
INSERT INTO {event_table} ({columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, COALESCE({moment}, {after}), {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at, next_attempt_at
"""
# The same for rows of another kind than events.
INSERT_KIND = """
INSERT INTO {event_table} (kind, {columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, {now}, {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at
"""
INSERT_KIND_LATER = """
INSERT INTO {event_table} (kind, {columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, COALESCE({moment}, {after}), {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at, next_attempt_at
"""

# The same for events with an ordering key.
INSERT_ORDERED = """
INSERT INTO {event_table} (ordering_key, order_state, {columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, {now}, {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at
"""
INSERT_ORDERED_LATER = """
INSERT INTO {event_table} (ordering_key, order_state, {columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, COALESCE({moment}, {after}), {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at, next_attempt_at
"""
# The same for a row of any kind that has a subject (`outbox erase`): few have one.
INSERT_WITH_SUBJECT = """
INSERT INTO {event_table} (kind, ordering_key, order_state, subject, {columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, COALESCE({moment}, {after}), {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at, next_attempt_at
"""
# `ordered="strict"`: the lock is held until the caller's transaction ends, and the number is drawn after it was
# acquired. So the transactions of one key commit in the order of their numbers. SQLite has one writer at a time anyway.
LOCK_KEY_POSTGRES = "SELECT pg_advisory_xact_lock(hashtextextended(?, 0))"

# The caller sorts the rows by key, so that two transactions that insert the same keys wait for each other in the same
# order and can't deadlock. It draws the numbers before that, so that `seq` follows the order of emission: the identity
# column would draw them in the order of the insert, which is that of the keys. Drawing needs a right on the sequence
# that an identity column does not need. Without it this returns no rows: an error would end the caller's transaction.
# (The sequence is looked up once, not for each number: that took ten times as long.)
DRAW_NUMBERS_POSTGRES = """
SELECT nextval(sequence)
FROM (SELECT pg_get_serial_sequence('{event_table}', 'seq')::regclass AS sequence OFFSET 0) AS found,
     generate_series(1, ?)
WHERE has_sequence_privilege(sequence, 'USAGE, UPDATE')
"""
# How a role without that right draws them: the identity column numbers these rows, and they are rolled back at once. A
# number that was drawn stays used. Each row's key is its id, so that no transaction waits for another. The other
# columns are those that are stored later, so triggers and policies on the table allow both or neither. With this
# `emit_many` took 1.5 times as long for a thousand events, and twice as long for ten.
RESERVE_NUMBERS_POSTGRES = """
INSERT INTO {event_table} ({columns})
SELECT id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id, id::text,
    max_attempts, 'pending', 0, {now}, {now}, {now}
FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::json[], %s::json[], %s::text[], %s::text[], %s::text[],
            %s::int[])
AS item (id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id, idempotency_key,
         max_attempts)
RETURNING id, seq
"""
# Each column is one parameter, an array literal (`array_literal.py`): measured against COPY into a staging table,
# json_to_recordset and psycopg's executemany it took the least time, in Python and in the server. The numbers of the
# stored rows are returned as one list: their timestamps are the same for nearly all of them.
INSERT_MANY_POSTGRES = """
WITH stored AS (
    INSERT INTO {event_table} (seq, {columns}) OVERRIDING SYSTEM VALUE
    SELECT seq, id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
        idempotency_key, max_attempts, 'pending', 0, COALESCE(due_at, {now} + due_in * interval '1 second'), {now},
        {now}
    FROM unnest(%s::bigint[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::json[], %s::json[], %s::text[],
                %s::text[], %s::text[], %s::int[], %s::timestamptz[], %s::float8[])
    AS item (seq, id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
             idempotency_key, max_attempts, due_at, due_in)
    ON CONFLICT (event_type, idempotency_key) DO NOTHING
    RETURNING seq, created_at, next_attempt_at
)
SELECT array_agg(seq), created_at, next_attempt_at FROM stored GROUP BY created_at, next_attempt_at
"""

# The same with ordering keys and subjects. Rows of one statement are due at the same time: a microsecond between them
# lets workers claim them in their order.
INSERT_MANY_ORDERED_POSTGRES = """
WITH stored AS (
    INSERT INTO {event_table} (seq, {columns}, ordering_key, order_state, subject) OVERRIDING SYSTEM VALUE
    SELECT seq, id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
        idempotency_key, max_attempts, 'pending', 0,
        COALESCE(due_at, {now} + due_in * interval '1 second' + place * interval '1 microsecond'), {now}, {now},
        ordering_key, order_state, subject
    FROM unnest(%s::bigint[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::json[], %s::json[], %s::text[],
                %s::text[], %s::text[], %s::int[], %s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::float8[],
                %s::int[])
    AS item (seq, id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
             idempotency_key, max_attempts, ordering_key, order_state, subject, due_at, due_in, place)
    ON CONFLICT (event_type, idempotency_key) DO NOTHING
    RETURNING seq, created_at, next_attempt_at
)
SELECT array_agg(seq), created_at, next_attempt_at FROM stored GROUP BY created_at, next_attempt_at
"""

# `on_duplicate="replace"`: the newest content wins, if no destination may have seen the old one: a duplicate delivery
# must have the same bytes under the same id. The event of another tenant is neither replaced nor set aside.
REPLACE = """
UPDATE {event_table}
SET aggregate_type = ?, aggregate_id = ?, payload = ?, headers = ?, correlation_id = ?, tenant_id = ?,
    max_attempts = ?, ordering_key = ?, order_state = ?, subject = ?,
    next_attempt_at = COALESCE({moment}, {after}), updated_at = {now}
WHERE event_type = ? AND idempotency_key = ? AND kind = ? AND tenant_id {is_same} ? AND {is_untried}
RETURNING {id}, seq, created_at, next_attempt_at
"""
# Otherwise the old row gives up its key, so that a new row can have it.
SET_ASIDE = """
UPDATE {event_table} SET idempotency_key = 'replaced:' || {id}
WHERE event_type = ? AND idempotency_key = ? AND kind = ? AND tenant_id {is_same} ?
"""

# A job has the id of its row, or the id of a Dramatiq message, which is in `aggregate_id`.
CANCEL = """
DELETE FROM {event_table} WHERE (id = ? OR (kind = 'job' AND aggregate_id = ?)) AND {is_untried}
"""
CANCEL_BY_KEY = """
DELETE FROM {event_table} WHERE event_type = ? AND idempotency_key = ? AND kind = ? AND {is_untried}
"""
