"""Bare producers for the loop of `bare.py`: each publishes a batch and waits until all of it is confirmed.

They use the clients that our destinations use, as these are meant to be used: a batch is sent at once, and its
confirmations are collected. The messages have the headers and the body of ours. (Our RabbitMQ also makes pika write the
frames of a batch together, which no application would have by itself.)
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable
from typing import Any

RABBITMQ, NATS, KAFKA = "rabbitmq", "nats", "kafka"
BUSES = (RABBITMQ, NATS, KAFKA)
# The queue, the subject and the topic.
NAME = "bench"

Deliver = Callable[[list[Any]], None]


def delivery(what: str, address: str) -> Deliver:
    return {RABBITMQ: rabbitmq, NATS: nats, KAFKA: kafka}[what](address)


def headers(row: Any) -> dict[str, str]:
    id, _, aggregate_type, aggregate_id, event_type, *_, created_at, _, _, _, _, _ = row
    about = {"aggregate_type": aggregate_type, "aggregate_id": aggregate_id, "time": created_at.isoformat()}
    return {"id": str(id), "type": event_type, **about}


def rabbitmq(url: str) -> Deliver:
    import pika
    from pika.adapters.asyncio_connection import AsyncioConnection

    loop = asyncio.new_event_loop()
    ready, done = loop.create_future(), loop.create_future()
    open_tags: set[int] = set()
    sent = 0

    def confirmed(frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            open_tags.difference_update([each for each in open_tags if each <= tag])
        else:
            open_tags.discard(tag)
        if not open_tags and not done.done():
            done.set_result(None)

    def opened(channel: Any) -> None:
        channel.confirm_delivery(confirmed, lambda _: ready.set_result(channel))

    connection = AsyncioConnection(
        pika.URLParameters(url), lambda opening: opening.channel(on_open_callback=opened), custom_ioloop=loop
    )
    channel: Any = loop.run_until_complete(ready)

    def close() -> None:
        connection.close()
        loop.run_until_complete(asyncio.sleep(0.1))

    async def publish(rows: list[Any]) -> None:
        nonlocal sent, done
        done = loop.create_future()
        for row in rows:
            about = headers(row)
            properties = pika.BasicProperties(
                "application/json", headers=about, delivery_mode=2, message_id=about["id"]
            )
            channel.basic_publish("", NAME, row[6].encode(), properties, mandatory=True)
            sent += 1
            open_tags.add(sent)
        await done

    atexit.register(close)
    return lambda rows: loop.run_until_complete(publish(rows))


def nats(url: str) -> Deliver:
    from nats.aio.client import Client

    loop = asyncio.new_event_loop()
    client = Client()
    loop.run_until_complete(client.connect(url))
    stream = client.jetstream(publish_async_max_pending=100_000)

    async def publish(rows: list[Any]) -> None:
        acknowledgements = []
        for row in rows:
            about = headers(row)
            acknowledgements.append(
                await stream.publish_async(NAME, row[6].encode(), headers=about | {"Nats-Msg-Id": about["id"]})
            )
        await asyncio.gather(*acknowledgements)

    atexit.register(lambda: loop.run_until_complete(client.close()))
    return lambda rows: loop.run_until_complete(publish(rows))


def kafka(servers: str) -> Deliver:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all"})

    def deliver(rows: list[Any]) -> None:
        reports: list[Any] = []
        for row in rows:
            about: Any = [(name, value.encode()) for name, value in headers(row).items()]
            producer.produce(NAME, row[6].encode(), headers=about, on_delivery=lambda *report: reports.append(report))
        while len(reports) < len(rows):
            producer.poll(0.1)

    return deliver
