"""One webhook for every event: where the address in BENCH_RECEIVER says, by the client that BENCH_CLIENT names."""

from __future__ import annotations

import os

import outbox

RECEIVER, CLIENT = "BENCH_RECEIVER", "BENCH_CLIENT"
SECRET = "whsec_" + "c2VjcmV0" * 4
AT_ONCE = 8

if RECEIVER in os.environ:
    outbox.add_destination(
        outbox.Webhook(
            "sink", os.environ[RECEIVER], secret=SECRET, concurrency=AT_ONCE, client=os.environ.get(CLIENT, "httpx")
        )
    )
