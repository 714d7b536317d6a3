"""SQL for what processes report about themselves every few seconds: that they run, their details, and their counts.

The counts are one parameter, a JSON list. They are written in the order of the keys, so that two processes that report
at the same time wait for each other in the same order and can't deadlock.
"""

from __future__ import annotations

# A process numbers its reports ("parcel"). If the row has this number or a later one, the report was stored before, and
# its process sends it again because it got no confirmation of the commit. Then no row is changed.
PROCESS_SEEN = """
INSERT INTO {process_table} (id, kind, host, pid, started_at, seen_at, details) VALUES (?, ?, ?, ?, {now}, {now}, ?)
ON CONFLICT (id) DO UPDATE SET seen_at = EXCLUDED.seen_at, details = EXCLUDED.details
WHERE COALESCE({parcel}, 0) < ?
"""
PROCESS_GONE = "DELETE FROM {process_table} WHERE id = ?"
COUNT_WORKERS = "SELECT count(*) FROM {process_table} WHERE kind IN ('worker', 'up') AND seen_at >= {before}"
TOTALS = """
INSERT INTO {total_table} (name, labels, value)
SELECT name, labels, value FROM {counts} WHERE true ORDER BY name, labels
ON CONFLICT (name, labels) DO UPDATE SET value = {total_table}.value + EXCLUDED.value
"""
# Each count is written three times: for the minute, and with a prefix before its name for the quarter of an hour and
# for the hour. So the charts of a day and of a week read few rows. The buckets of types are many: their counts are not
# stored for the minute.
MINUTES = """
INSERT INTO {minute_table} (minute, name, labels, value)
SELECT moment, prefix || name, labels, value
FROM {counts} CROSS JOIN (
    SELECT {minute} AS moment, '' AS prefix
    UNION ALL SELECT {quarter}, 'quarter:' UNION ALL SELECT {hour}, 'hour:'
) AS period
WHERE prefix <> '' OR name <> 'type_bucket' ORDER BY prefix, name, labels
ON CONFLICT (minute, name, labels) DO UPDATE SET value = {minute_table}.value + EXCLUDED.value
"""
FORGET_PROCESSES = "DELETE FROM {process_table} WHERE seen_at < {before}"
FORGET_MINUTES = """
DELETE FROM {minute_table} WHERE minute < {before} AND substr(name, 1, 5) <> 'hour:'
    AND substr(name, 1, 8) <> 'quarter:'
"""
FORGET_QUARTERS = "DELETE FROM {minute_table} WHERE minute < {before} AND substr(name, 1, 5) <> 'hour:'"
FORGET_HOURS = "DELETE FROM {minute_table} WHERE minute < {before}"
