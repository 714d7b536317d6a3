"""An application whose events go to webhooks, with the options that the test has written down."""

import json
import os

import outbox

for options in json.loads(os.environ["OUTBOX_TEST_HOOKS"]):
    outbox.add_destination(outbox.Webhook(**options))
