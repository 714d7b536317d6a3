"""The library as it was before order per key, with the tables of that time.

It neither reads nor records the destinations of the deployment, and does not write who had an event, as versions before
that did.
"""

from functools import partial
from typing import Any

from outbox.delivery.audience import Audiences
from outbox.destinations.recorded_destinations import RecordedDestinations, Snapshot
from outbox.destinations.recorder import Recorder
from outbox.storage import schema, statements
from outbox.storage.sql import delivery as sql

NOTHING_RECORDED = Snapshot(0, {})
# The versions of the tables that it knows.
KNOWN = schema.VERSIONS[:5]


def change(owner: Any, **names: Any) -> None:
    for name, value in names.items():
        setattr(owner, name, value)


def without(template: str, old: str, new: str) -> str:
    """The template without the new column; its parameters stay as they are."""
    assert old in template
    return template.replace(old, new)


change(schema, check=partial(schema.check, versions=KNOWN))
change(
    sql,
    DESTINATIONS_VERSION="0",
    CLAIMED_COLUMNS=without(sql.CLAIMED_COLUMNS, "kind, order_state", "kind, NULL"),
    DELIVERED=without(
        sql.DELIVERED,
        "updated_at = {now}, audience = COALESCE({number}, {audience_of_type})",
        "updated_at = CASE WHEN {number} IS NULL OR ?::text IS NULL THEN {now} ELSE {now} END",
    ),
    SETTLED_POSTGRES=without(
        without(sql.SETTLED_POSTGRES, "delivered_at, audience, order_state, lease_id", "delivered_at, lease_id"),
        "THEN {now} END, item.audience, item.order_state, NULL::uuid",
        "THEN {now} END, NULL::uuid",
    ),
)
statements.postgres.cache_clear()
change(RecordedDestinations, read=lambda _: NOTHING_RECORDED, at=lambda _, versions: NOTHING_RECORDED)
change(Recorder, keep_current=lambda _: None)
change(Audiences, id_of=lambda _, names: 0)

import tests.apps.ledger  # noqa: E402, F401  - its handlers
