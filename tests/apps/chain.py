"""Handlers that emit: an event of type `chain.first` is followed by one of type `test.emitted`, in a transaction."""

import outbox
import tests.apps.ledger  # noqa: F401 - it handles what is emitted here


@outbox.handler("chain.first", name="chain")
def follow(event: outbox.Event) -> None:
    with outbox.current().database.atomic():
        outbox.emit("Thing", event.id, "test.emitted", {"do": "pass"})
