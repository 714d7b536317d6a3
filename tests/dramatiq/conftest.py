"""Fixtures: a broker with its own namespace on the real Redis, and a stage for tests that start processes."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from outbox.dramatiq.broker import install_middleware
from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.settings import Settings
from tests.support.processes import make_stage, stage
from tests.support.servers import Redis, RedisServer

__all__ = ["make_stage", "stage"]


@pytest.fixture
def url(postgres_url: str) -> str:
    """Use PostgreSQL: Dramatiq's worker processes need a database server."""
    return postgres_url


def make_broker(redis_url: str, **options: Any) -> OutboxRedisBroker:
    broker = OutboxRedisBroker(Settings(redis_url=redis_url, namespace=f"test-{uuid.uuid4().hex}"), **options)
    install_middleware(broker)
    return broker


def close(broker: OutboxRedisBroker) -> None:
    broker.flush_all()
    broker.close()
    broker.client.close()


@pytest.fixture
def broker(redis_server: Redis) -> Iterator[OutboxRedisBroker]:
    broker = make_broker(redis_server.url)
    yield broker
    close(broker)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that the test may break."""
    with RedisServer() as server:
        yield server
