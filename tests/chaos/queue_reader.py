"""The consumer of RabbitMQ's queue, as a process: `python -m tests.chaos.queue_reader URL QUEUE LEDGER`.

What it has read is in the ledger before it is acknowledged. A message that RabbitMQ delivers to it again, because the
server was killed before the acknowledgement came, is no second message: it is left out.
"""

import sys
import time
from typing import Any

import pika
import pika.exceptions

from tests.chaos.ledger import Ledger, digest

RETRY_SECONDS = 0.2


def main(url: str, queue: str, ledger_file: str) -> None:
    ledger, read = Ledger(ledger_file), set[str]()

    def accept(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        id = properties.message_id
        if not (method.redelivered and id in read):
            read.add(id)
            whole = b"\0".join(f"{name}={value}".encode() for name, value in sorted(properties.headers.items()))
            ledger.write("accepted", id=id, body=digest(whole + b"\0" + body), payload=digest(body))
        channel.basic_ack(method.delivery_tag)

    print("reading", flush=True)  # noqa: T201 - to whoever waits for it
    while True:
        try:
            with pika.BlockingConnection(pika.URLParameters(f"{url}?heartbeat=5")) as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=100)
                channel.basic_consume(queue, accept)
                channel.start_consuming()
        except (pika.exceptions.AMQPError, OSError):
            time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
