"""An application with three databases: the default one, "eu", and "slow", whose host does not respond.

Its handler emits another event: it belongs to the outbox whose event is handled.
"""

import os

import outbox
from outbox.storage.connect import open_database

for name in ("eu", "slow"):
    outbox.configure(name=name, database=open_database(os.environ[f"OUTBOX_TEST_{name.upper()}"]))


@outbox.handler("test.emitted", name="answer")
def answer(event: outbox.Event) -> None:
    outbox.emit("Thing", event.aggregate_id, "test.answered", {"of": str(event.id)}, idempotency_key=outbox.UNIQUE)


outbox.ignore("test.answered")
