"""Workers' side of a ledger elsewhere: its receiver, as a destination."""

import os

import outbox

webhook = outbox.Webhook(
    "ledger", os.environ["OUTBOX_TEST_URL"], secret=os.environ["LEDGER_SECRET"], events=["entry.*"]
)
# A circuit breaker would stay open, and a dead worker's calls would count, for longer than a test may take.
webhook.limits = outbox.Limits(open_after=None)
outbox.add_destination(webhook)
