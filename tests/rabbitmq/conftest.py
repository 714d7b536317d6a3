"""An application whose broker is a real RabbitMQ.

Run by `python3 dev.py test --rabbitmq`; the plain test command leaves this folder alone, and needs no RabbitMQ.
"""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.rabbitmq.server import RabbitmqServer
from tests.support.application import Application
from tests.support.servers import ServerError


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitmqServer]:
    """It takes long to start: one for all tests, with queues for each of them, and up again if a test ended it."""
    try:
        with RabbitmqServer() as server:
            yield server
    except ServerError as error:
        pytest.fail(str(error), pytrace=False)


class Shop(Application):
    package = "tests.rabbitmq"


class MakeShop(Protocol):
    def __call__(self, **settings: Any) -> Shop: ...


@pytest.fixture
def make_shop(tmp_path: Path, postgres_url: str, rabbitmq: RabbitmqServer) -> Iterator[MakeShop]:
    """Set the stage for the application: `shop = make_shop(sweep_seconds=1)`. Its queues are the test's own."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Shop:
            name = uuid.uuid4().hex
            given = {"database_url": postgres_url, "queue": f"outbox-{name}"} | settings
            shop = stack.enter_context(Shop(tmp_path, redis_url=None, **given))
            shop.environment |= {"OUTBOX_TEST_BROKER_URL": rabbitmq.url, "OUTBOX_TEST_SHOP_QUEUE": f"shop-{name}"}
            return shop

        yield make
