"""What workers do in measurements that are not about the work: nothing."""

from __future__ import annotations

import outbox
from outbox.events.event import Event


@outbox.handler("*", name="nothing")
def do_nothing(event: Event) -> None:
    pass
