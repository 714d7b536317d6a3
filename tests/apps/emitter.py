"""An application that commits one event after another until a file exists, whatever happens to its servers.

`python -m tests.apps.emitter STOP COMMITTED [MODULE]`: the ids of the events whose commit succeeded are entered into
COMMITTED. MODULE may set a broker of the application's own.
"""

import importlib
import os
import sys
import time
from pathlib import Path

import peewee

import outbox

PAUSE_SECONDS = 0.01


def emit_one() -> None:
    box = outbox.current()
    with box.dialect.connection(), box.database.atomic():
        event = outbox.emit("Thing", "1", "test.emitted", {"do": "pass"}, idempotency_key=outbox.UNIQUE)
    os.write(committed, f"{event.id}\n".encode())


for name in sys.argv[3:]:
    importlib.import_module(name)
stop = Path(sys.argv[1])
committed = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("emitting", flush=True)  # noqa: T201 - to whoever waits for it
while not stop.exists():
    try:
        emit_one()
    except (peewee.OperationalError, peewee.InterfaceError):
        outbox.current().dialect.discard_connection()
    time.sleep(PAUSE_SECONDS)
