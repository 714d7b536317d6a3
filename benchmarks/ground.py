"""What every measurement stands on: a PostgreSQL with stock durability, a Redis, and databases that come and go.

Both servers are started for the run, and end with it. The settings of PostgreSQL are those it comes with: what is
committed is on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from benchmarks.peers.environment import Environments
from benchmarks.site import Site
from benchmarks.size import Size
from outbox.settings import PREFIX
from tests.support.servers import PostgresServer, RedisServer

# What tests/support/servers.py turns off or down, as PostgreSQL has it by itself.
STOCK: dict[str, Any] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "dynamic_shared_memory_type": "posix",
    "max_connections": "100",
}
NAMESPACE = "bench"


class Ground:
    """One run's servers."""

    def __init__(self, size: Size, *, peers: bool = False) -> None:
        self.size = size
        self.peers = peers
        self.round = 0
        self.postgres = PostgresServer(**STOCK)
        self.redis = RedisServer()
        self.environments = Environments()
        self._stack = ExitStack()
        self._kept: dict[str, Site] = {}

    def __enter__(self) -> Self:
        self._stack.enter_context(self.postgres)
        self._stack.enter_context(self.redis)
        self.folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="outbox-bench-")))
        # An emitter finds its broker in the environment; nothing else there may lead elsewhere.
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            del os.environ[name]
        os.environ.update(OUTBOX_REDIS_URL=self.redis.url, OUTBOX_NAMESPACE=NAMESPACE)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def in_turn(self, *sides: str) -> list[str]:
        """In another order every round, so that none is always the first."""
        shift = self.round % len(sides)
        return [*sides[shift:], *sides[:shift]]

    @contextmanager
    def site(self) -> Iterator[Site]:
        """A new database with the outbox's tables; an empty Redis."""
        with self._open("bench") as site:
            yield site

    def kept(self, name: str, prepare: Callable[[Site], None]) -> Site:
        """One that stays for all rounds, because it takes long to prepare."""
        if name not in self._kept:
            self._kept[name] = self._stack.enter_context(self._open(name))
            prepare(self._kept[name])
        return self._kept[name]

    @contextmanager
    def _open(self, name: str) -> Iterator[Site]:
        site = Site(self.postgres, self.redis, self.folder, name)
        try:
            yield site
        finally:
            site.close()
