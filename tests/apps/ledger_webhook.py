"""Workers' side of a ledger elsewhere: its receiver, as a destination."""

import os

import outbox

webhook = outbox.Webhook(
    "ledger", os.environ["OUTBOX_TEST_URL"], secret=os.environ["LEDGER_SECRET"], events=["entry.*"]
)
# The gate would spare a receiver that was killed, and keep a dead worker's places, for longer than a test may take.
webhook.limits = outbox.Limits(open_after=None)
outbox.add_destination(webhook)
