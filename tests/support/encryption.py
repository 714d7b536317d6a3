"""Keys for tests, and the table as somebody who reads it without them sees it."""

from __future__ import annotations

import json
from typing import Any

from outbox.core import Outbox
from outbox.encryption.keys import new_key
from outbox.storage.models import OutboxEvent

OLD, NEW, OTHER = new_key(), new_key(), new_key()


def with_keys(box: Outbox, *keys: str) -> Outbox:
    """Another process on the same table, with the same handlers and these keys; without any, it has none."""
    settings = box.settings.load(
        {},
        database_url="sqlite:///unused",
        dispatch="off",
        publish_seconds=0,
        backoff_jitter=False,
        encryption_keys=" ".join(keys) or None,
    )
    return Outbox(settings, database=box.database, registry=box.registry)


def texts(box: Outbox) -> list[tuple[str, str]]:
    """The columns `payload` and `headers` of all rows, in the order in which they were emitted, as they are stored."""
    columns = box.dialect.statements.stored_texts.split("FROM")[0]
    with box.dialect.connection():
        rows = box.dialect.run(f"{columns} FROM outbox_event ORDER BY seq").fetchall()
    return [(payload, headers) for _, payload, headers in rows]


def dump(box: Outbox) -> str:
    """Every column of every row of every table, as text."""
    with box.dialect.connection():
        tables = [name for name in box.database.get_tables() if name not in ("note", "sqlite_sequence")]
        rows = [row for name in tables for row in box.database.execute_sql(f'SELECT * FROM "{name}"').fetchall()]  # noqa: S608
    return json.dumps(rows, default=str, ensure_ascii=False)


def damage(event: OutboxEvent) -> None:
    """Change one character of the ciphertext of a payload."""
    text = event.payload["outbox_encrypted"]
    middle = text[-9]
    changed = text[:-9] + ("A" if middle != "A" else "B") + text[-8:]
    OutboxEvent.update(payload={"outbox_encrypted": changed}).where(OutboxEvent.id == event.id).execute()


def encrypted_payload(payload: Any) -> bool:
    """Whether a payload, as a query of the application reads it, is encrypted."""
    return list(payload) == ["outbox_encrypted"]
