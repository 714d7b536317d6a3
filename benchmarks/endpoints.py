"""Fifty endpoints that answer at once, and one that never does: where `benchmarks.isolation` delivers to."""

from __future__ import annotations

import os

import outbox

HEALTHY = 50
HANGING = "hanging"
ADDRESS = "OUTBOX_TEST_RECEIVER"


def register(address: str) -> None:
    for name in [HANGING, *map(str, range(HEALTHY))]:
        outbox.add_destination(outbox.Webhook(name, f"{address}/{name}", events=[f"to.{name}"]))


if ADDRESS in os.environ:
    register(os.environ[ADDRESS])
