"""A Redis with a replica, watched by a Sentinel, all of our own: `with SentinelServers() as servers`.

Sentinel is a mode of the program that the other tests use: redis-server or valkey-server.
"""

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from tests.support.servers import Process, RedisServer, ServerError, redis_program, wait_until

MASTER = "shop"

# One is enough to decide; in production there are three.
CONFIGURATION = """
bind 127.0.0.1
port {port}
dir {folder}
sentinel monitor {name} 127.0.0.1 {master} 1
sentinel down-after-milliseconds {name} 500
sentinel failover-timeout {name} 3000
"""


class SentinelServer(Process):
    fast = signal.SIGTERM
    immediate = signal.SIGKILL

    def __init__(self, master_port: int) -> None:
        self.program = redis_program()
        super().__init__()
        # It writes to this file what it finds out.
        text = CONFIGURATION.format(port=self.port, folder=self.folder, name=MASTER, master=master_port)
        (self.folder / "sentinel.conf").write_text(text)

    def command(self) -> list[str | Path]:
        return [self.program, self.folder / "sentinel.conf", "--sentinel"]

    def ping(self) -> None:
        with self.client() as client:
            client.ping()

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=5, decode_responses=True)

    def state(self) -> dict[str, Any]:
        """Return what it knows of the master: `port`, `num-slaves`, `flags` and so on."""
        with self.client() as client:
            found: dict[str, Any] = client.sentinel_master(MASTER)
        return found


class SentinelServers:
    def __init__(self) -> None:
        self.first = RedisServer()
        self.first.options["repl-diskless-sync-delay"] = "0"  # the replica gets its copy at once
        self.second = RedisServer(replicaof=f"127.0.0.1 {self.first.port}")
        self.sentinel = SentinelServer(self.first.port)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for server in (self.first, self.second, self.sentinel):
                stack.enter_context(server)
            self._expect(lambda: self.sentinel.state()["num-slaves"] == 1, "the sentinel finds the replica")
            self._expect(self._is_copied, "the replica is up to date")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> str:
        return f"127.0.0.1:{self.sentinel.port}"

    def fail_over(self) -> None:
        """Kill the master, and return when the replica has taken its place."""
        self.first.kill()
        self._expect(self._is_promoted, "the replica is promoted")

    def _is_copied(self) -> bool:
        with redis.Redis(port=self.second.port) as client:
            return bool(client.info("replication")["master_link_status"] == "up")

    def _is_promoted(self) -> bool:
        with redis.Redis(port=self.second.port) as client:
            role = client.info("replication")["role"]
        return bool(role == "master" and self.sentinel.state()["port"] == self.second.port)

    @staticmethod
    def _expect(condition: Callable[[], bool], what: str) -> None:
        if not wait_until(condition):
            raise ServerError(f"did not come true: {what}")


def master_client(addresses: str) -> Any:
    """Return a client that asks the sentinel for the master whenever it connects, as an application makes it.

    It does not try again by itself, so that every process meets the failover's errors.
    """
    sentinels = [(host, int(port)) for host, _, port in (each.partition(":") for each in addresses.split(","))]
    return Sentinel(sentinels, socket_timeout=1).master_for(MASTER, socket_timeout=5, retry=Retry(NoBackoff(), 0))
