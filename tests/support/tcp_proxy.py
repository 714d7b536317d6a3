"""A TCP proxy before a server, for tests that cut or stop its connections: `with TcpProxy(port) as proxy`."""

import contextlib
import selectors
import socket
import struct
import threading
from typing import Self

# How soon a connection notices that it is to be cut, or that the proxy goes on.
LOOK_SECONDS = 0.02


class TcpProxy:
    """Passes everything on, until it is told otherwise."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._generation = 0
        self._flows, self._flows_back = threading.Event(), threading.Event()
        self._flows.set()
        self._flows_back.set()
        self._refuses = self._is_closed = False
        self.connections = 0
        # How often a client has sent something.
        self.sent = 0
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self) -> None:
        """Reset all connections. New ones can be made."""
        self._generation += 1

    def stop(self) -> None:
        """Pass nothing on, in neither direction, as a host does that is gone."""
        self._flows.clear()
        self._flows_back.clear()

    def stop_replies(self) -> None:
        """Pass on what clients send, and nothing of what the server replies."""
        self._flows_back.clear()

    def go_on(self) -> None:
        self._flows.set()
        self._flows_back.set()
        self._refuses = False

    def refuse(self) -> None:
        """Reset all connections, and every new one at once."""
        self._refuses = True
        self.cut()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="proxied", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        generation = self._generation
        with client:
            if self._refuses:
                reset(client)
                return
            self.connections += 1
            with contextlib.suppress(OSError), socket.create_connection(self._target) as server:
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pump(client, server, generation)

    def _pump(self, client: socket.socket, server: socket.socket, generation: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, (server, self._flows))
            selector.register(server, selectors.EVENT_READ, (client, self._flows_back))
            while not self._is_closed:
                for key, _ in selector.select(timeout=LOOK_SECONDS):
                    target, flows = key.data
                    if not flows.wait(0 if self._generation != generation else LOOK_SECONDS):
                        continue
                    source = client if target is server else server
                    data = source.recv(65536)
                    if not data:
                        return
                    self.sent += source is client
                    target.sendall(data)
                if self._generation != generation:
                    reset(client)
                    return


def reset(connection: socket.socket) -> None:
    """Have the connection end with a reset, not politely, when it is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
