"""One Redis stream for every event: in the Redis that BENCH_STREAM_REDIS names."""

from __future__ import annotations

import os

import outbox

REDIS = "BENCH_STREAM_REDIS"

if REDIS in os.environ:
    outbox.add_destination(outbox.RedisStream("stream", url=os.environ[REDIS], stream="ours"))
