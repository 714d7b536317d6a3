"""Handlers for events with ordering keys: one that is sound, one that fails now and then, one that may be away.

None raises Unavailable: it would open a circuit breaker, which lets few events pass for a while after that.

A line of the ledger is one delivery: the handler's name, the key, and the event's number within the key.
"""

import os
from pathlib import Path
from zlib import crc32

import outbox

LEDGER, AWAY, REFUSED = "OUTBOX_TEST_LEDGER", "OUTBOX_TEST_AWAY", "OUTBOX_TEST_REFUSED"

# In one write each, so that the lines of many processes don't mix.
_ledger = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
# While these files exist, one handler is away, and another one refuses the first event of a key.
_away, _refused = Path(os.environ[AWAY]), Path(os.environ[REFUSED])


def deliver(name: str, event: outbox.Event) -> None:
    os.write(_ledger, f"{name} {event.ordering_key} {event.aggregate_id}\n".encode())


@outbox.handler("test.*", name="sound")
def sound(event: outbox.Event) -> None:
    deliver("sound", event)


@outbox.handler("test.*", name="failing")
def failing(event: outbox.Event) -> None:
    """Fail at the first attempt with a tenth of the events, and at each with the first event of a key."""
    if event.attempt == 1 and crc32(event.id.bytes) % 10 == 0:
        raise ValueError("one of ten")
    if event.ordering_key == "refused" and event.aggregate_id == "0" and _refused.exists():
        raise ValueError("refused until the file is gone")
    deliver("failing", event)


@outbox.handler("test.*", name="away")
def away(event: outbox.Event) -> None:
    if _away.exists():
        raise ValueError("away until the file is gone")
    deliver("away", event)
