"""Requests that never end: the server closes their connections, and goes on serving others."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import uvicorn

from outbox.admin.web import make_app
from outbox.admin.web.bounded_protocol import BoundedProtocol
from outbox.core import Outbox
from tests.admin.web.client import anybody
from tests.support.dashboard import ask, dashboard, port_of
from tests.support.processes import Stage
from tests.support.program import run_python
from tests.support.receiver import LOOPBACK
from tests.support.servers import PATIENCE_SECONDS, wait_until

SECONDS = 0.3


class QuickProtocol(BoundedProtocol):
    request_seconds = SECONDS
    unread_seconds = SECONDS
    max_connections = 20


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Send more than all buffers on the way can hold; the client does not read it."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(1_000):
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """Respond only after more time than a request may take to arrive."""
    await asyncio.sleep(3 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"late"})


class Server:
    """uvicorn in a thread, with the limits of `QuickProtocol`."""

    def __init__(self, app: Any, protocol: type[asyncio.Protocol] = QuickProtocol) -> None:
        config = uvicorn.Config(app, http=protocol, ws="none", log_config=None, lifespan="off", timeout_keep_alive=1)
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server((LOOPBACK, 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    @property
    def connections(self) -> set[Any]:
        return self._server.server_state.connections

    def connect(self) -> socket.socket:
        connection = socket.create_connection((LOOPBACK, self.port), timeout=PATIENCE_SECONDS)
        connection.settimeout(PATIENCE_SECONDS)
        return connection

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def server(box: Outbox) -> Iterator[Server]:
    running = Server(make_app(box, authenticate=anybody))
    yield running
    running.stop()


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes the connection; False if it does not within PATIENCE_SECONDS."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


FORM = "POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "G",
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        FORM + "Content-Length: 100\r\n\r\naction=",
        FORM + "Transfer-Encoding: chunked\r\n\r\n5\r\nact",
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
    ],
)
def test_a_request_that_does_not_end_is_closed(server: Server, sent: str) -> None:
    with server.connect() as connection:
        connection.sendall(sent.encode())
        assert is_closed(connection)


def test_a_request_that_comes_byte_by_byte_is_closed(server: Server) -> None:
    """Each byte comes in time; it is the whole request that does not."""
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        connection.settimeout(SECONDS / 10)
        for _ in range(int(PATIENCE_SECONDS / SECONDS * 10)):
            try:
                connection.sendall(b"x")
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("the server went on reading")


def test_a_second_request_on_a_connection_is_bounded_as_well(server: Server) -> None:
    with closing(http.client.HTTPConnection(LOOPBACK, server.port, timeout=PATIENCE_SECONDS)) as client:
        client.request("GET", "/static/icon.svg")
        assert client.getresponse().read().startswith(b"<svg")
        client.sock.sendall(b"GET / HTTP/1.1\r\n")
        assert is_closed(client.sock)


def test_a_response_that_takes_long_is_not_cut_off() -> None:
    server = Server(slow)
    try:
        with server.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            received = b""
            while data := connection.recv(65_536):
                received += data
            assert received.endswith(b"late")
    finally:
        server.stop()


def test_a_client_that_does_not_read_is_closed() -> None:
    server = Server(large)
    try:
        with server.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1) == b"H"
            assert wait_until(lambda: not server.connections)
    finally:
        server.stop()


def test_half_open_requests_do_not_keep_others_from_being_served(server: Server) -> None:
    for _ in range(5):
        held = [server.connect() for _ in range(15)]
        for connection in held:
            connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert ask(server.port, "GET", "/")[0] == 200
        assert all(map(is_closed, held))
        for connection in held:
            connection.close()


class PatientProtocol(QuickProtocol):
    request_seconds = unread_seconds = 10 * PATIENCE_SECONDS


def was_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed the connection, without waiting."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    server = Server(slow, PatientProtocol)
    try:
        held = [server.connect() for _ in range(PatientProtocol.max_connections)]
        assert wait_until(lambda: len(server.connections) == len(held))
        beyond = [server.connect() for _ in range(15)]
        assert wait_until(lambda: all(map(was_closed, beyond)), seconds=10)
        assert not any(map(was_closed, held))
        for connection in (*held, *beyond):
            connection.close()
        assert wait_until(lambda: not server.connections)
        assert ask(server.port, "GET", "/")[0] == 200
    finally:
        server.stop()


def test_the_command_serves_with_these_limits(stage: Stage) -> None:
    port = port_of(dashboard(stage))
    assert ask(port, "GET", "/")[0] == 403
    program = """
import sys
import uvicorn
from outbox.admin.web.bounded_protocol import BoundedProtocol
config = uvicorn.Config
def checked(*args, **options):
    print("bounded:", options["http"] is BoundedProtocol)
    raise SystemExit
uvicorn.Config = checked
sys.argv = ["outbox", "dashboard", "--port", "0"]
from outbox.cli import main
main()
"""
    assert run_python(program, database_url=stage.settings.database_url) == "bounded: True\n"
