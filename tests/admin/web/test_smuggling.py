"""A server and a proxy before it must agree where a request ends."""

import re
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from outbox.admin.web import make_app
from outbox.admin.web.bounded_protocol import BoundedProtocol
from outbox.core import Outbox
from tests.admin.web.client import anybody
from tests.support.receiver import LOOPBACK
from tests.support.servers import PATIENCE_SECONDS

FIRST = "GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = "GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def port(box: Outbox) -> Iterator[int]:
    """The dashboard on a real port: it is uvicorn and h11 that read requests."""
    app = make_app(box, authenticate=anybody)
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedProtocol, ws="none", log_config=None, lifespan="off"))
    listener = socket.create_server((LOOPBACK, 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = server.force_exit = True
    thread.join()
    listener.close()


def statuses(port: int, sent: str) -> list[int]:
    """Send something; the statuses of all responses until the server closes the connection."""
    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_SECONDS) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        connection.sendall(sent.encode())
        received = b""
        while part := connection.recv(65_536):
            received += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", received)]


def form(*headers: str) -> str:
    return "\r\n".join(("POST /act HTTP/1.1", "Host: localhost", *headers, "", ""))


NOT_CLEAR = [
    form("Content-Length: 60", "Transfer-Encoding: chunked") + "0\r\n\r\n",
    form("Transfer-Encoding: chunked", "Content-Length: 5") + "0\r\n\r\n",
    form("Content-Length: 4", "Content-Length: 5") + "abcde",
    form("Content-Length: +4") + "abcd",
    form("Transfer-Encoding: xchunked") + "0\r\n\r\n",
    form("Transfer-Encoding: chunked, identity") + "0\r\n\r\n",
    form("Transfer-Encoding : chunked", "Content-Length: 5") + "0\r\n\r\n",
    form("Transfer-Encoding: \x0bchunked") + "0\r\n\r\n",
    form("Transfer-Encoding: chunked") + "0x1\r\na\r\n0\r\n\r\n",
    form("Host: evil.example", "Content-Length: 0"),
]


def test_a_request_whose_end_is_not_clear_is_the_last_on_its_connection(port: int) -> None:
    assert {each: statuses(port, each + LAST) for each in NOT_CLEAR} == {each: [400] for each in NOT_CLEAR}


def test_what_is_clear_is_followed_by_the_next_request(port: int) -> None:
    assert statuses(port, FIRST + LAST) == [200, 200]
    assert statuses(port, form("Content-Length: 4") + "abcd" + LAST) == [403, 200]
    assert statuses(port, form("Transfer-Encoding: chunked") + "4\r\nabcd\r\n0\r\n\r\n" + LAST) == [403, 200]
