"""Replace parts of an outbox by others, with times that suit a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outbox.core import Outbox
from outbox.throttle.destination_throttle import ThrottleTimes
from outbox.throttle.throttles import Throttles


def replace_delivery(box: Outbox, **parts: Any) -> Outbox:
    """Have the outbox deliver with these parts from now on: `replace_delivery(box, leases=LeaseKeeper(…))`."""
    box.delivery = replace(box.delivery, **parts)
    return box


def replace_throttles(box: Outbox, **times: Any) -> Outbox:
    """Give the outbox new throttles, with these times."""
    box.throttles = Throttles(box.settings, times=ThrottleTimes(**times))
    return replace_delivery(box, throttles=box.throttles)
