"""Names to addresses, within a time: `getaddrinfo` itself knows none."""

from __future__ import annotations

import socket
import threading
from typing import Any, NamedTuple


class SocketAddress(NamedTuple):
    """Where a socket can be connected to."""

    family: int
    sockaddr: tuple[Any, ...]

    @property
    def text(self) -> str:
        return str(self.sockaddr[0])


def lookup(host: str, port: int) -> list[SocketAddress]:
    """What the system says, in the order in which to try."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [SocketAddress(family, sockaddr) for family, _, _, _, sockaddr in found]


class Resolver:
    """Looks names up in threads of their own, one for all that wait for the same name."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, int], Lookup] = {}

    def begin(self, host: str, port: int) -> Lookup:
        """Without waiting for it."""
        mine = Lookup(self._under_way, (host, port))
        shared = self._under_way.setdefault((host, port), mine)
        if shared is mine:
            mine.begin()
        return shared

    def resolve(self, host: str, port: int, seconds: float) -> list[SocketAddress]:
        """At least one address, or TimeoutError, or what `lookup` raised."""
        return self.begin(host, port).result(seconds)


class Lookup(threading.Thread):
    """A daemon: one that never comes back must not keep the process from ending."""

    def __init__(self, under_way: dict[tuple[str, int], Lookup], key: tuple[str, int]) -> None:
        super().__init__(name=f"outbox-resolve-{key[0]}", daemon=True)
        self._under_way = under_way
        self._key = key
        self._done = threading.Event()
        self._found: list[SocketAddress] = []
        self._error: Exception | None = None

    def begin(self) -> None:
        try:
            self.start()
        except RuntimeError:  # no more threads: the next one is to try again, not to wait for this
            del self._under_way[self._key]
            raise

    def run(self) -> None:
        try:
            self._found = lookup(*self._key)
        except Exception as error:  # whatever it is, those who wait have to hear of it
            self._error = error
        finally:
            del self._under_way[self._key]
            self._done.set()

    def wait(self, seconds: float) -> None:
        self._done.wait(seconds)

    def result(self, seconds: float) -> list[SocketAddress]:
        if not self._done.wait(seconds):
            raise TimeoutError
        if self._error is not None:
            reason = getattr(self._error, "strerror", None)
            raise OSError(str(self._error) if reason is None else reason) from self._error
        if not self._found:
            raise OSError("it has no address")
        return self._found
