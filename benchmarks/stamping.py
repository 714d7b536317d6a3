"""A handler that writes down when it was called: `aggregate_id nanoseconds`, by the monotonic clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import outbox
from outbox.events.event import Event

LEDGER = "BENCH_LEDGER"

if LEDGER in os.environ:
    ledger = Path(os.environ[LEDGER]).open("ab", buffering=0)  # noqa: SIM115  (open for as long as the worker is)

    @outbox.handler("*", name="stamp")
    def stamp(event: Event) -> None:
        now = time.monotonic_ns()
        ledger.write(f"{event.aggregate_id} {now}\n".encode())
