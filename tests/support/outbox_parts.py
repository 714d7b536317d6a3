"""Replace parts of an outbox by others, with times that suit a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outbox.core import Outbox
from outbox.delivery.lease import LeaseKeeper
from outbox.throttle.destination_throttle import ThrottleTimes
from outbox.throttle.throttles import Throttles
from tests.support.servers import PATIENCE_SECONDS


def replace_delivery(box: Outbox, **parts: Any) -> Outbox:
    """Have the outbox deliver with these parts from now on: `replace_delivery(box, leases=LeaseKeeper(…))`."""
    box.delivery = replace(box.delivery, **parts)
    return box


def waiting_for_handlers(box: Outbox) -> Outbox:
    """Have the outbox's drains wait for their handlers, however slow the machine is, and give back no events.

    Otherwise a drain goes on without a handler that takes longer than a tenth of a second, and the events of a batch
    that takes longer than a second are given back.
    """
    leases = LeaseKeeper(box.dialect, box.settings, slice_seconds=PATIENCE_SECONDS)
    return replace_delivery(box, waits=replace(box.delivery.waits, drain_seconds=PATIENCE_SECONDS), leases=leases)


def replace_throttles(box: Outbox, **times: Any) -> Outbox:
    """Give the outbox new throttles, with these times."""
    box.throttles = Throttles(box.settings, times=ThrottleTimes(**times))
    return replace_delivery(box, throttles=box.throttles)
