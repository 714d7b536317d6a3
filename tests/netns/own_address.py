"""A host with a public address of its own: run inside a network namespace, with that address as the argument.

It prints how deliveries to a service of this host end, for both clients, and how many connections there were.
"""

import sys

from outbox.webhooks.webhook import Webhook
from tests.support.receiver import Receiver
from tests.webhooks.deliveries import deliver_one

address = sys.argv[1]
with Receiver(host=address) as receiver:
    for client in ("httpx", "curl"):
        for allow_private in (True, False):
            webhook = Webhook("hook", f"http://{address}:{receiver.port}/", allow_private=allow_private, client=client)
            print(client, allow_private, deliver_one(webhook), receiver.connections)  # noqa: T201  (its output)
