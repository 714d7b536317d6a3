"""An application whose Redis is watched by a real Sentinel, and fails over.

Run by `python3 dev.py test --sentinel`; the plain test command leaves this folder alone.
"""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker

from tests.sentinel.server import SentinelServers, master_client
from tests.support.application import Application
from tests.support.processes import Program
from tests.support.servers import ServerError


@pytest.fixture
def servers() -> Iterator[SentinelServers]:
    try:
        with SentinelServers() as started:
            yield started
    except ServerError as error:
        pytest.fail(str(error), pytrace=False)


class Shop(Application):
    package = "tests.sentinel"

    def scheduler_every(self, sweep_seconds: float) -> Program:
        """Start a scheduler that sweeps more often than the workers expect."""
        before = dict(self.environment)
        self.environment["OUTBOX_SWEEP_SECONDS"] = str(sweep_seconds)
        try:
            return self.scheduler()
        finally:
            self.environment = before

    def has_ended(self, id: UUID) -> bool:
        return id in self.ended()

    def messages_in(self, queue: str) -> int:
        with self._client() as client:
            return int(client.llen(f"{self._namespace}:{queue}"))

    def queues_of_own_worker(self) -> str:
        """Ask the application's own worker which queues it consumes."""
        answer = self.folder / "queues"
        message: dramatiq.Message[Any] = dramatiq.Message(
            queue_name="shop", actor_name="write_queues", args=(str(answer),), kwargs={}, options={}
        )
        with self._client() as client:
            RedisBroker(client=client, namespace=self._namespace).enqueue(message)
        self.wait_for(answer.exists, "it says what it consumes")
        return answer.read_text()

    def _client(self) -> Any:
        return master_client(self.environment["OUTBOX_TEST_SENTINELS"])

    @property
    def _namespace(self) -> str:
        return self.environment["OUTBOX_TEST_BROKER_NAMESPACE"]


class MakeShop(Protocol):
    def __call__(self, **settings: Any) -> Shop: ...


@pytest.fixture
def make_shop(tmp_path: Path, postgres_url: str, servers: SentinelServers) -> Iterator[MakeShop]:
    """Set the stage for the application: `shop = make_shop(sweep_seconds=1)`."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Shop:
            shop = stack.enter_context(Shop(tmp_path, redis_url=None, **{"database_url": postgres_url} | settings))
            shop.environment |= {
                "OUTBOX_TEST_SENTINELS": servers.addresses,
                "OUTBOX_TEST_BROKER_NAMESPACE": f"shop-{uuid.uuid4().hex}",
            }
            return shop

        yield make
