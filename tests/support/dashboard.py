"""`outbox dashboard` as a process of its own, and plain HTTP requests to it."""

import http.client
import re

from tests.support.processes import BIN, Program, Stage
from tests.support.receiver import LOOPBACK
from tests.support.servers import PATIENCE_SECONDS

READY = "The dashboard is running on "


def dashboard(stage: Stage, *options: str) -> Program:
    return stage.start("dashboard", BIN / "outbox", "dashboard", "--port", "0", *options, ready=READY)


def port_of(program: Program) -> int:
    found = re.search(rf"{READY}http://127\.0\.0\.1:(\d+)/", program.said())
    assert found is not None, program.said()
    return int(found[1])


def link_of(program: Program) -> str:
    """The newest link that it has printed, without the address."""
    found: list[str] = re.findall(r"http://127\.0\.0\.1:\d+(/login\?token=\S+)", program.said())
    return found[-1]


def sign_in(program: Program) -> str:
    """The cookie, as a browser sends it."""
    status, headers, _ = ask(port_of(program), "GET", link_of(program))
    assert (status, headers["location"]) == (303, "/")
    return headers["set-cookie"].split(";")[0]


def ask(port: int, method: str, path: str, body: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PATIENCE_SECONDS)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body.encode() or None, named)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()
