"""An application that commits so many events, each when the one before it was delivered.

`python -m tests.apps.in_turn MODULE NUMBER`: MODULE sets the application's broker. It ends with 1 if an event is not
delivered in time.
"""

import importlib
import sys
from uuid import UUID

import outbox
from tests.support.servers import wait_until


def emit_one() -> UUID:
    box = outbox.current()
    with box.dialect.connection(), box.database.atomic():
        return outbox.emit("Thing", "1", "test.emitted", {"do": "pass"}, idempotency_key=outbox.UNIQUE).id


def is_delivered(id: UUID) -> bool:
    with outbox.current().dialect.connection():
        return outbox.OutboxEvent.get_by_id(id).status == "delivered"


importlib.import_module(sys.argv[1])
for number in range(int(sys.argv[2])):
    emitted = emit_one()
    if not wait_until(lambda: is_delivered(emitted)):  # noqa: B023 - called before the next one
        sys.exit(f"event {number} was not delivered")
print("all delivered")  # noqa: T201 - to whoever reads the log
