"""A TCP proxy before PostgreSQL that cuts connections during COMMIT."""

import contextlib
import selectors
import socket
import struct
import threading
from typing import Self

BEFORE, AFTER = "before it arrives", "after it is done"
COMMIT = b"COMMIT"


class Proxy:
    """Passes everything on, and cuts as many commits as it is told to: before they arrive, or before their answer."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._orders: list[str] = []
        self.cuts = 0
        self._closed = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self, how: str, times: int) -> None:
        """The next so many commits, whosever they are."""
        with self._lock:
            self._orders += [how] * times

    def _take_order(self) -> str | None:
        with self._lock:
            return self._orders.pop(0) if self._orders else None

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="proxied", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pump(client, server)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while not self._closed:
                for key, _ in selector.select(timeout=1):
                    source = client if key.fileobj is client else server
                    data = source.recv(65536)
                    if not data:
                        return
                    order = self._take_order() if source is client and COMMIT in data else None
                    if order is not None:
                        self._cut(order, data, client, server)
                        return
                    key.data.sendall(data)

    def _cut(self, how: str, data: bytes, client: socket.socket, server: socket.socket) -> None:
        if how == AFTER:
            server.sendall(data)
            server.recv(65536)  # it is done, and nobody will hear of it
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.cuts += 1
