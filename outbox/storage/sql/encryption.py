"""SQL for encrypted rows: replace one, walk the table to encrypt it with another key, and count what is left."""

from __future__ import annotations

from outbox.storage.sql import emit

# A ciphertext is bound to the id of its row. So `on_duplicate="replace"` looks the row up before it encrypts, and then
# replaces the content of that row only.
FIND_UNTRIED = """
SELECT {id} FROM {event_table} WHERE event_type = ? AND idempotency_key = ? AND kind = ?
    AND tenant_id {is_same} ? AND {is_untried}
"""
REPLACE_ROW = emit.REPLACE.replace("RETURNING", "AND id = ?\nRETURNING")

# `outbox reencrypt` walks along the primary key. The columns are compared as the texts that were read, so a row that
# `on_duplicate="replace"` has changed meanwhile is left as it is. A row that is locked, or under a lease, is skipped:
# `updated_at` stays as it is, because the retention of failed events is counted from it.
NEWEST_ID = "SELECT {id} FROM {event_table} ORDER BY id DESC LIMIT 1"
STORED_TEXTS = """
SELECT {id}, {payload}, {headers} FROM {event_table} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?
"""
REENCRYPT = """
UPDATE {event_table} SET payload = ?, headers = ?
WHERE id {in_list}(SELECT id FROM {event_table} WHERE id = ? AND {payload} = ? AND {headers} = ?
    AND (lease_until IS NULL OR lease_until <= {now}) {skip_locked}){end}
"""


# How many rows are encrypted with each key, and how many are not, among the newest rows and among the unfinished ones
# that are due first: both are bounded. For payload and headers each, the parameters are how an encrypted text begins,
# as a pattern, where the id of its key begins, and how long that is.
def _keys(rows: str) -> str:
    return """
SELECT CASE WHEN {payload} LIKE ? THEN substr({payload}, ?, ?) WHEN {headers} LIKE ? THEN substr({headers}, ?, ?)
    WHEN {payload} <> '{{}}' OR {headers} <> '{{}}' THEN 'plain' END AS key_id, count(*)
FROM (SELECT payload, headers FROM {event_table} ROWS LIMIT ?) AS looked_at
GROUP BY 1
""".replace("ROWS", rows)


KEYS_OF_NEWEST = _keys("ORDER BY id DESC")
KEYS_OF_UNFINISHED = _keys("WHERE {is_unfinished} ORDER BY next_attempt_at")
