"""Fifty endpoints that answer at once, and two that never do: where `benchmarks.isolation` delivers to."""

from __future__ import annotations

import os

import outbox

HEALTHY = 50
HANGING = "hanging"
FLOODING = "flooding"  # sends interim responses without end
ADDRESS = "OUTBOX_TEST_RECEIVER"
HOSTILE_ADDRESS = "OUTBOX_TEST_HOSTILE_RECEIVER"
CLIENT = "OUTBOX_TEST_CLIENT"


def register(address: str, hostile: str, client: str) -> None:
    addresses = {HANGING: hostile, FLOODING: hostile, **dict.fromkeys(map(str, range(HEALTHY)), address)}
    for name, place in addresses.items():
        outbox.add_destination(outbox.Webhook(name, f"{place}/{name}", events=[f"to.{name}"], client=client))


if ADDRESS in os.environ and HOSTILE_ADDRESS in os.environ:
    register(os.environ[ADDRESS], os.environ[HOSTILE_ADDRESS], os.environ[CLIENT])
