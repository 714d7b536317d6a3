"""The library as it was before the latest version of its tables: it knows of none beyond the one before.

So it neither reads nor records the destinations of the deployment, and does not write who had an event.
"""

from functools import partial
from typing import Any

from outbox.delivery.audience import Audiences
from outbox.destinations.recorded_destinations import RecordedDestinations, Snapshot
from outbox.destinations.recorder import Recorder
from outbox.storage import schema, statements
from outbox.storage.sql import delivery as sql

NOTHING_RECORDED = Snapshot(0, {})


def change(owner: Any, **names: Any) -> None:
    for name, value in names.items():
        setattr(owner, name, value)


def without(template: str, old: str, new: str) -> str:
    """The template without the new column; its parameters stay as they are."""
    assert old in template
    return template.replace(old, new)


change(schema, check=partial(schema.check, versions=schema.VERSIONS[:-1]))
change(
    sql,
    DESTINATIONS_VERSION="0",
    DELIVERED=without(
        sql.DELIVERED,
        "updated_at = {now}, audience = COALESCE({number}, {audience_of_type})",
        "updated_at = CASE WHEN {number} IS NULL OR ?::text IS NULL THEN {now} ELSE {now} END",
    ),
    SETTLED=without(
        sql.SETTLED,
        "audience = ?, lease_id = NULL, lease_until = NULL",
        "lease_id = NULL, lease_until = CASE WHEN ?::integer IS NULL THEN NULL::timestamptz END",
    ),
)
statements.postgres.cache_clear()
change(RecordedDestinations, read=lambda _: NOTHING_RECORDED, at=lambda _, versions: NOTHING_RECORDED)
change(Recorder, keep_current=lambda _: None)
change(Audiences, id_of=lambda _, names: 0)

import tests.apps.ledger  # noqa: E402, F401  - its handlers
