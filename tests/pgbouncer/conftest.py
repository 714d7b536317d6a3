"""Everything behind a real PgBouncer.

Run by `python3 dev.py test --pgbouncer`; the plain test command leaves this folder alone, and needs no PgBouncer.
"""

from collections.abc import Iterator
from typing import Protocol

import pytest

from tests.pgbouncer.server import PgBouncerServer
from tests.support.processes import make_stage
from tests.support.servers import ServerError

__all__ = ["make_stage"]


class MakePooler(Protocol):
    def __call__(self, pool_mode: str = "transaction") -> str: ...


@pytest.fixture
def make_pooler(postgres_url: str) -> Iterator[MakePooler]:
    """Put a PgBouncer in front of the test's database: `url = make_pooler()`."""
    started: list[PgBouncerServer] = []

    def make(pool_mode: str = "transaction") -> str:
        try:
            server = PgBouncerServer(postgres_url, pool_mode=pool_mode)
            started.append(server)
            server.start()
        except ServerError as error:
            pytest.fail(str(error), pytrace=False)
        return server.url

    yield make
    for server in started:
        server.close()


@pytest.fixture
def pooled_url(make_pooler: MakePooler) -> str:
    """The test's database behind a PgBouncer in transaction mode."""
    return make_pooler()
