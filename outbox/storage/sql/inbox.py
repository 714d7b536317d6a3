"""SQL for the inbox: which handler has processed which message."""

from __future__ import annotations

# Of two transactions that insert the same message, the second waits for the first to commit, and gets no row back.
INBOX_INSERT = """
INSERT INTO {inbox_table} (message_id, handler_name, processed_at) VALUES (?, ?, {distinct_now})
ON CONFLICT (message_id, handler_name) DO NOTHING
RETURNING {version}
"""
# It runs after a handler has raised: the row is there if the handler itself has committed the transaction. The
# version makes sure that it is the row of this insert, and not one that another consumer has inserted since.
INBOX_TAKE_BACK = "DELETE FROM {inbox_table} WHERE message_id = ? AND handler_name = ? AND {version} = ? RETURNING 1"
# For the deliveries that a consumer counts: which rows a message has, and to remove one of them.
INBOX_HANDLERS = "SELECT handler_name FROM {inbox_table} WHERE message_id = ?"
INBOX_FORGET = "DELETE FROM {inbox_table} WHERE message_id = ? AND handler_name = ?"
INBOX_OLD = "SELECT {row} FROM {inbox_table} WHERE processed_at < {before} ORDER BY processed_at LIMIT ?"
INBOX_DELETE = "DELETE FROM {inbox_table} WHERE {row} {in_list}({old} {skip_locked}){end}"
INBOX_COUNT = "SELECT count(*) FROM ({old}) AS old"
