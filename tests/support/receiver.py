"""A real HTTP server on loopback that records its requests, and misbehaves in the way that a test asks for.

    with Receiver(drips_its_body) as receiver:
        webhook = Webhook("name", receiver.url)

A reply is a function of one `Exchange`. A reply that goes on for ever ends when the client closes the connection, which
the receiver counts, or with the test.
"""

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import becomes_true

DRIP_SECONDS = 0.005
LOOPBACK = "127.0.0.1"


@dataclass
class Received:
    """One request as it arrived."""

    method: str
    target: str
    pairs: list[tuple[str, str]]
    body: bytes
    connection: int

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers by their names in lower case; none may be there twice."""
        named = {name.lower(): value for name, value in self.pairs}
        assert len(named) == len(self.pairs)
        return named


class Gone(Exception):
    """The client has closed the connection, or the test is over."""


class ClientConnection:
    """The receiver's side of one connection."""

    def __init__(self, receiver: "Receiver", connection: socket.socket, number: int) -> None:
        self.receiver = receiver
        self.socket = connection
        self.number = number
        self._unread = b""

    def read(self, at_most: int = 65536) -> bytes:
        data = self.socket.recv(at_most)
        if not data:
            raise Gone
        return data

    def read_request(self) -> Received:
        while b"\r\n\r\n" not in self._unread:
            self._unread += self.read()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        length = next((int(value) for name, value in pairs if name.lower() == "content-length"), 0)
        while len(self._unread) < length:
            self._unread += self.read()
        body, self._unread = self._unread[:length], self._unread[length:]
        return Received(method, target, pairs, body, self.number)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)
        with self.receiver.lock:
            self.receiver.bytes_sent += len(data)

    def pause(self, seconds: float) -> None:
        if self.receiver.stopping.wait(seconds):
            raise Gone

    def drip(self, data: bytes) -> None:
        """Send the data byte by byte, again and again, for ever."""
        while True:
            for byte in data:
                self.send(bytes([byte]))
                self.pause(DRIP_SECONDS)

    def wait_for_the_end(self) -> None:
        """Send nothing until the client closes the connection."""
        while True:
            self.read()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
        raise Gone


@dataclass
class Exchange:
    """A request, and the connection to reply on."""

    request: Received
    connection: ClientConnection

    def send(self, data: bytes) -> None:
        self.connection.receiver.answered(self)
        self.connection.send(data)


Reply = Callable[[Exchange], None]


def answers(status: int | str = 200, body: bytes = b"ok", **headers: str) -> Reply:
    """Return a reply that is a valid response: `answers(429, retry_after="5")`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("content-length", str(len(body)))
    line = f"{status} Whatever" if isinstance(status, int) else status
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())

    def reply(exchange: Exchange) -> None:
        exchange.send(f"HTTP/1.1 {line}\r\n{head}\r\n".encode("latin-1") + body)

    return reply


def says(data: bytes) -> Reply:
    """Return a reply that sends exactly these bytes, then closes the connection."""

    def reply(exchange: Exchange) -> None:
        exchange.send(data)
        raise Gone

    return reply


def hangs_up(exchange: Exchange) -> None:
    raise Gone


def resets(exchange: Exchange) -> None:
    exchange.connection.reset()


def resets_in_mid_body(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nonly this")
    exchange.connection.reset()


def never_answers(exchange: Exchange) -> None:
    exchange.connection.wait_for_the_end()


def drips_its_headers(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\n")
    exchange.connection.drip(b"x-padding: padding\r\n")


def drips_its_body(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
    exchange.connection.drip(b"drop")


def sends_a_gigabyte(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 500 No\r\ncontent-length: 1000000000\r\n\r\n")
    for _ in range(1_000):
        exchange.send(b"x" * 1_000_000)


def hints_for_ever(exchange: Exchange) -> None:
    while True:
        exchange.connection.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)


class Receiver:
    """Listens, reads requests, and sends the given replies in order; the last one is used for all further requests."""

    def __init__(
        self,
        *replies: Reply,
        on_connect: Callable[[ClientConnection], None] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        name: str = LOOPBACK,
        host: str = LOOPBACK,
        port: int = 0,
    ) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self.hung_up = 0
        self.bytes_sent = 0
        self.most_at_once = 0
        self._under_way: list[Exchange] = []
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self._replies = list(replies) or [answers()]
        self._on_connect = on_connect
        self._ssl_context = ssl_context
        self._listener = socket.create_server((host, port), backlog=128)
        self._listener.settimeout(PATIENCE_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http{'s' if ssl_context else ''}://{name}:{self.port}/hook"
        self._wake, self._stop = socket.socketpair()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._stop.close()
        self._threads[0].join()
        self._listener.close()
        self._wake.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    @property
    def only(self) -> Received:
        """Return the only request that has come."""
        (request,) = self.requests
        return request

    def then(self, *replies: Reply) -> None:
        """Use these replies from now on."""
        with self.lock:
            self._replies = list(replies)

    def notices_the_end(self, of: int = 1) -> None:
        """Wait until the client has closed so many connections."""
        becomes_true(lambda: self.hung_up >= of)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._wake], [], [])
            if self._wake in ready:
                return
            connection, _ = self._listener.accept()
            self.connections += 1
            self._sockets.append(connection)
            self._start(self._serve, connection, self.connections)

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.ExitStack() as ending:
            ending.callback(connection.close)
            try:
                if self._ssl_context is not None:
                    connection = self._ssl_context.wrap_socket(connection, server_side=True)
                    ending.callback(connection.close)
                    self._sockets.append(connection)
                self._talk(ClientConnection(self, connection, number))
            except (Gone, OSError):
                with self.lock:
                    self.hung_up += 1

    def _talk(self, connection: ClientConnection) -> None:
        if self._on_connect is not None:
            self._on_connect(connection)
        while True:
            request = connection.read_request()
            with self.lock:
                self.requests.append(request)
                reply = self._replies[0] if len(self._replies) == 1 else self._replies.pop(0)
            exchange = Exchange(request, connection)
            with self._counted(exchange):
                reply(exchange)

    @contextlib.contextmanager
    def _counted(self, exchange: Exchange) -> Iterator[None]:
        with self.lock:
            self._under_way.append(exchange)
            self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            yield
        finally:
            self.answered(exchange)

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def answered(self, exchange: Exchange) -> None:
        """Count the exchange as ended, before the response is sent: the client may then send the next request."""
        with self.lock:
            self._under_way = [each for each in self._under_way if each is not exchange]


def tunnels(exchange: Exchange) -> None:
    """Forward bytes in both directions, as a proxy does after CONNECT."""
    assert exchange.request.method == "CONNECT"
    host, _, port = exchange.request.target.rpartition(":")
    with socket.create_connection((host, int(port))) as beyond:
        exchange.send(b"HTTP/1.1 200 Connected\r\n\r\n")
        ends = {exchange.connection.socket: beyond, beyond: exchange.connection.socket}
        while not exchange.connection.receiver.stopping.is_set():
            for end in select.select(list(ends), [], [], DRIP_SECONDS)[0]:
                data = end.recv(65536)
                if not data:
                    raise Gone
                ends[end].sendall(data)
