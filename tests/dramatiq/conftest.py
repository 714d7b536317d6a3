"""Tests with real processes share their stage."""

from collections.abc import Iterator

import pytest

from tests.support.processes import make_stage, stage
from tests.support.servers import RedisServer

__all__ = ["make_stage", "stage"]


@pytest.fixture
def url(postgres_url: str) -> str:
    """Dramatiq's workers are for servers."""
    return postgres_url


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that the test may break."""
    with RedisServer() as server:
        yield server
