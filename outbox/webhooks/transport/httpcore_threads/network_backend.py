"""Sockets for httpcore that keep a deadline, and that connect only where they may.

The errors raised here are Python's own, which pass through httpcore as they are.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from outbox.webhooks.transport.httpcore_threads.deadline import Deadline
from outbox.webhooks.transport.public_address import check_public
from outbox.webhooks.transport.resolver import Resolver, SocketAddress
from outbox.webhooks.transport.response_limits import ResponseMeter

# An interrupt reaches a thread only between two instructions: waiting is done in pieces.
PIECE_SECONDS = 0.5


class DeadlineBackend(httpcore.NetworkBackend):
    """Resolves, checks and connects.

    What is checked is what is connected to: the name is not resolved again, so that it can't mean something else by
    then. TLS and the Host header go on using the name.
    """

    def __init__(self, resolver: Resolver, deadline: Deadline, *, public_only: bool) -> None:
        self._resolver = resolver
        self._deadline = deadline
        self._public_only = public_only

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> DeadlineStream:
        addresses = self._resolver.resolve(host, port, self._deadline.left(f"resolving {host}"))
        if self._public_only:
            check_public(host, addresses)
        return DeadlineStream(self._connect(addresses, f"connecting to {host}, port {port}"), self._deadline)

    def _connect(self, addresses: list[SocketAddress], doing: str) -> socket.socket:
        """To the first that answers. Each gets its share of what is left: one that swallows packets is not the end."""
        for index, address in enumerate(addresses):
            share = self._deadline.left(doing) / (len(addresses) - index)
            try:
                return _open(address, share)
            except OSError:
                if address is addresses[-1]:
                    raise
        raise OSError("no address")  # resolving has seen to that


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
    """A connection, in plain text or TLS. The timeouts that httpcore passes are not looked at."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._socket = connection
        self._deadline = deadline
        self._unsent: list[bytes] = []
        self._meter = ResponseMeter()
        self._piece = 0.0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Kept until the answer is asked for, so that a request's head and body leave in one piece."""
        self._unsent.append(buffer)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._send()
        while True:
            self._limit("waiting for the answer")
            try:
                received = self._socket.recv(max_bytes)
            except TimeoutError:
                continue  # it is the deadline that says when it is over
            if not received:
                return received
            self._deadline.answered = True
            return self._meter.admit(received)

    def _send(self) -> None:
        if not self._unsent:
            return
        self._meter.begin()
        rest = memoryview(b"".join(self._unsent))
        self._unsent.clear()
        while rest:
            self._limit("sending")
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                continue
            except OSError:
                # A receiver may answer and hang up before it has read everything. If there is no answer, reading says
                # so.
                return

    def _limit(self, doing: str) -> None:
        """How long the next operation may take: one piece of what is left, and told to the socket if it is another."""
        piece = min(self._deadline.left(doing), PIECE_SECONDS)
        if piece != self._piece:
            self._piece = piece
            self._socket.settimeout(piece)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> DeadlineStream:
        try:
            self._socket.settimeout(self._deadline.left("agreeing on TLS"))
            secured = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except BaseException:
            self.close()
            raise
        return DeadlineStream(secured, self._deadline)

    def close(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        """httpcore asks whether there is something to read on a connection at rest: the end, that is."""
        if info != "is_readable":
            return None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))
