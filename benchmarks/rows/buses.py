"""Message brokers, beside the bare loop of claim, a producer that waits for a batch's confirmations, and settle.

RabbitMQ and NATS are real servers. Kafka is librdkafka's mock cluster, which stores in memory: it proves how much the
client's side costs, and nothing about a broker's durability or speed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import bare, bus
from benchmarks.bus_loops import KAFKA, NAME, NATS, RABBITMQ
from benchmarks.cpu import family_seconds
from benchmarks.ground import Ground
from benchmarks.row import OURS, Row, Sample, at_least
from outbox.settings import Settings
from tests.support.servers import ServerError

BARE = "bare loop with its producer"
AT_LEAST = 0.7
TITLES = {
    RABBITMQ: "RabbitMQ with confirms, one worker process",
    NATS: "NATS JetStream, one worker process",
    KAFKA: "Kafka (mock cluster: the client's side only), one worker process",
}


@contextmanager
def rabbitmq_server() -> Iterator[str]:
    import pika

    from tests.rabbitmq.server import RabbitmqServer

    with RabbitmqServer() as server:
        with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
            connection.channel().queue_declare(NAME, durable=True)
        yield server.url


@contextmanager
def nats_server() -> Iterator[str]:
    from tests.nats.server import NatsServer

    with NatsServer() as server:
        server.ask(lambda client: client.jetstream().add_stream(name=NAME, subjects=[NAME]))
        yield server.url


@contextmanager
def kafka_cluster() -> Iterator[str]:
    from tests.support.mock_kafka import MockKafka

    with MockKafka(behind_proxy=False) as kafka:
        kafka.create_topic(NAME)
        yield kafka.servers


SERVERS = {RABBITMQ: rabbitmq_server, NATS: nats_server, KAFKA: kafka_cluster}


def measure(kind: str, ground: Ground) -> Iterator[Sample]:
    row = Row(TITLES[kind], "events/s", at_least(AT_LEAST, BARE))
    # All of PostgreSQL, the broker and the workers together. It depends less on what else runs on the machine.
    cost = Row(f"{TITLES[kind]}, processor time", "µs/event")
    try:
        with SERVERS[kind]() as address:
            for side in ground.in_turn(OURS, BARE):
                rate, used = (ours if side == OURS else loop)(ground, kind, address)
                yield Sample(row, side, rate)
                yield Sample(cost, side, used / ground.size.events * 1e6)
    except ServerError as error:
        for side in (OURS, BARE):
            yield Sample(row, side, None, str(error))


def ours(ground: Ground, kind: str, address: str) -> tuple[float, float]:
    variables = {bus.KIND: kind, bus.ADDRESS: address}
    with ground.site() as site, site.worker("benchmarks.bus", variables=variables):
        site.warm_up()
        site.fill(ground.size.events)
        used = family_seconds(os.getpid())
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second(), family_seconds(os.getpid()) - used


def loop(ground: Ground, kind: str, address: str) -> tuple[float, float]:
    settings = Settings()
    with ground.site() as site:
        with bare.loops(1, site.url, settings.batch_size, settings.drains, kind, address):
            site.fill(ground.size.events)
            used = family_seconds(os.getpid())
        return site.delivered_per_second(), family_seconds(os.getpid()) - used


BUSES: dict[str, Callable[[Ground], Iterator[Sample]]] = {kind: partial(measure, kind) for kind in TITLES}
