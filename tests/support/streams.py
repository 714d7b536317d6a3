"""The reports of consumers that run elsewhere."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

from outbox.core import Outbox
from outbox.storage.operator_models import Process


def report_consumer(box: Outbox, **stream: Any) -> str:
    """Store the report of a consumer, later than those before it; return the id of its process."""
    Process.bind(box.database)
    defaults = {"group": "outbox", "dead_letter": "orders.dead", "processed": 0, "parked": 0}
    id, earlier = str(uuid4()), Process.select().count()
    seen_at = box.dialect.now() - timedelta(seconds=60 - earlier)
    details = {"publish_seconds": 60, "stream": defaults | stream}
    Process.create(id=id, kind="consumer", host="web", pid=1, details=details, started_at=seen_at, seen_at=seen_at)
    return id
