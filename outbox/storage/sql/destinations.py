"""SQL for the recorded destinations of the deployment, and the audiences that delivered events had.

A transaction that changes the destinations locks their version first, so that changes happen one after another. The
version changes whenever the result of "which names want this type?" may have changed.
"""

from __future__ import annotations

DESTINATIONS = """
SELECT control.version, destination.name, destination.pattern, destination.retired_at IS NOT NULL,
    destination.retired_by, destination.replaced_by, destination.seen_at >= {before}
FROM {control_table} AS control LEFT JOIN {destination_table} AS destination ON true
WHERE control.name = 'destinations'
ORDER BY destination.name, destination.pattern
"""
# SQLite has no row locks: a write takes the only write lock.
DESTINATIONS_LOCK_POSTGRES = "SELECT version FROM {control_table} WHERE name = 'destinations' FOR UPDATE"
DESTINATIONS_LOCK_SQLITE = "UPDATE {control_table} SET version = version WHERE name = 'destinations'"
DESTINATIONS_CHANGED = """
UPDATE {control_table} SET version = {next_version}, updated_at = {now} WHERE name = 'destinations'
"""
DESTINATION_RECORD = """
INSERT INTO {destination_table} (name, pattern, recorded_at, seen_at, checked_at) VALUES (?, ?, {now}, {now}, {now})
ON CONFLICT (name, pattern) DO UPDATE
SET seen_at = EXCLUDED.seen_at, absent_seconds = 0, retired_at = NULL, retired_by = NULL, replaced_by = NULL
"""
# A worker that stops makes its names count as absent soon, unless another worker refreshes them meanwhile.
DESTINATION_LEAVE = """
UPDATE {destination_table} SET seen_at = {before} WHERE name = ? AND retired_at IS NULL
"""
# Delete the patterns of a destination that no worker has recorded for a while. Workers still have the destination.
DESTINATION_NARROW = """
DELETE FROM {destination_table}
WHERE name = ? AND retired_at IS NULL AND seen_at < {before}
"""
DESTINATION_RETIRE = """
UPDATE {destination_table} SET retired_at = {now}, retired_by = ?, replaced_by = ?
WHERE name = ? AND retired_at IS NULL
"""
# A name that was never recorded: events that are older than this table may wait for it.
DESTINATION_RETIRE_UNRECORDED = """
INSERT INTO {destination_table}
    (name, pattern, recorded_at, seen_at, checked_at, retired_at, retired_by, replaced_by)
VALUES (?, '*', {now}, {now}, {now}, {now}, ?, ?)
"""
DESTINATION_LINK = "UPDATE {destination_table} SET replaced_by = ? WHERE name = ? AND retired_at IS NOT NULL"
# The time since the last check only counts if a worker has refreshed any name since then, and no more of it than the
# parameter: while no worker runs, no destination ages.
DESTINATION_ABSENT = """
UPDATE {destination_table}
SET absent_seconds = CASE
        WHEN seen_at >= checked_at THEN 0
        WHEN EXISTS (SELECT 1 FROM {destination_table} AS other WHERE other.seen_at > other.checked_at)
        THEN absent_seconds + {checked_ago}
        ELSE absent_seconds END,
    checked_at = {now}
WHERE retired_at IS NULL
"""
DESTINATIONS_EXPIRED = """
SELECT name FROM {destination_table} WHERE retired_at IS NULL
GROUP BY name HAVING min(absent_seconds) >= ? ORDER BY name
"""

AUDIENCE_FIND = "SELECT id FROM {audience_table} WHERE digest = ?"
AUDIENCE_ADD = "INSERT INTO {audience_table} (digest, names) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING"
AUDIENCE_NAMES = "SELECT names FROM {audience_table} WHERE id = ?"
