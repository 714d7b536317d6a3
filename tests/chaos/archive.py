"""What only one of the workers loads beside the others' module: a destination that the others lack."""

import os

import outbox
from tests.chaos.destinations import ARCHIVE, ARCHIVE_LEDGER, types_for
from tests.chaos.ledger import Ledger, digest

ledger = Ledger(os.environ[ARCHIVE_LEDGER])


@outbox.handler(*types_for(ARCHIVE), name=ARCHIVE)
def archive(event: outbox.Event) -> None:
    body = digest(event.body)
    ledger.write("accepted", id=str(event.id), body=body, payload=body, attempt=event.attempt, pid=os.getpid())
