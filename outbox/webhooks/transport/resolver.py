"""Resolve host names with a timeout. `getaddrinfo` has none, so each lookup runs in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class SocketAddress(NamedTuple):
    """An address that a socket can connect to."""

    family: int
    sockaddr: tuple[Any, ...]

    @property
    def text(self) -> str:
        """Return the IP address as text."""
        return str(self.sockaddr[0])


def host_and_port(address: SocketAddress) -> str:
    """Return an address and its port as one text: `192.0.2.1:443` or `[2001:db8::1]:443`."""
    host, port = address.text, address.sockaddr[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def lookup(host: str, port: int) -> list[SocketAddress]:
    """Return the addresses that the operating system finds for a name, in the order in which to try them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [SocketAddress(family, sockaddr) for family, _, _, _, sockaddr in found]


# Returns the addresses of a host and port, in the order in which to try them.
LookupFunction = Callable[[str, int], list[SocketAddress]]


class Resolver:
    """Resolves names. Requests that need the same name at the same time share one lookup. Nothing is cached."""

    def __init__(self, lookup: LookupFunction = lookup) -> None:
        self._lookup = lookup
        self._running: dict[tuple[str, int], Lookup] = {}

    def begin(self, host: str, port: int) -> Lookup:
        """Start a lookup, or join one that is running, and return it without waiting."""
        mine = Lookup(self._lookup, self._running, (host, port))
        shared = self._running.setdefault((host, port), mine)
        if shared is mine:
            mine.begin()
        return shared

    def resolve(self, host: str, port: int, seconds: float) -> list[SocketAddress]:
        """Return at least one address. Raise TimeoutError after this many seconds, or OSError if the lookup fails."""
        return self.begin(host, port).result(seconds)


class Lookup(threading.Thread):
    """One lookup. It is a daemon thread: a lookup that never returns must not keep the process from exiting."""

    def __init__(self, lookup: LookupFunction, running: dict[tuple[str, int], Lookup], key: tuple[str, int]) -> None:
        super().__init__(name=f"outbox-resolve-{key[0]}", daemon=True)
        self._lookup = lookup
        self._running = running
        self._key = key
        self._done = threading.Event()
        self._found: list[SocketAddress] = []
        self._error: Exception | None = None

    def begin(self) -> None:
        """Start the thread. If the process can't have more threads, raise RuntimeError; the next request retries."""
        try:
            self.start()
        except RuntimeError:
            del self._running[self._key]
            raise

    def run(self) -> None:
        try:
            self._found = self._lookup(*self._key)
        except Exception as error:  # `result` raises it for the requests that wait
            self._error = error
        finally:
            del self._running[self._key]
            self._done.set()

    def wait(self, seconds: float) -> None:
        """Wait until the lookup has ended, at most this many seconds."""
        self._done.wait(seconds)

    def result(self, seconds: float) -> list[SocketAddress]:
        """Return the addresses. Raise TimeoutError after this many seconds, or OSError if the lookup failed."""
        if not self._done.wait(seconds):
            raise TimeoutError
        if self._error is not None:
            reason = getattr(self._error, "strerror", None)
            raise OSError(str(self._error) if reason is None else reason) from self._error
        if not self._found:
            raise OSError("the name has no address")
        return self._found
