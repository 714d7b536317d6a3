"""Handlers for events that are not delivered, and for events that go to several: BENCH_HANDLERS names them by turns.

For example `nothing,refuse`. They refuse only events whose idempotency key says so: those that warm a worker up are
delivered.
"""

from __future__ import annotations

import os

import outbox
from outbox.events.event import Event

HANDLERS = "BENCH_HANDLERS"
NOTHING, REFUSE, UNAVAILABLE = "nothing", "refuse", "unavailable"
# Begins the keys of the events that are refused.
KEY = "refused-"


class Refused(Exception):
    pass


def nothing(event: Event) -> None:
    pass


def refuse(event: Event) -> None:
    if KEY in event.idempotency_key:
        raise Refused("the account is closed")


def unavailable(event: Event) -> None:
    if KEY in event.idempotency_key:
        raise outbox.Unavailable("connection refused")


KINDS = {NOTHING: nothing, REFUSE: refuse, UNAVAILABLE: unavailable}

for number, kind in enumerate(os.environ[HANDLERS].split(",") if HANDLERS in os.environ else []):
    outbox.handler("*", name=f"{kind}-{number}")(KINDS[kind])
