"""An application with a broker of its own, whose drains can be held: each waits, after its claim, for a file to exist.

`claimed` is entered into the ledger after each claim, `drained` at the end of each drain, also of one that was refused.
"""

import os
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from outbox.delivery import deliver
from tests.apps.ledger import write

GATE = "OUTBOX_TEST_GATE"

dramatiq.set_broker(RedisBroker(url=os.environ["OUTBOX_REDIS_URL"], namespace=os.environ["OUTBOX_NAMESPACE"]))
deliver_batch, drain = deliver.deliver_batch, deliver.drain


def note(what: str) -> None:
    write(what, id=str(uuid4()), body="", attempt=1, pid=os.getpid())


def deliver_and_wait(*arguments: Any, **options: Any) -> Any:
    batch = deliver_batch(*arguments, **options)
    note("claimed")
    while not Path(os.environ[GATE]).exists():
        time.sleep(0.01)
    return batch


def drain_and_note(*arguments: Any, **options: Any) -> int:
    claimed = drain(*arguments, **options)
    note("drained")
    return claimed


vars(deliver).update(deliver_batch=deliver_and_wait, drain=drain_and_note)
