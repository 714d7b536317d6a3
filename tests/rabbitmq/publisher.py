"""A destination whose circuit breaker never opens: after an outage, a test would wait long for it."""

import os

import outbox

bus = outbox.Rabbit(
    "bus", url=os.environ["OUTBOX_TEST_BUS_URL"], exchange=os.environ["OUTBOX_TEST_BUS_EXCHANGE"], timeout=5
)
bus.limits = outbox.Limits(open_after=None)
outbox.add_destination(bus)
