"""Events with an ordering key, and a destination at which some of them hold back the others."""

from typing import Any

import outbox
from outbox.core import Outbox
from outbox.storage.models import OutboxEvent


class Crm:
    """A handler that rejects some events for good, and refuses others for now, by the id of their aggregate."""

    def __init__(self, name: str = "crm", **options: Any) -> None:
        self.rejected: set[str] = set()
        self.refused: set[str] = set()
        self.got: list[str] = []
        outbox.handler("order.*", name=name, **options)(self._handle)

    def _handle(self, event: outbox.Event) -> None:
        if event.aggregate_id in self.rejected:
            raise outbox.Reject("no such customer")
        if event.aggregate_id in self.refused:
            raise ValueError("busy")
        self.got.append(event.aggregate_id)


def keyed(*ids: str, key: str = "k", **fields: Any) -> list[OutboxEvent]:
    """Return events of one ordering key, one for each id of an aggregate."""
    return [outbox.emit("Order", id, "order.placed", ordering_key=key, **fields) for id in ids]


def block(box: Outbox, crm: Crm, *, key: str = "k", followers: int = 2, failed: bool = True) -> list[OutboxEvent]:
    """Return events of a key of which the first has failed, or waits for a retry, and the others wait behind it."""
    head = f"{key}-0"
    (crm.rejected if failed else crm.refused).add(head)
    events = keyed(head, *(f"{key}-{number}" for number in range(1, followers + 1)), key=key)
    run(box)
    return events


def run(box: Outbox) -> None:
    """Deliver until nothing is due."""
    while box.process_pending_events()["processed"]:
        pass
