"""An application whose Redis is watched by a real Sentinel, and fails over.

Run by `python3 dev.py test --sentinel`; the plain test command leaves this folder alone.
"""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.application import Application
from tests.sentinel.server import SentinelServers
from tests.servers import ServerError


@pytest.fixture
def servers() -> Iterator[SentinelServers]:
    try:
        with SentinelServers() as started:
            yield started
    except ServerError as error:
        pytest.fail(str(error), pytrace=False)


class Shop(Application):
    package = "tests.sentinel"


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
