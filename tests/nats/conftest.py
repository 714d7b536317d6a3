"""A real NATS server with JetStream.

Run by `python3 dev.py test --nats`; the plain test command leaves this folder alone, and needs no NATS.
"""

from collections.abc import Iterator

import pytest

from tests.nats.server import NatsServer
from tests.support.servers import ServerError


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    try:
        with NatsServer() as server:
            yield server
    except ServerError as error:
        pytest.fail(str(error), pytrace=False)
