"""Hosts that vanish. Linux and root only.

Run by `python3 dev.py test --netns`; the plain test command leaves this folder alone.
"""

from collections.abc import Iterator

import psycopg
import pytest

from tests.netns.network import Network
from tests.support.servers import PostgresServer, ServerError


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        network = Network()
        with network.laid():
            yield network
    except ServerError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def far_url(network: Network) -> Iterator[str]:
    """The address of a PostgreSQL as the other host sees it."""
    with PostgresServer(listen_addresses="*") as server:
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {network.server}/24 password\n")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
        yield server.create_database("far").replace("127.0.0.1", network.server)
