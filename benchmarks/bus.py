"""One message broker for every event: of the kind, and at the address, that two variables name."""

from __future__ import annotations

import os

import outbox
from benchmarks.bus_loops import KAFKA, NAME, NATS, RABBITMQ

KIND, ADDRESS = "BENCH_BUS_KIND", "BENCH_BUS_ADDRESS"

if KIND in os.environ:
    address = os.environ[ADDRESS]
    match os.environ[KIND]:
        case kind if kind == RABBITMQ:
            outbox.add_destination(outbox.Rabbit("bus", url=address, exchange="", routing_key=NAME))
        case kind if kind == NATS:
            outbox.add_destination(outbox.Nats("bus", servers=address, subject=NAME))
        case kind if kind == KAFKA:
            outbox.add_destination(outbox.Kafka("bus", bootstrap_servers=address, topic=NAME))
