"""Connect and transfer bytes for httpcore: with one deadline for each request, and only to allowed addresses.

httpcore asks a `NetworkBackend` for connections. The errors raised here are Python's own, such as OSError. httpcore
does not change them.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from outbox.webhooks.transport.httpcore_threads.deadline import Deadline
from outbox.webhooks.transport.httpcore_threads.response_meter import ResponseMeter
from outbox.webhooks.transport.httpcore_threads.tunnel import open_tunnel
from outbox.webhooks.transport.interruptible import LONGEST_BLOCK_SECONDS
from outbox.webhooks.transport.public_address import check_public
from outbox.webhooks.transport.resolver import Resolver, SocketAddress, host_and_port
from outbox.webhooks.transport.url import Url


class DeadlineBackend(httpcore.NetworkBackend):
    """Resolves a name, checks its addresses, and connects.

    The connection goes to an address that was checked. The name is not resolved a second time, because it could then
    resolve to another address. TLS and the Host header still use the name. With `tunnel_through`, a proxy makes the
    connection, to the address that was checked; its own address is not checked.
    """

    def __init__(
        self, resolver: Resolver, deadline: Deadline, *, public_only: bool, tunnel_through: Url | None = None
    ) -> None:
        self._resolver = resolver
        self._deadline = deadline
        self._public_only = public_only
        self._proxy = tunnel_through

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> DeadlineStream:
        """Return a connection. Of the arguments that httpcore passes, only host and port are used."""
        addresses = self._resolve(host, port)
        if self._public_only:
            check_public(host, addresses)
        if self._proxy is not None:
            return self._tunnel(self._proxy, addresses)
        return DeadlineStream(self._connect(addresses, f"connecting to {host}, port {port}"), self._deadline)

    def _resolve(self, host: str, port: int) -> list[SocketAddress]:
        return self._resolver.resolve(host, port, self._deadline.left(f"resolving {host}"))

    def _tunnel(self, proxy: Url, addresses: list[SocketAddress]) -> DeadlineStream:
        """Return a tunnel through the proxy to the first of these addresses to which the proxy makes one."""
        proxy_addresses = self._resolve(proxy.host, proxy.port)
        for address in addresses:
            connection = self._connect(proxy_addresses, f"connecting to {proxy.host}, port {proxy.port}")
            stream = DeadlineStream(connection, self._deadline)
            try:
                open_tunnel(stream, host_and_port(address), proxy)
            except BaseException as error:
                stream.close()
                if not isinstance(error, httpcore.ProxyError) or address is addresses[-1]:
                    raise
            else:
                return stream
        raise OSError("no address")  # not reached: the resolver returns at least one

    def _connect(self, addresses: list[SocketAddress], operation: str) -> socket.socket:
        """Connect to the first address that accepts the connection.

        Each address gets a share of the time left, so that one that drops packets does not use up all of it.
        """
        for index, address in enumerate(addresses):
            share = self._deadline.left(operation) / (len(addresses) - index)
            try:
                return _open(address, share)
            except OSError:
                if address is addresses[-1]:
                    raise
        raise OSError("no address")  # not reached: the resolver returns at least one


def _open(address: SocketAddress, seconds: float) -> socket.socket:
    connection = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(seconds)
        connection.connect(address.sockaddr)
    except BaseException:
        connection.close()
        raise
    return connection


class DeadlineStream(httpcore.NetworkStream):
    """A connection, plain or TLS. The timeouts that httpcore passes are ignored; the deadline is used instead."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._socket = connection
        self._deadline = deadline
        self._unsent: list[bytes] = []
        self._meter = ResponseMeter()
        self._socket_timeout = 0.0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Keep the bytes until httpcore reads, so that the head and the body of a request are sent together."""
        self._unsent.append(buffer)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Send what was written, and return the next bytes of the response."""
        self._send()
        while True:
            self._set_timeout("waiting for the response")
            try:
                received = self._socket.recv(max_bytes)
            except TimeoutError:
                continue  # `_set_timeout` raises when the deadline has passed
            if not received:
                return received
            self._deadline.response_began = True
            return self._meter.admit(received)

    def _send(self) -> None:
        """Send the bytes that were written since the last read: a whole request."""
        if not self._unsent:
            return
        self._meter.begin()
        rest = memoryview(b"".join(self._unsent))
        self._unsent.clear()
        while rest:
            self._set_timeout("sending")
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                continue
            except OSError:
                # A receiver may respond, and close the connection, before it has read the whole request. If it has not
                # responded, reading raises the error.
                return

    def _set_timeout(self, operation: str) -> None:
        """Limit the next socket operation; raise TimeoutError if the deadline has passed."""
        seconds = min(self._deadline.left(operation), LONGEST_BLOCK_SECONDS)
        if seconds != self._socket_timeout:
            self._socket_timeout = seconds
            self._socket.settimeout(seconds)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> DeadlineStream:
        """Negotiate TLS, and return the encrypted connection."""
        try:
            self._socket.settimeout(self._deadline.left("negotiating TLS"))
            secured = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except BaseException:
            self.close()
            raise
        return DeadlineStream(secured, self._deadline)

    def close(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        """Return whether an idle connection is readable: for httpcore, that means that the receiver has closed it."""
        if info != "is_readable":
            return None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))
