"""A service whose events go into a Redis stream: this is all that its workers load."""

import os

import outbox

STREAM = "OUTBOX_TEST_STREAM"

outbox.add_destination(outbox.RedisStream("bus", url=os.environ["OUTBOX_REDIS_URL"], stream=os.environ[STREAM]))
